#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/expert_kernels.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {
namespace {

void run_swiglu(const Tensor& gate_up, const std::optional<Tensor>& weights, Tensor& y) {
  by_type(y, [&]<class T>(T) {
    const ActivateArgs<T> args{
        .x = in<T>(gate_up), .out = out<T>(y), .dim = y.size(1), .weights = in<float>(weights)};
    for_rows(typed<T>(loops()).swiglu, args, y.size(0), args.dim);
  });
}

void run_swiglu_backward(const Tensor& dy, const Tensor& gate_up, const std::optional<Tensor>& weights,
                         Tensor& dgate_up, const std::optional<Tensor>& dweights,
                         const std::optional<Tensor>& y) {
  by_type(dy, [&]<class T>(T) {
    const ActivateArgs<T> args{.dy = in<T>(dy),
                               .x = in<T>(gate_up),
                               .out = out<T>(dgate_up),
                               .y = out<T>(y),
                               .dim = dy.size(1),
                               .weights = in<float>(weights),
                               .dweights = out<float>(dweights)};
    for_rows(typed<T>(loops()).swiglu_backward, args, dy.size(0), args.dim);
  });
}

}  // namespace

void activate(const Tensor& x, Activation activation, Tensor& y) {
  by_type(y, [&]<class T>(T) {
    const ActivateArgs<T> args{.x = in<T>(x),
                               .out = out<T>(y),
                               .activation = activation,
                               .gated = x.size(1) != y.size(1),
                               .dim = y.size(1)};
    for_rows(typed<T>(loops()).activate, args, y.size(0), args.dim);
  });
}

void activate_backward(const Tensor& dy, const Tensor& x, Activation activation, Tensor& dx,
                       const std::optional<Tensor>& y) {
  by_type(dy, [&]<class T>(T) {
    const ActivateArgs<T> args{.dy = in<T>(dy),
                               .x = in<T>(x),
                               .out = out<T>(dx),
                               .y = out<T>(y),
                               .activation = activation,
                               .gated = x.size(1) != dy.size(1),
                               .dim = dy.size(1)};
    for_rows(typed<T>(loops()).activate_backward, args, dy.size(0), args.dim);
  });
}

void add_swiglu_kernels() {
  kernels::swiglu.implement(BackEnd::cpu,
                            [](const Tensor& gate_up, Tensor& y) { run_swiglu(gate_up, std::nullopt, y); });
  kernels::weighted_swiglu.implement(BackEnd::cpu, [](const Tensor& gate_up, const Tensor& weights,
                                                      Tensor& y) { run_swiglu(gate_up, weights, y); });
  kernels::swiglu_backward.implement(BackEnd::cpu, [](const Tensor& dy, const Tensor& gate_up,
                                                      Tensor& dgate_up, const std::optional<Tensor>& y) {
    run_swiglu_backward(dy, gate_up, std::nullopt, dgate_up, std::nullopt, y);
  });
  kernels::activate.implement(BackEnd::cpu, activate);
  kernels::activate_backward.implement(BackEnd::cpu, activate_backward);
  kernels::weighted_swiglu_backward.implement(
      BackEnd::cpu, [](const Tensor& dy, const Tensor& gate_up, const Tensor& weights, Tensor& dgate_up,
                       Tensor& dweights, const std::optional<Tensor>& y) {
        run_swiglu_backward(dy, gate_up, weights, dgate_up, dweights, y);
      });
}

}  // namespace pptrain::kernels::cpu
