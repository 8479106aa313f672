#include "test/gpu/stand_in/journal.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace stand_in {
namespace {

// Made at the first use: CUDA's libraries call before this library's own statics are made.
std::FILE* file() {
  static std::FILE* const f = [] {
    const char* path = std::getenv("PPTRAIN_GPU_JOURNAL");
    return path == nullptr ? nullptr : std::fopen(path, "a");
  }();
  return f;
}

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

void write(const std::string& line) {
  static std::mutex mutex;
  if (file() == nullptr) return;
  const std::lock_guard lock(mutex);
  std::fprintf(file(), "%d %s\n", static_cast<int>(gettid()), line.c_str());
  std::fflush(file());
}

cudaError_t refuse(cudaError_t error, const std::string& why) {
  write("error " + why);
  last_error = error;
  return error;
}

int capability() {
  static const int value = [] {
    const char* text = std::getenv("PPTRAIN_GPU_CAPABILITY");
    return text == nullptr ? 90 : std::atoi(text);
  }();
  return value;
}

}  // namespace stand_in

extern "C" {

cudaError_t cudaGetLastError() {
  return std::exchange(stand_in::last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  return stand_in::last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "an error of the stand-in GPU";
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the stand-in GPU";
}

}  // extern "C"
