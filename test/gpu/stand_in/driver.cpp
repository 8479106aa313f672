// A libcuda.so.1 without a GPU. cuDNN compiles its kernels for a described device and hands them to the
// driver, which accepts and forgets them. All else fails, so CUDA's own runtime finds no driver here.
extern "C" {

constexpr int kSuccess = 0;    // CUDA_SUCCESS
constexpr int kNoDriver = 34;  // CUDA_ERROR_STUB_LIBRARY

int cuLibraryLoadData(void** library, const void*) {
  static char one;
  *library = &one;
  return kSuccess;
}

int cuLibraryUnload(void*) {
  return kSuccess;
}

int cuLibraryGetKernel(void** kernel, void*, const char*) {
  static char one;
  *kernel = &one;
  return kSuccess;
}

// LibTorch asks whether a device is in use before it makes streams.
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return kSuccess;
}

// A thread that first calls cuBLAS takes the device's context.
int cuDevicePrimaryCtxRetain(void** context, int) {
  static char one;
  *context = &one;
  return kSuccess;
}

int cuCtxSetCurrent(void*) {
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

// cuDNN 9.19 looks all of these up, and CUDA's runtime the first ones.
#define PPTRAIN_ABSENT(name) \
  int name() {               \
    return kNoDriver;        \
  }
PPTRAIN_ABSENT(cuInit)
PPTRAIN_ABSENT(cuDeviceGet)
PPTRAIN_ABSENT(cuDeviceGetCount)
PPTRAIN_ABSENT(cuCtxGetCurrent)
PPTRAIN_ABSENT(cuCtxGetLimit)
PPTRAIN_ABSENT(cuCtxPopCurrent)
PPTRAIN_ABSENT(cuCtxPushCurrent)
PPTRAIN_ABSENT(cuGetErrorName)
PPTRAIN_ABSENT(cuGetErrorString)
PPTRAIN_ABSENT(cuKernelGetAttribute)
PPTRAIN_ABSENT(cuKernelSetAttribute)
PPTRAIN_ABSENT(cuLaunchCooperativeKernel)
PPTRAIN_ABSENT(cuLaunchKernel)
PPTRAIN_ABSENT(cuLaunchKernelEx)
PPTRAIN_ABSENT(cuLibraryLoadFromFile)
PPTRAIN_ABSENT(cuLinkAddData)
PPTRAIN_ABSENT(cuLinkComplete)
PPTRAIN_ABSENT(cuLinkCreate)
PPTRAIN_ABSENT(cuLinkDestroy)
PPTRAIN_ABSENT(cuOccupancyMaxPotentialClusterSize)
PPTRAIN_ABSENT(cuStreamGetCtx)

}  // extern "C"
