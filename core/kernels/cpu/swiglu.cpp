#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/expert_kernels.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {
namespace {

// `like`: y, or dy.
template <class T>
ActivateArgs<T> activate_args(const Tensor& x, Activation activation, const Tensor& like) {
  return {.dy = nullptr,
          .x = in<T>(x),
          .out = nullptr,
          .y = nullptr,
          .activation = activation,
          .gated = x.size(1) != like.size(1),
          .dim = like.size(1)};
}

void run_swiglu(const Tensor& gate_up, const std::optional<Tensor>& weights, Tensor& y) {
  by_type(y, [&]<class T>(T) {
    ActivateArgs<T> args = activate_args<T>(gate_up, Activation::silu, y);
    args.out = out<T>(y);
    args.weights = in<float>(weights);
    for_rows(typed<T>(loops()).swiglu, args, y.size(0), args.dim);
  });
}

void run_swiglu_backward(const Tensor& dy, const Tensor& gate_up, const std::optional<Tensor>& weights,
                         Tensor& dgate_up, const std::optional<Tensor>& dweights,
                         const std::optional<Tensor>& y) {
  by_type(dy, [&]<class T>(T) {
    ActivateArgs<T> args = activate_args<T>(gate_up, Activation::silu, dy);
    args.dy = in<T>(dy);
    args.out = out<T>(dgate_up);
    args.y = out<T>(y);
    args.weights = in<float>(weights);
    args.dweights = out<float>(dweights);
    for_rows(typed<T>(loops()).swiglu_backward, args, dy.size(0), args.dim);
  });
}

void run_activate(const Tensor& x, Activation activation, Tensor& y) {
  by_type(y, [&]<class T>(T) {
    ActivateArgs<T> args = activate_args<T>(x, activation, y);
    args.out = out<T>(y);
    for_rows(typed<T>(loops()).activate, args, y.size(0), args.dim);
  });
}

void run_activate_backward(const Tensor& dy, const Tensor& x, Activation activation, Tensor& dx,
                           const std::optional<Tensor>& y) {
  by_type(dy, [&]<class T>(T) {
    ActivateArgs<T> args = activate_args<T>(x, activation, dy);
    args.dy = in<T>(dy);
    args.out = out<T>(dx);
    args.y = out<T>(y);
    for_rows(typed<T>(loops()).activate_backward, args, dy.size(0), args.dim);
  });
}

}  // namespace

void add_swiglu_kernels() {
  kernels::swiglu.implement(BackEnd::cpu,
                            [](const Tensor& gate_up, Tensor& y) { run_swiglu(gate_up, std::nullopt, y); });
  kernels::weighted_swiglu.implement(BackEnd::cpu, [](const Tensor& gate_up, const Tensor& weights,
                                                      Tensor& y) { run_swiglu(gate_up, weights, y); });
  kernels::swiglu_backward.implement(BackEnd::cpu, [](const Tensor& dy, const Tensor& gate_up,
                                                      Tensor& dgate_up, const std::optional<Tensor>& y) {
    run_swiglu_backward(dy, gate_up, std::nullopt, dgate_up, std::nullopt, y);
  });
  kernels::activate.implement(BackEnd::cpu, run_activate);
  kernels::activate_backward.implement(BackEnd::cpu, run_activate_backward);
  kernels::weighted_swiglu_backward.implement(
      BackEnd::cpu, [](const Tensor& dy, const Tensor& gate_up, const Tensor& weights, Tensor& dgate_up,
                       Tensor& dweights, const std::optional<Tensor>& y) {
        run_swiglu_backward(dy, gate_up, weights, dgate_up, dweights, y);
      });
}

}  // namespace pptrain::kernels::cpu
