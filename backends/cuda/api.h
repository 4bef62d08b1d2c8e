/* libcuda, NVRTC and cuBLASLt as Etch calls them: types, the numbers of their enumerations, and one
 * table of pointers to their functions, filled when a GPU is first asked for.
 *
 * The libraries' headers are not needed to build Etch; the declarations are our own, of the few
 * things used. Every call goes through CU, NV or LT, which check the status and set an error with
 * the call's name. */
#ifndef ETCH_BACKENDS_CUDA_API_H
#define ETCH_BACKENDS_CUDA_API_H

#include "core/base/base.h"

typedef int cu_device;
typedef unsigned long long cu_address;
typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphNode_st *cu_node;
typedef struct CUgraphExec_st *cu_exec;
typedef struct _nvrtcProgram *nvrtc_program;
typedef struct cublasLtContext *lt_handle;
typedef void *lt_desc;
typedef void *lt_layout;
typedef void *lt_preference;

typedef struct cu_kernel_params {
    cu_function function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel;
    cu_context context;
} cu_kernel_params;

typedef struct cu_memset_params {
    cu_address to;
    size_t pitch;
    unsigned value, element;
    size_t width, height;
} cu_memset_params;

typedef struct lt_algo {
    uint64_t data[8];
} lt_algo;

typedef struct lt_heuristic {
    lt_algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} lt_heuristic;

enum {
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_STREAM_NON_BLOCKING_ = 1,
    CU_EVENT_DISABLE_TIMING_ = 2,
    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_MAJOR = 75,
    CU_ATTRIBUTE_MINOR = 76,
    CU_ATTRIBUTE_SHARED_OPTIN = 97,
    CU_FUNCTION_DYNAMIC_SHARED = 8,
    CU_CAPTURE_RELAXED = 2,
    CU_NODE_MEMSET = 2,
    CU_TENSOR_MAP = 128, /* bytes of a tensor map */
    CU_TENSOR_F16 = 6,
    CU_TENSOR_BF16 = 9,
    CU_TENSOR_SWIZZLE_128 = 3,
    CU_TENSOR_L2_256 = 3,
    LT_DESC_TRANSA = 3,
    LT_DESC_TRANSB = 4,
    LT_DESC_EPILOGUE = 7,
    LT_DESC_BIAS = 8,
    LT_EPILOGUE_RELU = 2,
    LT_EPILOGUE_BIAS = 4,
    LT_EPILOGUE_GELU = 32,
    LT_NOT_SUPPORTED = 15,
    LT_LAYOUT_ORDER = 1,
    LT_LAYOUT_BATCH = 5,
    LT_LAYOUT_BATCH_STRIDE = 6,
    LT_PREFERENCE_WORKSPACE = 1,
    LT_PREFERENCE_REDUCTION = 3,
    LT_PREFERENCE_ALIGNMENT = 5, /* of A; then B, C, D */
    LT_REDUCTION_COMPUTE_TYPE = 2,
    LT_COMPUTE_32F = 68,
    LT_COMPUTE_64F = 70,
    LT_COMPUTE_TF32 = 77,
    LT_TYPE_F32 = 0,
    LT_TYPE_F64 = 1,
    LT_TYPE_F16 = 2,
    LT_TYPE_BF16 = 14,
    CUDA_DRIVER_MIN = 12000 /* 1000 * major + 10 * minor */
};

typedef struct cuda_api {
#define CALL(library, symbol, arguments) int(*symbol) arguments;
#include "backends/cuda/api.def"
#undef CALL
} cuda_api;
extern cuda_api etch__cuda;

/* Opens the libraries, once; false: *why says what is missing. cuBLASLt is looked for with the
 * driver, so that a machine lacks a GPU as a whole or not at all. NVRTC may be missing: imported
 * functions have their code with them. */
bool etch__cuda_load(const char **why);
/* Once loaded: why there is no NVRTC, "" where there is; and its version for keys, its length. */
const char *etch__cuda_compiler_absent(void);
int etch__cuda_compiler_text(char *text, size_t n);

/* The status as an error: "cuLaunchKernel: CUDA_ERROR_...: text"; OK for 0. */
etch_status etch__cuda_failed(const char *call, int status);
etch_status etch__nvrtc_failed(const char *call, int status);
etch_status etch__lt_failed(const char *call, int status);

/* A call with its status checked; an etch_status. */
#define CU(call, ...) etch__cuda_failed(#call, etch__cuda.call(__VA_ARGS__))
#define NV(call, ...) etch__nvrtc_failed(#call, etch__cuda.call(__VA_ARGS__))
#define LT(call, ...) etch__lt_failed(#call, etch__cuda.call(__VA_ARGS__))

#endif
