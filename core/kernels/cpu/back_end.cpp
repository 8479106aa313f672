// One line a file of this folder: each adds the kernels that it implements.
#include "core/kernels/back_ends.h"

namespace pptrain::kernels::cpu {

void add_expert_kernels();
void add_fp8_kernels();
void add_matmul_kernels();
void add_norm_kernels();
void add_normal_kernels();
void add_optimizer_kernels();
void add_swiglu_kernels();
void add_vocabulary_kernels();

void add_kernels() {
  add_expert_kernels();
  add_fp8_kernels();
  add_matmul_kernels();
  add_norm_kernels();
  add_normal_kernels();
  add_optimizer_kernels();
  add_swiglu_kernels();
  add_vocabulary_kernels();
}

}  // namespace pptrain::kernels::cpu
