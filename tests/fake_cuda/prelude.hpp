// What goes before each CUDA source so that g++ compiles it for the host: the language's words, the
// built-in variables, barriers and warp operations (calls of the driver's fibers), atomics (one thread
// runs at a time, so plain arithmetic), vector types, mathematics. No header is included: it must
// compile quickly.
#pragma GCC diagnostic ignored "-Wattributes"

extern "C" {
struct fake_uint3 {
    unsigned x, y, z;
};
struct fake_hooks {
    int (*barrier)(int predicate);
    unsigned long long (*warp)(int kind, unsigned mask, unsigned long long value, int source);
    void (*trap)(const char *why);
    void (*changed)(const unsigned *word, unsigned value);
    void (*named)(int number, int threads, int waits);
};
struct fake_kernel {
    const char *name;
    void *function;
    void (*call)(void **params);
    const unsigned *sizes;
    const unsigned char *pointers;
    int params, max_threads;
};
struct fake_image {
    int version;
    const fake_kernel *kernels;
    int count;
    fake_uint3 *thread, *block, *block_size, *grid_size;
    const fake_hooks **hooks;
    char *shared_from, *shared_to, *dynamic;
    unsigned *dynamic_size;
};
}

static fake_uint3 threadIdx, blockIdx, blockDim, gridDim;
static const fake_hooks *fake_calls;
static unsigned fake_dynamic_size;
extern "C" {
alignas(1024) __attribute__((used, visibility("hidden"))) char fake_dynamic_shared[233472];
}
// The section of shared variables is never empty.
__attribute__((section("fake_shared"), used)) static char fake_shared_mark;
extern "C" __attribute__((visibility("hidden"))) char __start_fake_shared[], __stop_fake_shared[];
enum { warpSize = 32 };

#define __global__ __attribute__((visibility("default"), noinline, used))
#define __device__
#define __host__
#define __constant__ __attribute__((used))
#define __shared__ static __attribute__((section("fake_shared")))
#define __launch_bounds__(...)
#define __grid_constant__
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __inline__ inline
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDA_ARCH__ (FAKE_CUDA_ARCH * 10)

typedef unsigned long size_t;
typedef decltype(nullptr) fake_nullptr_t;

// ---- kernels ----

template <class T> struct fake_is_pointer {
    static const unsigned char value = 0;
};
template <class T> struct fake_is_pointer<T *> {
    static const unsigned char value = 1;
};

template <int...> struct fake_indices {};
template <int N> using fake_range = fake_indices<__integer_pack(N)...>;

template <class F, F *f> struct fake_entry;
template <class... A, void (*f)(A...)> struct fake_entry<void(A...), f> {
    template <int... I> static void go(void **params, fake_indices<I...>) {
        (void)params;
        f(*(A *)params[I]...);
    }
    static void call(void **params) { go(params, fake_range<sizeof...(A)>()); }
    static constexpr unsigned sizes[] = {sizeof(A)..., 0};
    static constexpr unsigned char pointers[] = {fake_is_pointer<A>::value..., 0};
    static constexpr int count = sizeof...(A);
};

#define FAKE_KERNEL(threads, text, ...)                                                            \
    {text, (void *)&__VA_ARGS__, fake_entry<decltype(__VA_ARGS__), &__VA_ARGS__>::call,            \
     fake_entry<decltype(__VA_ARGS__), &__VA_ARGS__>::sizes,                                       \
     fake_entry<decltype(__VA_ARGS__), &__VA_ARGS__>::pointers,                                    \
     fake_entry<decltype(__VA_ARGS__), &__VA_ARGS__>::count, threads}

#define FAKE_IMAGE(version, count)                                                                 \
    extern "C" __attribute__((visibility("default"), used)) const fake_image fake_cuda_image = {   \
        version,      fake_kernel_list, count,       &threadIdx,          &blockIdx,              \
        &blockDim,    &gridDim,         &fake_calls, __start_fake_shared, __stop_fake_shared,     \
        fake_dynamic_shared, &fake_dynamic_size};

// ---- barriers and warps ----

