#include <cstring>
#include <vector>

#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/matmul.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/expert_kernels.h"

namespace pptrain::kernels::cpu {

void route(const Tensor& logits, const std::optional<Tensor>& bias, bool normalise, Tensor& probabilities,
           Tensor& logsumexp, Tensor& chosen, Tensor& weights) {
  const RouteArgs args{.probabilities = out<float>(probabilities),
                       .logsumexp = out<float>(logsumexp),
                       .chosen = out<int32_t>(chosen),
                       .experts = logits.size(1),
                       .k = chosen.size(1),
                       .normalise = normalise,
                       .logits = in<float>(logits),
                       .bias = in<float>(bias),
                       .weights = out<float>(weights)};
  for_rows(loops().route, args, logits.size(0), args.experts);
}

void route_backward(const Tensor& dweights, const Tensor& probabilities, const Tensor& logsumexp,
                    const Tensor& chosen, const std::optional<Tensor>& slopes, double z_slope,
                    const std::optional<Tensor>& filling, bool normalise, Tensor& dlogits) {
  const RouteArgs args{.probabilities = out<float>(probabilities),
                       .logsumexp = out<float>(logsumexp),
                       .chosen = out<int32_t>(chosen),
                       .experts = probabilities.size(1),
                       .k = chosen.size(1),
                       .normalise = normalise,
                       .dweights = in<float>(dweights),
                       .slopes = in<float>(slopes),
                       .filling = in<bool>(filling),
                       .dlogits = out<float>(dlogits),
                       .z_slope = static_cast<float>(z_slope)};
  for_rows(loops().route_backward, args, dlogits.size(0), args.experts);
}

// A counting sort.
void group_rows(const Tensor& chosen, Tensor& ends, Tensor& order, Tensor& place) {
  const int64_t rows = chosen.numel();
  const auto* const expert = in<int32_t>(chosen);
  auto* const end = out<int32_t>(ends);
  std::vector<int32_t> next(static_cast<size_t>(ends.size(0)) + 1);  // [e + 1]: rows of e
  for (int64_t i = 0; i < rows; ++i) ++next[static_cast<size_t>(expert[i]) + 1];
  for (int64_t e = 0; e < ends.size(0); ++e) {
    end[e] = next[static_cast<size_t>(e) + 1] += next[static_cast<size_t>(e)];
  }
  for (int64_t i = 0; i < rows; ++i) {  // next[e]: where e's next row goes
    const int32_t at = next[static_cast<size_t>(expert[i])]++;
    out<int32_t>(order)[at] = static_cast<int32_t>(i);
    out<int32_t>(place)[i] = at;
  }
}

void gather_rows(const Tensor& x, const Tensor& order, int64_t each, Tensor& result) {
  const auto row_bytes = static_cast<size_t>(x.size(1) * x.element_size());
  const char* const from = in<char>(x);
  char* const to = out<char>(result);
  const auto* const index = in<int32_t>(order);
  parallel_for(order.size(0), row_grain(x.size(1)), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      std::memcpy(to + static_cast<size_t>(row) * row_bytes,
                  from + static_cast<size_t>(index[row] / each) * row_bytes, row_bytes);
    }
  });
}

void sum_rows(const Tensor& x, const Tensor& place, const std::optional<Tensor>& residual, Tensor& result) {
  by_type(x, [&]<class T>(T) {
    const SumRowsArgs<T> args{.x = in<T>(x),
                              .place = in<int32_t>(place),
                              .residual = in<float>(residual),
                              .out = out<T>(result),
                              .k = place.size(1),
                              .dim = x.size(1)};
    for_rows(typed<T>(loops()).sum_rows, args, place.size(0), args.k * args.dim);
  });
}

void add_expert_kernels() {
  kernels::route.implement(BackEnd::cpu, route);
  kernels::route_backward.implement(BackEnd::cpu, route_backward);
  kernels::group_rows.implement(BackEnd::cpu, group_rows);
  kernels::gather_rows.implement(BackEnd::cpu, gather_rows);
  kernels::sum_rows.implement(BackEnd::cpu, sum_rows);
}

}  // namespace pptrain::kernels::cpu
