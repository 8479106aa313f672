// What the stand-in of a GPU is asked for, one line a call: in the file that PPTRAIN_GPU_JOURNAL names. A
// line is the thread's number in the system, and words.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace stand_in {

void write(const std::string& line);

// A call that a GPU would refuse: written as "error ...", and given back.
cudaError_t refuse(cudaError_t error, const std::string& why);

// "s3", numbered as they were made; "s0": the default stream.
std::string name_of(cudaStream_t stream);

// Whether an address lies in memory that cudaMalloc gave.
bool is_on_device(const void* address);

// 80 (A100) or 90 (H200), of PPTRAIN_GPU_CAPABILITY; 90 without it.
int capability();

}  // namespace stand_in
