// A CUDA driver that runs nothing: Triton's host side, compiled and unchanged, starts kernels on it as on a GPU, and what
// it was asked to start is kept. Built as libcuda.so.1 against the headers that come with Triton.

#include <cuda.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct {
  unsigned grid[3], block[3], shared;
  unsigned long long stream, function;
  unsigned long long params[64]; // zero-extended
  unsigned dependent; // whether it may be started before the launch before it is complete
} StubLaunch;

static StubLaunch last;
static long long launches;
static int param_sizes[64], num_params;
static unsigned long long handles = 1;

// The next launches have so many parameters, of these sizes: CUDA's own call does not say.
EXPORT void stub_expect(int count, const int *sizes) {
  num_params = count;
  memcpy(param_sizes, sizes, count * sizeof(int));
}
EXPORT const StubLaunch *stub_last(void) { return &last; }
EXPORT long long stub_launches(void) { return launches; }

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra) {
  ++launches;
  if (!num_params)
    return CUDA_SUCCESS;
  memset(&last, 0, sizeof last);
  last.grid[0] = config->gridDimX, last.grid[1] = config->gridDimY, last.grid[2] = config->gridDimZ;
  last.block[0] = config->blockDimX, last.block[1] = config->blockDimY, last.block[2] = config->blockDimZ;
  last.shared = config->sharedMemBytes;
  last.stream = (unsigned long long)config->hStream;
  last.function = (unsigned long long)f;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      last.dependent = config->attrs[i].value.programmaticStreamSerializationAllowed;
  for (int i = 0; i < num_params; ++i)
    memcpy(&last.params[i], params[i], param_sizes[i]);
  return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image) {
  *module = (CUmodule)handles++;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name) {
  *f = (CUfunction)handles++; // one for each kernel that was compiled
  return CUDA_SUCCESS;
}
EXPORT CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction f) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 227 * 1024 : 228 * 1024;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  *(CUdeviceptr *)value = pointer;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *which, void **values, CUdeviceptr pointer) {
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = (CUcontext)1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
  *device = 0;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { return CUDA_SUCCESS; }
EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  *context = (CUcontext)1;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuDriverGetVersion(int *version) {
  *version = 12080;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute attribute, int value) { return CUDA_SUCCESS; }
EXPORT CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache config) { return CUDA_SUCCESS; }
EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = "an error of the stub";
  return CUDA_SUCCESS;
}
EXPORT CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction f, const CUlaunchConfig *config) {
  *count = 1;
  return CUDA_SUCCESS;
}
