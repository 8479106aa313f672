#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/exact_sum.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {
namespace {

// Calls body(first, last) over ranges of [0, size) that begin at cache lines: no two threads write to one.
template <class Body>
void for_elements(int64_t size, const Body& body) {
  constexpr int64_t kLine = 16;
  parallel_for((size + kLine - 1) / kLine, row_grain(kLine),
               [&](int64_t first, int64_t last) { body(first * kLine, std::min(size, last * kLine)); });
}

AdamWLoopArgs loop_args_of(const AdamWPart& part) {
  const AdamWArgs& args = part.args;
  const std::optional<AdamWPrevious>& previous = part.previous;
  const auto step = static_cast<double>(args.step);
  const double correction1 = 1 - std::pow(args.beta1, step);
  const double correction2 = 1 - std::pow(args.beta2, step);
  return {.weight = out<float>(part.weight),
          .grad = in<float>(part.grad),
          .exp_avg = out<float>(part.exp_avg),
          .exp_avg_sq = out<float>(part.exp_avg_sq),
          .compute = out<uint16_t>(part.compute),
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
}

LionLoopArgs loop_args_of(const LionPart& part) {
  const LionArgs& args = part.args;
  const std::optional<LionPrevious>& previous = part.previous;
  return {.weight = out<float>(part.weight),
          .grad = in<float>(part.grad),
          .exp_avg = out<float>(part.exp_avg),
          .compute = out<uint16_t>(part.compute),
          .previous_weight = previous ? out<float>(previous->weight) : nullptr,
          .previous_exp_avg = previous ? out<float>(previous->exp_avg) : nullptr,
          .grad_scale = static_cast<float>(args.grad_scale),
          .decay = static_cast<float>(1 - args.lr * args.weight_decay),
          .one_minus_beta1 = static_cast<float>(1 - args.beta1),
          .one_minus_beta2 = static_cast<float>(1 - args.beta2),
          .negative_lr = static_cast<float>(-args.lr)};
}

// A thread adds its blocks up by itself: exact sums may meet in any order.
void add_squares_of(const Tensor& x, int64_t place, Tensor& sum) {
  const float* const data = in<float>(x);
  const int64_t end = place + x.numel();
  const int64_t first_block = place / squares_block;
  const int64_t blocks = (end + squares_block - 1) / squares_block - first_block;
  std::mutex mutex;
  parallel_for(blocks, row_grain(squares_block), [&](int64_t first, int64_t last) {
    ExactSum own;
    for (int64_t block = first_block + first; block < first_block + last; ++block) {
      const int64_t begin = std::max(place, block * squares_block);
      const int64_t size = std::min(end, (block + 1) * squares_block) - begin;
      own.add(loops().sum_of_squares(data + (begin - place), size));
    }
    const std::lock_guard lock(mutex);
    int64_t* const words = out<int64_t>(sum);
    for (int i = 0; i < exact_words; ++i) words[i] += own.words()[i];
  });
}

}  // namespace

void adamw(const std::vector<AdamWPart>& parts) {
  for (const AdamWPart& part : parts) {
    const AdamWLoopArgs loop_args = loop_args_of(part);
    for_elements(part.weight.numel(),
                 [&](int64_t begin, int64_t end) { loops().adamw(loop_args, begin, end); });
  }
}

void lion(const std::vector<LionPart>& parts) {
  for (const LionPart& part : parts) {
    const LionLoopArgs loop_args = loop_args_of(part);
    for_elements(part.weight.numel(),
                 [&](int64_t begin, int64_t end) { loops().lion(loop_args, begin, end); });
  }
}

void momentum(const Tensor& average, const Tensor& grad, Tensor& next, const MomentumArgs& args) {
  by_type(next, [&]<class T>(T) {
    for_elements(average.numel(), [&](int64_t begin, int64_t end) {
      typed<T>(loops()).momentum(in<float>(average), in<float>(grad), out<T>(next),
                                 static_cast<float>(args.grad_scale), static_cast<float>(1 - args.beta),
                                 begin, end);
    });
  });
}

void descend(Tensor& weight, const Tensor& direction, const std::optional<Tensor>& compute,
             const DescentArgs& args) {
  by_type(direction, [&]<class T>(T) {
    for_elements(weight.numel(), [&](int64_t begin, int64_t end) {
      typed<T>(loops()).descend(out<float>(weight), in<T>(direction), out<uint16_t>(compute),
                                static_cast<float>(args.decay), static_cast<float>(-args.step), begin, end);
    });
  });
}

void add_squares(const std::vector<BufferPart>& parts, Tensor& sum) {
  for (const BufferPart& part : parts) add_squares_of(part.x, part.place, sum);
}

void add_optimizer_kernels() {
  kernels::adamw.implement(BackEnd::cpu, adamw);
  kernels::add_squares.implement(BackEnd::cpu, add_squares);
  kernels::lion.implement(BackEnd::cpu, lion);
  kernels::momentum.implement(BackEnd::cpu, momentum);
  kernels::descend.implement(BackEnd::cpu, descend);
}

}  // namespace pptrain::kernels::cpu
