// Stands before LibTorch's header of this name, which each ATen/ops/NAME.h includes and none of them uses. LibTorch's
// includes lists of tensors, and through them IValue and the types of TorchScript: 2 s of every compilation.
// A file that needs lists of tensors includes <ATen/core/IListRef.h> itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
