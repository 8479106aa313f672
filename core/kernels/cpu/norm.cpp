#include <vector>

#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {
namespace {

// delta and sum: both or none.
void run_rms_norm(const Tensor& x, const Tensor& delta, const Tensor& weight, double eps, const Tensor& sum,
                  Tensor& y, Tensor& rstd) {
  by_type(x, [&]<class T>(T) {
    const RmsNormArgs<T> args{.x = in<T>(x),
                              .added = in<T>(delta),
                              .weight = in<float>(weight),
                              .eps = static_cast<float>(eps),
                              .sum = out<T>(sum),
                              .out = out<T>(y),
                              .rstd = out<float>(rstd),
                              .dim = x.size(1)};
    for_rows(typed<T>(loops()).rms_norm, args, x.size(0), x.size(1));
  });
}

template <class T>
HeadsView<T> heads_view(const Tensor& x, T* data) {
  return {.data = data, .stride_token = x.stride(0), .stride_head = x.stride(1)};
}

template <class T>
NormRopeArgs<T> norm_rope_args(const Tensor& x, const std::optional<Tensor>& weight, const RopeTable& rope,
                               const Tensor& positions, const Tensor& result, const Tensor& rstd) {
  return {.x = heads_view(x, in<T>(x)),
          .out = heads_view(result, out<T>(result)),
          .weight = in<float>(weight),
          .rstd = out<float>(rstd),
          .cos = in<float>(rope.cos),
          .sin = in<float>(rope.sin),
          .positions = in<int32_t>(positions),
          .tokens = x.size(0),
          .heads = x.size(1),
          .head_dim = x.size(2)};
}

}  // namespace

void rms_norm(const Tensor& x, const Tensor& weight, double eps, Tensor& y, Tensor& rstd) {
  run_rms_norm(x, {}, weight, eps, {}, y, rstd);
}

void add_rms_norm(const Tensor& x, const Tensor& delta, const Tensor& weight, double eps, Tensor& sum,
                  Tensor& y, Tensor& rstd) {
  run_rms_norm(x, delta, weight, eps, sum, y, rstd);
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                       const std::optional<Tensor>& residual_grad, Tensor& dx, Tensor& weight_grad) {
  by_type(x, [&]<class T>(T) {
    const RmsNormArgs<T> args{.dy = in<T>(dy),
                              .x = in<T>(x),
                              .added = in<T>(residual_grad),
                              .weight = in<float>(weight),
                              .out = out<T>(dx),
                              .rstd = out<float>(rstd),
                              .dim = x.size(1)};
    blocked_sum(x.size(0), x.size(1), out<float>(weight_grad), [&](float* sum, int64_t first, int64_t last) {
      typed<T>(loops()).rms_norm_backward(args, sum, first, last);
    });
  });
}

void norm_rope(const std::vector<HeadsPart>& parts, double eps, const RopeTable& rope,
               const Tensor& positions) {
  for (const HeadsPart& part : parts) {
    by_type(part.x, [&]<class T>(T) {
      NormRopeArgs<T> args = norm_rope_args<T>(part.x, part.weight, rope, positions, part.y, part.rstd);
      args.eps = static_cast<float>(eps);
      for_rows(typed<T>(loops()).norm_rope, args, args.tokens, args.heads * args.head_dim);
    });
  }
}

void norm_rope_backward(const std::vector<HeadsGradient>& parts, const RopeTable& rope,
                        const Tensor& positions) {
  for (const HeadsGradient& part : parts) {
    by_type(part.dy, [&]<class T>(T) {
      NormRopeArgs<T> args =
          norm_rope_args<T>(part.weight ? part.x : part.dy, part.weight, rope, positions, part.dx, part.rstd);
      args.dy = heads_view(part.dy, in<T>(part.dy));
      const auto backward = typed<T>(loops()).norm_rope_backward;
      if (!part.weight) {
        parallel_for(args.tokens, row_grain(args.heads * args.head_dim),
                     [&](int64_t first, int64_t last) { backward(args, nullptr, nullptr, first, last); });
        return;
      }
      blocked_sum(args.tokens, args.head_dim, out<float>(*part.weight_grad),
                  [&](float* sum, int64_t first, int64_t last) {
                    std::vector<float> scratch(static_cast<size_t>(args.head_dim));
                    backward(args, scratch.data(), sum, first, last);
                  });
    });
  }
}

void add_norm_kernels() {
  kernels::rms_norm.implement(BackEnd::cpu, rms_norm);
  kernels::add_rms_norm.implement(BackEnd::cpu, add_rms_norm);
  kernels::rms_norm_backward.implement(BackEnd::cpu, rms_norm_backward);
  kernels::norm_rope.implement(BackEnd::cpu, norm_rope);
  kernels::norm_rope_backward.implement(BackEnd::cpu, norm_rope_backward);
}

}  // namespace pptrain::kernels::cpu
