// Memory on a cache line's boundary, uninitialised, kept for a thread's next GEMM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace pptrain::kernels::cpu {

template <class T>
class Buffer {
 public:
  T* reserve(int64_t elements) {
    constexpr size_t kLine = 64;
    const size_t bytes = (static_cast<size_t>(elements) * sizeof(T) + kLine - 1) / kLine * kLine;
    if (bytes > bytes_) {
      data_.reset(static_cast<T*>(std::aligned_alloc(kLine, bytes)));
      if (data_ == nullptr) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<T, void (*)(void*)> data_{nullptr, std::free};
  size_t bytes_ = 0;
};

}  // namespace pptrain::kernels::cpu
