/* Dtypes: names, sizes, ATen's promotion table, the thread's default dtype. */
#include "core/tensor/tensor.h"

static const char *const names[ETCH_DTYPE_COUNT] = {
    [ETCH_F32] = "f32", [ETCH_F64] = "f64",   [ETCH_BF16] = "bf16", [ETCH_F16] = "f16",
    [ETCH_I8] = "i8",   [ETCH_I16] = "i16",   [ETCH_I32] = "i32",   [ETCH_I64] = "i64",
    [ETCH_U8] = "u8",   [ETCH_BOOL] = "bool",
};

const uint8_t etch__element_bytes[ETCH_DTYPE_COUNT] = {
    [ETCH_F32] = 4, [ETCH_F64] = 8, [ETCH_BF16] = 2, [ETCH_F16] = 2, [ETCH_I8] = 1,
    [ETCH_I16] = 2, [ETCH_I32] = 4, [ETCH_I64] = 8,  [ETCH_U8] = 1,  [ETCH_BOOL] = 1,
};

const char *etch_dtype_name(etch_dtype dtype) {
    return (unsigned)dtype < ETCH_DTYPE_COUNT ? names[dtype] : "unknown";
}

size_t etch_dtype_size(etch_dtype dtype) {
    return (unsigned)dtype < ETCH_DTYPE_COUNT ? etch__element_bytes[dtype] : 0;
}

/* Rows and columns in the order of the enumerators. */
#define F ETCH_F32
#define D ETCH_F64
#define B ETCH_BF16
#define H ETCH_F16
#define C ETCH_I8
#define S ETCH_I16
#define I ETCH_I32
#define L ETCH_I64
#define U ETCH_U8
#define Z ETCH_BOOL
static const uint8_t promoted[ETCH_DTYPE_COUNT][ETCH_DTYPE_COUNT] = {
    /*        f32 f64 bf16 f16 i8 i16 i32 i64 u8 bool */
    /* f32  */ {F, D, F, F, F, F, F, F, F, F},
    /* f64  */ {D, D, D, D, D, D, D, D, D, D},
    /* bf16 */ {F, D, B, F, B, B, B, B, B, B},
    /* f16  */ {F, D, F, H, H, H, H, H, H, H},
    /* i8   */ {F, D, B, H, C, S, I, L, S, C},
    /* i16  */ {F, D, B, H, S, S, I, L, S, S},
    /* i32  */ {F, D, B, H, I, I, I, L, I, I},
    /* i64  */ {F, D, B, H, L, L, L, L, L, L},
    /* u8   */ {F, D, B, H, S, S, I, L, U, U},
    /* bool */ {F, D, B, H, C, S, I, L, U, Z},
};
#undef F
#undef D
#undef B
#undef H
#undef C
#undef S
#undef I
#undef L
#undef U
#undef Z

etch_dtype etch_promote_types(etch_dtype a, etch_dtype b) {
    if ((unsigned)a >= ETCH_DTYPE_COUNT || (unsigned)b >= ETCH_DTYPE_COUNT) return ETCH_DTYPE_COUNT;
    return promoted[a][b];
}

/* It lies in the state word, so that a recorded operator is matched together with it. */
etch_status etch_set_default_dtype(etch_dtype dtype) {
    if (dtype != ETCH_F32 && dtype != ETCH_F64)
        return etch__error_at(__builtin_return_address(0), ETCH_ERR_DTYPE,
                              "etch_set_default_dtype: expected f32 or f64, got %s",
                              etch_dtype_name(dtype));
    etch__tls.state = (etch__tls.state & ~(uint64_t)0xff00) | (uint64_t)dtype << 8;
    return ETCH_OK;
}

etch_dtype etch_default_dtype(void) { return STATE_DTYPE(etch__tls.state); }

etch_status etch_set_matmul_precision(etch_matmul_precision precision) {
    if (precision != ETCH_HIGHEST && precision != ETCH_HIGH)
        return etch__error_at(__builtin_return_address(0), ETCH_ERR_INVALID_ARGUMENT,
                              "etch_set_matmul_precision: expected ETCH_HIGHEST or ETCH_HIGH, got "
                              "the number %d",
                              (int)precision);
    etch__tls.state = (etch__tls.state & ~(3ull << 4)) | (uint64_t)precision << 4;
    return ETCH_OK;
}

etch_matmul_precision etch_get_matmul_precision(void) { return STATE_PRECISION(etch__tls.state); }