static inline void __syncthreads() { fake_calls->barrier(0); }
static inline int __syncthreads_count(int p) { return fake_calls->barrier(p); }
static inline int __syncthreads_or(int p) { return fake_calls->barrier(p) != 0; }
static inline int __syncthreads_and(int p) { return fake_calls->barrier(!p) == 0; }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { fake_calls->warp(0, mask, 0, 0); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __trap() { fake_calls->trap("__trap()"); }
static inline void __nanosleep(unsigned) {}
static inline void __brkpt() {}
#define assert(condition) ((condition) ? (void)0 : fake_calls->trap("assert(" #condition ")"))

static inline int fake_thread() {
    return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}
static inline int fake_lane() { return fake_thread() % 32; }

template <class T> static inline T fake_exchange(unsigned mask, T value, int source) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 4 or 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = fake_calls->warp(1, mask, bits, source);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int lane = fake_lane();
    return fake_exchange(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int lane = fake_lane(), source = lane - (int)by;
    return fake_exchange(mask, value, source < (lane & ~(width - 1)) ? lane : source);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int lane = fake_lane(), source = lane + (int)by;
    return fake_exchange(mask, value, source > (lane | (width - 1)) ? lane : source);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
    const int lane = fake_lane(), source = lane ^ by;
    return fake_exchange(mask, value, source > (lane | (width - 1)) ? lane : source);
}
static inline unsigned __ballot_sync(unsigned mask, int p) {
    return (unsigned)fake_calls->warp(2, mask, p != 0, 0);
}
static inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
static inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, !p) == 0; }
static inline unsigned __activemask() { return 1u << fake_lane(); }
#define FAKE_REDUCE(name, T, first, combine)                                                       \
    static inline T name(unsigned mask, T value) {                                                 \
        T a = first;                                                                               \
        for (int i = 0; i < 32; i++)                                                               \
            if (mask >> i & 1) {                                                                   \
                const T b = __shfl_sync(mask, value, i);                                           \
                a = combine;                                                                       \
            }                                                                                      \
        return a;                                                                                  \
    }
FAKE_REDUCE(__reduce_add_sync, unsigned, 0u, a + b)
FAKE_REDUCE(__reduce_and_sync, unsigned, ~0u, a &b)
FAKE_REDUCE(__reduce_or_sync, unsigned, 0u, a | b)
FAKE_REDUCE(__reduce_xor_sync, unsigned, 0u, a ^ b)
FAKE_REDUCE(__reduce_max_sync, unsigned, 0u, a > b ? a : b)
FAKE_REDUCE(__reduce_min_sync, unsigned, ~0u, a < b ? a : b)
FAKE_REDUCE(__reduce_add_sync, int, 0, a + b)
FAKE_REDUCE(__reduce_max_sync, int, -2147483647 - 1, a > b ? a : b)
FAKE_REDUCE(__reduce_min_sync, int, 2147483647, a < b ? a : b)

// ---- atomics ----

#define FAKE_ATOMIC(name, T, result)                                                               \
    static inline T name(T *at, T value) {                                                         \
        const T old = *at;                                                                         \
        *at = (result);                                                                            \
        return old;                                                                                \
    }
#define FAKE_ATOMICS(T)                                                                            \
    FAKE_ATOMIC(atomicAdd, T, old + value)                                                         \
    FAKE_ATOMIC(atomicExch, T, value)                                                              \
    FAKE_ATOMIC(atomicMax, T, old > value ? old : value)                                           \
    FAKE_ATOMIC(atomicMin, T, old < value ? old : value)                                           \
    FAKE_ATOMIC(atomicAnd, T, old &value)                                                          \
    FAKE_ATOMIC(atomicOr, T, old | value)                                                          \
    FAKE_ATOMIC(atomicXor, T, old ^ value)                                                         \
    static inline T atomicCAS(T *at, T compare, T value) {                                         \
        const T old = *at;                                                                         \
        if (old == compare) *at = value;                                                           \
        return old;                                                                                \
    }
FAKE_ATOMICS(int)
FAKE_ATOMICS(unsigned)
FAKE_ATOMICS(unsigned long long)
FAKE_ATOMIC(atomicMax, long long, old > value ? old : value)
FAKE_ATOMIC(atomicMin, long long, old < value ? old : value)
FAKE_ATOMIC(atomicSub, int, old - value)
FAKE_ATOMIC(atomicSub, unsigned, old - value)
FAKE_ATOMIC(atomicAdd, float, old + value)
FAKE_ATOMIC(atomicAdd, double, old + value)
FAKE_ATOMIC(atomicExch, float, value)
FAKE_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
FAKE_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)

// ---- vector types ----

