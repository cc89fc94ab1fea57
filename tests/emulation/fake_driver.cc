// SPDX-License-Identifier: Apache-2.0
// A stand-in for the driver's library, libcuda.so.1, where there is none: it has no GPU, and takes
// kernels that are loaded without running them. The real cuDNN, which looks for the driver before
// it compiles, can so be asked what it would do on a GPU. Thread-safety: no state.
extern "C" {

// CUDA_ERROR_STUB_LIBRARY.
#define FAKE_ABSENT(name) \
  int name() { return 34; }
#define FAKE_TAKEN(name) \
  int name() { return 0; }
#define FAKE_GIVEN(name)       \
  int name(void** object) {    \
    static char something[64]; \
    *object = something;       \
    return 0;                  \
  }

FAKE_GIVEN(cuLibraryLoadData)
FAKE_GIVEN(cuLibraryGetKernel)
FAKE_TAKEN(cuLibraryUnload)
FAKE_TAKEN(cuKernelSetAttribute)
FAKE_TAKEN(cuKernelGetAttribute)
FAKE_ABSENT(cuCtxGetCurrent)
FAKE_ABSENT(cuCtxGetDevice)
FAKE_ABSENT(cuCtxGetLimit)
FAKE_ABSENT(cuCtxPopCurrent)
FAKE_ABSENT(cuCtxPushCurrent)
FAKE_ABSENT(cuDeviceGet)
FAKE_ABSENT(cuDeviceGetAttribute)
FAKE_ABSENT(cuDeviceGetCount)
FAKE_ABSENT(cuDevicePrimaryCtxRelease)
FAKE_ABSENT(cuDevicePrimaryCtxReset)
FAKE_ABSENT(cuDevicePrimaryCtxRetain)
FAKE_ABSENT(cuDriverGetVersion)
FAKE_ABSENT(cuFuncGetAttribute)
FAKE_ABSENT(cuFuncSetAttribute)
FAKE_ABSENT(cuGetErrorName)
FAKE_ABSENT(cuGetErrorString)
FAKE_ABSENT(cuGetProcAddress)
FAKE_ABSENT(cuGetProcAddress_v2)
FAKE_ABSENT(cuInit)
FAKE_ABSENT(cuLaunchCooperativeKernel)
FAKE_ABSENT(cuLaunchKernel)
FAKE_ABSENT(cuLaunchKernelEx)
FAKE_ABSENT(cuLibraryLoadFromFile)
FAKE_ABSENT(cuLinkAddData)
FAKE_ABSENT(cuLinkAddData_v2)
FAKE_ABSENT(cuLinkAddFile_v2)
FAKE_ABSENT(cuLinkComplete)
FAKE_ABSENT(cuLinkCreate)
FAKE_ABSENT(cuLinkCreate_v2)
FAKE_ABSENT(cuLinkDestroy)
FAKE_ABSENT(cuMemcpyDtoH_v2)
FAKE_ABSENT(cuModuleGetFunction)
FAKE_ABSENT(cuModuleGetGlobal_v2)
FAKE_ABSENT(cuModuleLoadData)
FAKE_ABSENT(cuModuleLoadDataEx)
FAKE_ABSENT(cuModuleLoadFatBinary)
FAKE_ABSENT(cuModuleUnload)
FAKE_ABSENT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
FAKE_ABSENT(cuOccupancyMaxPotentialClusterSize)
FAKE_ABSENT(cuStreamGetCtx)
FAKE_ABSENT(cuStreamSynchronize)
FAKE_ABSENT(cuTensorMapEncodeTiled)

}  // extern "C"
