#include "core/kernels/cpu/loops.h"
#include "core/kernels/cpu/parallel.h"
#include "core/kernels/cpu/typed.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cpu {

void swiglu(const Tensor& gate_up, Tensor& y) {
  by_type(y, [&]<class T>(T) {
    const SwigluArgs<T> args{
        .dy = nullptr, .gate_up = in<T>(gate_up), .out = out<T>(y), .y = nullptr, .dim = y.size(1)};
    parallel_for(y.size(0), row_grain(args.dim),
                 [&](int64_t first, int64_t last) { typed<T>(loops()).swiglu(args, first, last); });
  });
}

void swiglu_backward(const Tensor& dy, const Tensor& gate_up, Tensor& dgate_up,
                     const std::optional<Tensor>& y) {
  by_type(dy, [&]<class T>(T) {
    const SwigluArgs<T> args{.dy = in<T>(dy),
                             .gate_up = in<T>(gate_up),
                             .out = out<T>(dgate_up),
                             .y = out<T>(y),
                             .dim = dy.size(1)};
    parallel_for(dy.size(0), row_grain(args.dim),
                 [&](int64_t first, int64_t last) { typed<T>(loops()).swiglu_backward(args, first, last); });
  });
}

void add_swiglu_kernels() {
  kernels::swiglu.implement(BackEnd::cpu, swiglu);
  kernels::swiglu_backward.implement(BackEnd::cpu, swiglu_backward);
}

}  // namespace pptrain::kernels::cpu
