// Marks a function of a header that both nvcc, for host and device, and a C++ compiler take.
#pragma once

#ifdef __CUDACC__
#define PPTRAIN_HOST_DEVICE __host__ __device__
#else
#define PPTRAIN_HOST_DEVICE
#endif
