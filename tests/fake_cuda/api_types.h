/* The types of the CUDA driver API, NVRTC and cuBLASLt, as far as the fakes need them, declared
 * anew: the machines that test have no CUDA headers. check_headers.c
 * compares with the real ones. */
#ifndef FAKE_CUDA_API_TYPES_H
#define FAKE_CUDA_API_TYPES_H

#include <stddef.h>
#include <stdint.h>

enum {
#define FAKE_VALUE(name, value) name = value,
#include "values.def"
#undef FAKE_VALUE
};

/* Enumerations are passed as ints. */
typedef int CUresult, CUdevice_attribute, CUstreamCaptureMode, CUstreamCaptureStatus,
    CUfunction_attribute, CUmemorytype, CUgraphNodeType;

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUarray_st *CUarray;
typedef struct CUkern_st *CUkernel;

typedef struct {
    CUfunction func;
    unsigned int gridDimX, gridDimY, gridDimZ;
    unsigned int blockDimX, blockDimY, blockDimZ;
    unsigned int sharedMemBytes;
    void **kernelParams;
    void **extra;
    CUkernel kern;
    CUcontext ctx;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
    CUdeviceptr dst;
    size_t pitch;
    unsigned int value, elementSize;
    size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;

typedef struct {
    size_t srcXInBytes, srcY, srcZ, srcLOD;
    CUmemorytype srcMemoryType;
    const void *srcHost;
    CUdeviceptr srcDevice;
    CUarray srcArray;
    void *reserved0;
    size_t srcPitch, srcHeight;
    size_t dstXInBytes, dstY, dstZ, dstLOD;
    CUmemorytype dstMemoryType;
    void *dstHost;
    CUdeviceptr dstDevice;
    CUarray dstArray;
    void *reserved1;
    size_t dstPitch, dstHeight;
    size_t WidthInBytes, Height, Depth;
} CUDA_MEMCPY3D;

typedef int nvrtcResult;
typedef struct _nvrtcProgram *nvrtcProgram;

typedef int cublasStatus_t, cublasComputeType_t, cudaDataType_t, cublasLtMatrixLayoutAttribute_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t,
    cublasLtMatmulAlgoConfigAttributes_t, cublasLtMatmulAlgoCapAttributes_t, libraryPropertyType;
typedef CUstream cudaStream_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct {
    uint64_t data[8];
} cublasLtMatrixLayoutOpaque_t, cublasLtMatmulAlgo_t, cublasLtMatmulPreferenceOpaque_t;
typedef struct {
    uint64_t data[32];
} cublasLtMatmulDescOpaque_t;
typedef cublasLtMatrixLayoutOpaque_t *cublasLtMatrixLayout_t;
typedef cublasLtMatmulPreferenceOpaque_t *cublasLtMatmulPreference_t;
typedef cublasLtMatmulDescOpaque_t *cublasLtMatmulDesc_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

#endif
