// Owning handles for CUDA, cuBLAS and NCCL objects in one line each:
//
//     using CudaEvent = CudaHandle<cudaEvent_t, cudaEventDestroy>;
//
// Needs no CUDA header itself. The result of `destroy` is dropped: a destructor has nobody to report it to.
#pragma once

#include <utility>

namespace pptrain {

template <typename T, auto destroy>
class CudaHandle {
 public:
  CudaHandle() = default;
  explicit CudaHandle(T handle) : handle_(handle) {}
  CudaHandle(const CudaHandle&) = delete;
  CudaHandle& operator=(const CudaHandle&) = delete;
  CudaHandle(CudaHandle&& other) noexcept : handle_(other.release()) {}
  CudaHandle& operator=(CudaHandle&& other) noexcept {
    if (this != &other) {
      reset(other.release());
    }
    return *this;
  }
  ~CudaHandle() { reset(); }

  T get() const { return handle_; }
  explicit operator bool() const { return handle_ != T{}; }

  // Where a C function creates the object: `cudaEventCreate(event.receive())`. Destroys what was held before.
  T* receive() {
    reset();
    return &handle_;
  }

  // Gives up ownership.
  T release() { return std::exchange(handle_, T{}); }

  void reset(T handle = T{}) {
    if (T old = std::exchange(handle_, handle); old != T{}) {
      static_cast<void>(destroy(old));
    }
  }

 private:
  T handle_{};
};

}  // namespace pptrain
