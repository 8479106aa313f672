// Replaces LibTorch's header of this name: each ATen/ops/NAME.h includes it and none of them uses it. The
// original includes lists of tensors, and through them IValue and TorchScript's types: 2 s per compilation. A
// file that needs lists of tensors includes <ATen/core/IListRef.h> itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>
