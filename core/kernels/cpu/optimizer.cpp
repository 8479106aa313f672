#include <algorithm>
#include <mutex>
#include <type_traits>
#include <vector>

#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/exact_sum.h"
#include "core/kernels/kernels.h"
#include "core/kernels/step_scalars.h"

namespace pptrain::kernels::cpu {
namespace {

// Calls body(first, last) over ranges of [0, size) that begin at cache lines: no two threads write to one.
template <class Body>
void for_elements(int64_t size, const Body& body) {
  constexpr int64_t kLine = 16;
  parallel_for((size + kLine - 1) / kLine, row_grain(kLine),
               [&](int64_t first, int64_t last) { body(first * kLine, std::min(size, last * kLine)); });
}

// Calls body(words, first, last) over ranges of [begin, end) whose elements are neighbours in the parameter.
template <class Body>
void for_neighbours(const RoundingBits& rounding, int64_t begin, int64_t end, const Body& body) {
  for (int64_t last = 0; begin < end; begin = last) {
    last = std::min(end, begin + rounding.neighbours(begin));
    body(rounding.words(begin), begin, last);
  }
}

// loop: adamw or lion of the moments' type T.
template <class T>
void step(void (*TypedLoops<T>::*loop)(const StepLoopArgs<T>&, RandomWords, int64_t, int64_t),
          StepScalars (*scalars)(const StepArgs&), const StepPart& part) {
  const StepPrevious previous = part.previous.value_or(StepPrevious{});
  const StepLoopArgs<T> args{.weight = out<float>(part.weight),
                             .grad = in<float>(part.grad),
                             .exp_avg = out<T>(part.exp_avg),
                             .exp_avg_sq = out<T>(part.exp_avg_sq),
                             .compute = out<uint16_t>(part.compute),
                             .previous_weight = out<float>(previous.weight),
                             .previous_exp_avg = out<T>(previous.exp_avg),
                             .previous_exp_avg_sq = out<T>(previous.exp_avg_sq),
                             .scalars = scalars(part.args)};
  const auto run = [&](RandomWords words, int64_t begin, int64_t end) {
    (typed<T>(loops()).*loop)(args, words, begin, end);
  };
  for_elements(part.weight.numel(), [&](int64_t begin, int64_t end) {
    if constexpr (std::is_same_v<T, float>) {
      run({}, begin, end);
    } else {
      for_neighbours(part.rounding, begin, end, run);
    }
  });
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

void adamw(const std::vector<StepPart>& parts) {
  for (const StepPart& part : parts)
    by_type(part.exp_avg, [&]<class T>(T) { step<T>(&TypedLoops<T>::adamw, adamw_scalars, part); });
}

void lion(const std::vector<StepPart>& parts) {
  for (const StepPart& part : parts)
    by_type(part.exp_avg, [&]<class T>(T) { step<T>(&TypedLoops<T>::lion, lion_scalars, part); });
}

void momentum(const Tensor& average, const Tensor& grad, Tensor& next, double beta, double grad_scale) {
  by_type(next, [&]<class T>(T) {
    for_elements(average.numel(), [&](int64_t begin, int64_t end) {
      typed<T>(loops()).momentum(in<float>(average), in<float>(grad), out<T>(next),
                                 static_cast<float>(grad_scale), static_cast<float>(1 - beta), begin, end);
    });
  });
}

void descend(Tensor& weight, const Tensor& direction, const std::optional<Tensor>& compute, double decay,
             double step) {
  by_type(direction, [&]<class T>(T) {
    for_elements(weight.numel(), [&](int64_t begin, int64_t end) {
      typed<T>(loops()).descend(out<float>(weight), in<T>(direction), out<uint16_t>(compute),
                                static_cast<float>(decay), static_cast<float>(-step), begin, end);
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