#define FAKE_VECTORS(T, name, a1, a2, a4)                                                          \
    struct alignas(a1) name##1 {                                                                   \
        T x;                                                                                       \
    };                                                                                             \
    struct alignas(a2) name##2 {                                                                   \
        T x, y;                                                                                    \
    };                                                                                             \
    struct name##3 {                                                                               \
        T x, y, z;                                                                                 \
    };                                                                                             \
    struct alignas(a4) name##4 {                                                                   \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    static inline name##1 make_##name##1(T x) { return {x}; }                                      \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                              \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                      \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
FAKE_VECTORS(signed char, char, 1, 2, 4)
FAKE_VECTORS(unsigned char, uchar, 1, 2, 4)
FAKE_VECTORS(short, short, 2, 4, 8)
FAKE_VECTORS(unsigned short, ushort, 2, 4, 8)
FAKE_VECTORS(int, int, 4, 8, 16)
FAKE_VECTORS(unsigned, uint, 4, 8, 16)
FAKE_VECTORS(long, long, 8, 16, 16)
FAKE_VECTORS(unsigned long, ulong, 8, 16, 16)
FAKE_VECTORS(long long, longlong, 8, 16, 16)
FAKE_VECTORS(unsigned long long, ulonglong, 8, 16, 16)
FAKE_VECTORS(float, float, 4, 8, 16)
FAKE_VECTORS(double, double, 8, 16, 16)
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};

// ---- mathematics ----

