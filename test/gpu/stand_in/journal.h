// The calls of the stand-in for a GPU, one line per call, in the file that PPTRAIN_GPU_JOURNAL names. A line
// is the thread's number in the system, and words.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace stand_in {

void write(const std::string& line);

// A call that a GPU would refuse: written as "error ...", and returned.
cudaError_t refuse(cudaError_t error, const std::string& why);

// "s3": streams are numbered in the order of creation; "s0": the default stream.
std::string name_of(cudaStream_t stream);

// Whether an address is in memory from cudaMalloc.
bool is_on_device(const void* address);

// 80 (A100) or 90 (H200), from PPTRAIN_GPU_CAPABILITY; 90 without it.
int capability();

}  // namespace stand_in
