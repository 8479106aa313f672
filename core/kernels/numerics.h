// Settings of LibTorch's numbers for the whole process, since LibTorch has no narrower place for them.
#pragma once

namespace pptrain::kernels {

// For a run whose ranks compute on `cuda`; on the CPU nothing is changed: its numbers are the same anyway.
// Deterministic: an ATen operator that adds in no fixed order takes another way or throws, FlashAttention-2's
// backward pass adds in a fixed order (it asks nothing but this flag), and cuBLAS gets workspaces of a known
// size: CUBLAS_WORKSPACE_CONFIG=:4096:8, 32 MiB, which is what LibTorch takes on Hopper by itself, unless the
// user has set the variable. Memory is never filled with NaN for it. Otherwise: LibTorch's defaults. In any
// case ATen's own attention never takes cuDNN, of which there is another path here (core/attention/cudnn).
//
// Call it once, before CUDA's libraries start and while the process has one thread: it may set a variable of
// the environment.
void set_numerics(bool cuda, bool deterministic);

}  // namespace pptrain::kernels
