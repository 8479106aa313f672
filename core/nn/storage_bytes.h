// What tensors hold in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace pptrain::nn {

// Bytes of the memory behind the tensors, whole storages, each counted once. Undefined tensors count nothing.
int64_t storage_bytes(std::span<const at::Tensor> tensors);

}  // namespace pptrain::nn
