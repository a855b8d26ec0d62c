// A CUDA device for a machine that has none: enough of the runtime, cuBLAS and cuDNN for ONNX Runtime to place nodes and to
// choose kernels. Its memory is the host's, its kernels do nothing. Functions that are not here are made by `build.py`.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

namespace {
constexpr int MAJOR = 9, MINOR = 0, SHARED = 227 * 1024, THREADS = 1024;
constexpr size_t MEMORY = size_t(80) << 30;

cudaError_t reserve(void** out, size_t bytes) {  // zeros: results of kernels that did not run are read as sizes
  size_t whole = (bytes + 256) & ~size_t(255);
  *out = aligned_alloc(256, whole);
  if (!*out) return cudaErrorMemoryAllocation;
  memset(*out, 0, whole);
  return cudaSuccess;
}

cudaError_t release(void* memory) {
  free(memory);
  return cudaSuccess;
}

template <class T>
cudaError_t give(T* out, T value) {
  *out = value;
  return cudaSuccess;
}
}  // namespace

extern "C" {

// the device: compute capability 9.0

cudaError_t cudaGetDevice(int* device) { return give(device, 0); }
cudaError_t cudaGetDeviceCount(int* count) { return give(count, 1); }
cudaError_t cudaDriverGetVersion(int* version) { return give(version, CUDART_VERSION); }
cudaError_t cudaRuntimeGetVersion(int* version) { return give(version, CUDART_VERSION); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  strcpy(p->name, "stand-in");
  p->major = MAJOR, p->minor = MINOR, p->multiProcessorCount = 132, p->warpSize = 32;
  p->totalGlobalMem = MEMORY, p->l2CacheSize = 50 << 20;
  p->sharedMemPerBlock = 48 * 1024, p->sharedMemPerBlockOptin = SHARED, p->sharedMemPerMultiprocessor = SHARED + 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->maxThreadsPerBlock = THREADS, p->maxThreadsPerMultiProcessor = 2 * THREADS;
  for (int i = 0; i < 3; i++) p->maxThreadsDim[i] = i < 2 ? THREADS : 64, p->maxGridSize[i] = i ? 65535 : 0x7fffffff;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: return give(value, MAJOR);
    case cudaDevAttrComputeCapabilityMinor: return give(value, MINOR);
    case cudaDevAttrMultiProcessorCount: return give(value, 132);
    case cudaDevAttrWarpSize: return give(value, 32);
    case cudaDevAttrMaxThreadsPerBlock: return give(value, THREADS);
    case cudaDevAttrMaxThreadsPerMultiProcessor: return give(value, 2 * THREADS);
    case cudaDevAttrMaxSharedMemoryPerBlock: return give(value, 48 * 1024);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return give(value, SHARED);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return give(value, SHARED + 1024);
    default: return give(value, 1);
  }
}

// memory

cudaError_t cudaMemGetInfo(size_t* left, size_t* all) { return *left = *all = MEMORY, cudaSuccess; }
cudaError_t cudaMalloc(void** out, size_t n) { return reserve(out, n); }
cudaError_t cudaMallocHost(void** out, size_t n) { return reserve(out, n); }
cudaError_t cudaHostAlloc(void** out, size_t n, unsigned) { return reserve(out, n); }
cudaError_t cudaMallocFromPoolAsync(void** out, size_t n, cudaMemPool_t, cudaStream_t) { return reserve(out, n); }
cudaError_t cudaFree(void* memory) { return release(memory); }
cudaError_t cudaFreeHost(void* memory) { return release(memory); }
cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { return release(memory); }
cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) { return memcpy(to, from, n), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t) { return memcpy(to, from, n), cudaSuccess; }
cudaError_t cudaMemset(void* to, int byte, size_t n) { return memset(to, byte, n), cudaSuccess; }
cudaError_t cudaMemsetAsync(void* to, int byte, size_t n, cudaStream_t) { return memset(to, byte, n), cudaSuccess; }
cudaError_t cudaMemcpyFromSymbol(void* to, const void*, size_t n, size_t, cudaMemcpyKind) { return memset(to, 0, n), cudaSuccess; }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) { return memset(value, 0, 8), cudaSuccess; }

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t rows, cudaMemcpyKind,
                              cudaStream_t) {
  for (size_t i = 0; i < rows; i++) memcpy((char*)to + i * to_pitch, (const char*)from + i * from_pitch, width);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* memory) {
  *a = {};
  a->type = cudaMemoryTypeDevice, a->devicePointer = const_cast<void*>(memory);
  return cudaSuccess;
}

// kernels and streams

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
  *a = {};
  a->binaryVersion = a->ptxVersion = 10 * MAJOR + MINOR;
  a->maxThreadsPerBlock = THREADS, a->numRegs = 64, a->maxDynamicSharedSizeBytes = SHARED;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t, unsigned) { return give(blocks, 2); }
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t call, void* data) { return call(data), cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) { return give(status, cudaStreamCaptureStatusNone); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return give(ms, 0.01f); }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** entry, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* found) {
  *entry = nullptr;
  if (found) *found = cudaDriverEntryPointSymbolNotFound;
  return cudaErrorNotSupported;
}

// cuBLAS and cuDNN: every product and every graph has one algorithm, which needs no memory

int cublasGetMathMode(void*, int* mode) { return *mode = 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* found) { return *found = 1, 0; }
size_t cudnnGetVersion() { return 92000; }
const char* cudnnGetErrorString(int) { return "the stand-in does not do this"; }
int cudnnBackendCreateDescriptor(int, void** out) { return reserve(out, 64); }
int cudnnBackendGetAttribute(void*, int, int kind, long, long* found, void* out) {  // one element, zero; descriptors stay as they are
  if (found) *found = 1;
  if (out && kind != 15) memset(out, 0, kind == 3 ? 8 : 4);
  return 0;
}
int cudnnDropoutGetStatesSize(void*, size_t* bytes) { return *bytes = 64, 0; }
int cudnnGetRNNTempSpaceSizes(void*, void*, int, void*, size_t* work, size_t* reserved) {
  if (work) *work = 1024;
  if (reserved) *reserved = 0;
  return 0;
}
int cudnnGetReductionWorkspaceSize(void*, void*, void*, void*, size_t* bytes) { return *bytes = 0, 0; }
int cudnnGetRNNWeightParams(void*, void*, int, size_t, const void* space, int, void*, void** matrix, void*, void** vector) {
  *matrix = *vector = const_cast<void*>(space);
  return 0;
}
int cudnnGetTensorNdDescriptor(void*, int, int* kind, int* axes, int* sizes, int* strides) {
  *kind = 0, *axes = 3;
  for (int i = 0; i < 3; i++) sizes[i] = strides[i] = 1;
  return 0;
}
}
