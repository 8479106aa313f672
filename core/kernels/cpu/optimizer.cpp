#include <algorithm>
#include <cmath>
#include <vector>

#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {

void adamw(Tensor& weight, const Tensor& grad, Tensor& exp_avg, Tensor& exp_avg_sq,
           const std::optional<Tensor>& compute, const AdamWArgs& args,
           const std::optional<AdamWPrevious>& previous) {
  const auto step = static_cast<double>(args.step);
  const double correction1 = 1 - std::pow(args.beta1, step);
  const double correction2 = 1 - std::pow(args.beta2, step);
  const AdamWLoopArgs loop_args{.weight = out<float>(weight),
                                .grad = in<float>(grad),
                                .exp_avg = out<float>(exp_avg),
                                .exp_avg_sq = out<float>(exp_avg_sq),
                                .compute = compute ? out<uint16_t>(*compute) : nullptr,
                                .previous_weight = previous ? out<float>(previous->weight) : nullptr,
                                .previous_exp_avg = previous ? out<float>(previous->exp_avg) : nullptr,
                                .previous_exp_avg_sq = previous ? out<float>(previous->exp_avg_sq) : nullptr,
                                .grad_scale = static_cast<float>(args.grad_scale),
                                .decay = static_cast<float>(1 - args.lr * args.weight_decay),
                                .one_minus_beta1 = static_cast<float>(1 - args.beta1),
                                .beta2 = static_cast<float>(args.beta2),
                                .one_minus_beta2 = static_cast<float>(1 - args.beta2),
                                .sqrt_correction2 = static_cast<float>(std::sqrt(correction2)),
                                .eps = static_cast<float>(args.eps),
                                .negative_step = static_cast<float>(-args.lr / correction1)};
  constexpr int64_t kLine = 16;  // elements of a cache line: no thread begins inside one
  const int64_t size = weight.numel();
  parallel_for((size + kLine - 1) / kLine, row_grain(kLine), [&](int64_t first, int64_t last) {
    loops().adamw(loop_args, first * kLine, std::min(size, last * kLine));
  });
}

void sum_of_squares(const Tensor& x, const Tensor& result) {
  constexpr int64_t kBlock = int64_t{1} << 16;
  const int64_t size = x.numel();
  const int64_t blocks = (size + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
  parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      sums[static_cast<size_t>(block)] =
          loops().sum_of_squares(in<float>(x) + block * kBlock, std::min(kBlock, size - block * kBlock));
    }
  });
  double total = 0;
  for (const double sum : sums) {
    total += sum;
  }
  *out<double>(result) = total;
}

void add_optimizer_kernels() {
  kernels::adamw.implement(BackEnd::cpu, adamw);
  kernels::sum_of_squares.implement(BackEnd::cpu, sum_of_squares);
}

}  // namespace pptrain::kernels::cpu