#define FAKE_MATH1(name)                                                                           \
    extern "C" double name(double) noexcept;                                                       \
    extern "C" float name##f(float) noexcept;                                                      \
    static inline float name(float x) { return name##f(x); }
FAKE_MATH1(acos) FAKE_MATH1(acosh) FAKE_MATH1(asin) FAKE_MATH1(asinh) FAKE_MATH1(atan)
FAKE_MATH1(atanh) FAKE_MATH1(cbrt) FAKE_MATH1(ceil) FAKE_MATH1(cos) FAKE_MATH1(cosh)
FAKE_MATH1(erf) FAKE_MATH1(erfc) FAKE_MATH1(exp) FAKE_MATH1(exp2) FAKE_MATH1(exp10)
FAKE_MATH1(expm1) FAKE_MATH1(fabs) FAKE_MATH1(floor) FAKE_MATH1(lgamma) FAKE_MATH1(log)
FAKE_MATH1(log10) FAKE_MATH1(log1p) FAKE_MATH1(log2) FAKE_MATH1(logb) FAKE_MATH1(nearbyint)
FAKE_MATH1(rint) FAKE_MATH1(round) FAKE_MATH1(sin) FAKE_MATH1(sinh) FAKE_MATH1(sqrt)
FAKE_MATH1(tan) FAKE_MATH1(tanh) FAKE_MATH1(tgamma) FAKE_MATH1(trunc) FAKE_MATH1(j0)
FAKE_MATH1(j1) FAKE_MATH1(y0) FAKE_MATH1(y1)
#define FAKE_MATH2(name)                                                                           \
    extern "C" double name(double, double) noexcept;                                               \
    extern "C" float name##f(float, float) noexcept;                                               \
    static inline float name(float x, float y) { return name##f(x, y); }
FAKE_MATH2(atan2) FAKE_MATH2(copysign) FAKE_MATH2(fdim) FAKE_MATH2(fmax) FAKE_MATH2(fmin)
FAKE_MATH2(fmod) FAKE_MATH2(hypot) FAKE_MATH2(nextafter) FAKE_MATH2(pow) FAKE_MATH2(remainder)
/* Built in: one instruction where the machine has it, without optimising too. */
#define FAKE_FMA static inline __attribute__((always_inline))
FAKE_FMA double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
FAKE_FMA float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
FAKE_FMA float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" double frexp(double, int *) noexcept;
extern "C" float frexpf(float, int *) noexcept;
extern "C" double modf(double, double *) noexcept;
extern "C" float modff(float, float *) noexcept;
extern "C" double scalbn(double, int) noexcept;
extern "C" float scalbnf(float, int) noexcept;
extern "C" int ilogb(double) noexcept;
extern "C" int ilogbf(float) noexcept;
extern "C" long long llrint(double) noexcept;
extern "C" long long llrintf(float) noexcept;
extern "C" void sincos(double, double *, double *) noexcept;
extern "C" void sincosf(float, float *, float *) noexcept;
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
static inline double rcbrt(double x) { return 1.0 / cbrt(x); }

#undef isnan
#undef isinf
#undef isfinite
#undef signbit
static inline bool isnan(float x) { return __builtin_isnan(x); }
static inline bool isnan(double x) { return __builtin_isnan(x); }
static inline bool isinf(float x) { return __builtin_isinf(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline bool isfinite(float x) { return __builtin_isfinite(x); }
static inline bool isfinite(double x) { return __builtin_isfinite(x); }
static inline bool signbit(float x) { return __builtin_signbit(x); }
static inline bool signbit(double x) { return __builtin_signbit(x); }

#define FAKE_MINMAX(T)                                                                             \
    static inline T min(T a, T b) { return a < b ? a : b; }                                        \
    static inline T max(T a, T b) { return a > b ? a : b; }
FAKE_MINMAX(int) FAKE_MINMAX(unsigned) FAKE_MINMAX(long) FAKE_MINMAX(unsigned long)
FAKE_MINMAX(long long) FAKE_MINMAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline int abs(int x) { return x < 0 ? -x : x; }
static inline long abs(long x) { return x < 0 ? -x : x; }
static inline long long abs(long long x) { return x < 0 ? -x : x; }
static inline float abs(float x) { return fabsf(x); }
static inline double abs(double x) { return fabs(x); }
static inline long long llabs(long long x) { return x < 0 ? -x : x; }

// ---- intrinsics ----

template <class To, class From> static inline To fake_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __int_as_float(int x) { return fake_bits<float>(x); }
static inline int __float_as_int(float x) { return fake_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return fake_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return fake_bits<unsigned>(x); }
static inline double __longlong_as_double(long long x) { return fake_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return fake_bits<long long>(x); }
static inline double __hiloint2double(int hi, int lo) {
    return fake_bits<double>((unsigned long long)(unsigned)hi << 32 | (unsigned)lo);
}
static inline int __double2hiint(double x) { return (int)(fake_bits<long long>(x) >> 32); }
static inline int __double2loint(double x) { return (int)fake_bits<long long>(x); }

// Rounded on their own: the volatile keeps the compiler from contracting them.
#define FAKE_ROUNDED(name, T, op)                                                                  \
    static inline T name(T a, T b) {                                                               \
        volatile T r = a op b;                                                                     \
        return r;                                                                                  \
    }
FAKE_ROUNDED(__fadd_rn, float, +)
FAKE_ROUNDED(__fsub_rn, float, -)
FAKE_ROUNDED(__fmul_rn, float, *)
FAKE_ROUNDED(__fdiv_rn, float, /)
FAKE_ROUNDED(__dadd_rn, double, +)
FAKE_ROUNDED(__dsub_rn, double, -)
FAKE_ROUNDED(__dmul_rn, double, *)
FAKE_ROUNDED(__ddiv_rn, double, /)
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline double __drcp_rn(double x) { return 1.0 / x; }
static inline float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }
static inline float __expf(float x) { return expf(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __saturatef(float x) { return x >= 1 ? 1 : x > 0 ? x : 0; }

// Saturating, not-a-number to 0.
template <class To, class From> static inline To fake_to(From x, From low, From above) {
    const To least = (To)-1 < 0 ? (To)(1ull << (sizeof(To) * 8 - 1)) : 0;
    const To most = (To)-1 < 0 ? (To)((1ull << (sizeof(To) * 8 - 1)) - 1) : (To)~0ull;
    return x != x ? 0 : x < low ? least : x >= above ? most : (To)x;
}
#define FAKE_TO(suffix, T, low, above)                                                             \
    static inline T __float2##suffix##_rz(float x) { return fake_to<T, float>(x, low, above); }    \
    static inline T __double2##suffix##_rz(double x) { return fake_to<T, double>(x, low, above); } \
    static inline T __float2##suffix##_rn(float x) {                                               \
        return fake_to<T, float>(rintf(x), low, above);                                            \
    }                                                                                              \
    static inline T __double2##suffix##_rn(double x) {                                             \
        return fake_to<T, double>(rint(x), low, above);                                            \
    }                                                                                              \
    static inline T __float2##suffix##_rd(float x) {                                               \
        return fake_to<T, float>(floorf(x), low, above);                                           \
    }                                                                                              \
    static inline T __float2##suffix##_ru(float x) {                                               \
        return fake_to<T, float>(ceilf(x), low, above);                                            \
    }
FAKE_TO(int, int, -0x1p31, 0x1p31)
FAKE_TO(uint, unsigned, 0, 0x1p32)
FAKE_TO(ll, long long, -0x1p63, 0x1p63)
FAKE_TO(ull, unsigned long long, 0, 0x1p64)
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline double __int2double_rn(int x) { return x; }
static inline double __uint2double_rn(unsigned x) { return x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline double __ull2double_rn(unsigned long long x) { return (double)x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline long long __mul64hi(long long a, long long b) {
    return (long long)((__int128)a * b >> 64);
}
static inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
    return r;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++)
        r |= (unsigned)(both >> (selector >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
    return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned by) {
    return (unsigned)((((unsigned long long)hi << 32 | lo) << (by & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned by) {
    return (unsigned)(((unsigned long long)hi << 32 | lo) >> (by & 31));
}
template <class T> static inline T __ldg(const T *at) { return *at; }
template <class T> static inline T __ldcg(const T *at) { return *at; }
template <class T> static inline T __ldca(const T *at) { return *at; }
template <class T> static inline T __ldcs(const T *at) { return *at; }
template <class T> static inline T __ldcv(const T *at) { return *at; }
template <class T> static inline T __ldlu(const T *at) { return *at; }
template <class T> static inline void __stcg(T *at, T value) { *at = value; }
template <class T> static inline void __stcs(T *at, T value) { *at = value; }
template <class T> static inline void __stwb(T *at, T value) { *at = value; }
template <class T> static inline void __stwt(T *at, T value) { *at = value; }
static inline long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
static inline unsigned clock() { return (unsigned)clock64(); }
static inline unsigned long long globaltimer() { return (unsigned long long)clock64(); }
static inline size_t __cvta_generic_to_shared(const void *at) { return (size_t)at; }

extern "C" {
void *memcpy(void *, const void *, size_t) noexcept;
void *memset(void *, int, size_t) noexcept;
}

#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")

// ---- backends/cuda/device/tensor_core.cuh: a warp's lanes show each other what they have ----

#define TENSOR_CORE
namespace tensor_core {
struct shown {
    unsigned a[4], b[2];
    const char *row;
};
static shown lanes[32][32];
static inline shown *all_shown(const shown &own) {
    shown *const warp = lanes[fake_thread() / 32];
    warp[fake_lane()] = own;
    __syncwarp();
    return warp;
}
static inline unsigned half_at(const unsigned *words, int i) {
    return words[i / 2] >> i % 2 * 16 & 0xffff;
}
static inline void load(unsigned (&r)[4], const void *row) {
    const shown *const warp = all_shown({{}, {}, (const char *)row});
    const int l = fake_lane();
    for (int m = 0; m < 4; m++) __builtin_memcpy(&r[m], warp[m * 8 + l / 4].row + l % 4 * 4, 4);
    __syncwarp();
}
static inline void load_turned(unsigned (&r)[4], const void *row) {
    const shown *const warp = all_shown({{}, {}, (const char *)row});
    const int l = fake_lane();
    for (int m = 0; m < 4; m++) {
        unsigned short x[2];
        for (int h = 0; h < 2; h++)
            __builtin_memcpy(&x[h], warp[m * 8 + l % 4 * 2 + h].row + l / 4 * 2, 2);
        r[m] = (unsigned)x[1] << 16 | x[0];
    }
    __syncwarp();
}
static inline float wide(unsigned h, bool bf16) {
    if (bf16) return __uint_as_float(h << 16);
    const float x = (h & 0x7c00) == 0x7c00 ? (h & 0x3ff ? CUDART_NAN_F : CUDART_INF_F)
                                           : __uint_as_float((h & 0x7fff) << 13) * 0x1p112f;
    return h & 0x8000 ? -x : x;
}
template <bool IS_BF16>
static inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const shown *const warp = all_shown({{a[0], a[1], a[2], a[3]}, {b0, b1}, nullptr});
    const int l = fake_lane();
    for (int e = 0; e < 4; e++) {
        const int column = l % 4 * 2 + e % 2;
        for (int k = 0; k < 16; k++) {
            const unsigned x = warp[l / 4 * 4 + k % 8 / 2].a[e / 2 + k / 8 * 2];
            const unsigned y = warp[column * 4 + k % 8 / 2].b[k / 8];
            c[e] += wide(half_at(&x, k % 2), IS_BF16) * wide(half_at(&y, k % 2), IS_BF16);
        }
    }
    __syncwarp();
}
template <bool IS_BF16> static inline unsigned rounded(float x) {
    const unsigned u = __float_as_uint(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (IS_BF16) return a > 0x7f800000 ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
    if (a > 0x7f800000) return sign | 0x7e00;
    const float limit = 65520.0f, y = fabsf(x);
    if (y >= limit || y == 0) return sign | (y == 0 ? 0 : 0x7c00);
    int e = 0;
    frexpf(y, &e);
    const int least = e < -13 ? -24 : e - 11; // what a unit in the last place is
    const float units = rintf(ldexpf(y, -least));
    return sign | (((unsigned)(least + 24) << 10) + (unsigned)units);
}
template <bool IS_BF16> static inline unsigned pack(float low, float high) {
    return rounded<IS_BF16>(high) << 16 | rounded<IS_BF16>(low);
}
static inline float power_of_two(float x) { return exp2f(x); }
static inline void copy(void *to, const void *from, bool there) {
    if (there) __builtin_memcpy(to, from, 16);
    else __builtin_memset(to, 0, 16);
}
static inline void copies_begun() {}
static inline void copies_done() {}
template <int LEFT> static inline void copies_left() {}

// warp_group.cuh: products are done at once.
static inline int swizzled(int row, int c) { return row * 64 + ((c / 8 ^ row % 8) * 8 | c % 8); }
static inline char *whole_panel(void *p) { return (char *)(((size_t)p + 1023) & ~1023ul); }
template <int N> static inline void group_begins(float (&)[N][4]) {}
static inline void group_ends() {}
template <int LEFT, int N> static inline void group_done(float (&)[N][4]) { __syncwarp(); }
static inline void copies_shown() {}
struct operand_at {
    const char *from;
    int far;
};
static inline operand_at operand_in(const void *p, int far) { return {(const char *)p, far}; }
static inline operand_at behind(operand_at o, int halves) { return {o.from + 2 * halves, o.far}; }
// Half c of a row of 128 bytes, in memory whose pieces are exchanged.
static inline unsigned panel_at(const char *p, int row, int c) {
    size_t at = (size_t)p + (size_t)(row * 128 + c * 2);
    at ^= (at >> 7 & 7) << 4;
    return *(const unsigned short *)at;
}
template <bool IS_BF16, int N>
static inline void multiply_shared(float (&c)[N][4], operand_at a, operand_at b, bool adds) {
    const int l = fake_lane(), first = fake_thread() / 32 % 4 * 16 + l / 4;
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 4; e++) {
            const int row = first + e / 2 * 8, column = n * 8 + l % 4 * 2 + e % 2;
            if (!adds) c[n][e] = 0;
            for (int k = 0; k < 16; k++)
                c[n][e] += wide(panel_at(a.from, row, k), IS_BF16) *
                           wide(panel_at(b.from, column, k), IS_BF16);
        }
}
template <bool IS_BF16, int N>
static inline void multiply_turned(float (&c)[N][4], const unsigned (&a)[4], operand_at b) {
    const shown *const warp = all_shown({{a[0], a[1], a[2], a[3]}, {}, nullptr});
    const int l = fake_lane();
    for (int n = 0; n < N; n++)
        for (int e = 0; e < 4; e++)
            for (int k = 0; k < 16; k++) {
                const int column = n * 8 + l % 4 * 2 + e % 2;
                const unsigned x = warp[l / 4 * 4 + k % 8 / 2].a[e / 2 + k / 8 * 2];
                const char *const y = b.from + column / 64 * 2 * b.far;
                c[n][e] += wide(half_at(&x, k % 2), IS_BF16) *
                           wide(panel_at(y, k, column % 64), IS_BF16);
            }
    __syncwarp();
}

// meeting.cuh: a gate counts those who are to come, and how often it has opened.
struct alignas(8) gate {
    unsigned short missing, comers;
    unsigned opened;
};
static inline void gate_set(gate *g, int comers) {
    g->missing = g->comers = (unsigned short)comers;
    g->opened = 0;
}
static inline void gate_reached(gate *g) {
    if (--g->missing) return;
    g->missing = g->comers;
    g->opened++;
}
static inline void gate_reached_by_copies(gate *g) { gate_reached(g); }
static inline void gate_passed(gate *g, unsigned odd) {
    while (g->opened % 2 == odd) fake_calls->changed(&g->opened, g->opened);
}
static inline void turn_awaited(int turn) { fake_calls->named(turn, 256, 1); }
static inline void turn_given(int turn) { fake_calls->named(turn, 256, 0); }
template <int N> static inline void registers_given_back() {}
template <int N> static inline void registers_taken() {}
}
