// One line a file of this folder: each adds the kernels that it implements.
#include "core/kernels/back_ends.h"

namespace pptrain::kernels::cuda {

void add_cross_entropy_kernels();
void add_embedding_kernels();
void add_expert_kernels();
void add_fp8_kernels();
void add_gemm_kernels();
void add_norm_kernels();
void add_normal_kernels();
void add_optim_kernels();
void add_rope_kernels();
void add_swiglu_kernels();

void add_kernels() {
  add_cross_entropy_kernels();
  add_embedding_kernels();
  add_expert_kernels();
  add_fp8_kernels();
  add_gemm_kernels();
  add_norm_kernels();
  add_normal_kernels();
  add_optim_kernels();
  add_rope_kernels();
  add_swiglu_kernels();
}

bool is_built() {
  return true;
}

}  // namespace pptrain::kernels::cuda
