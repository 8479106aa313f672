#include "core/nn/weight_grad_queue.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "core/kernels/expert_kernels.h"
#include "core/kernels/fp8_kernels.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {
namespace {

c10::impl::VirtualGuardImpl streams_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

class DeviceSideStream final : public SideStream {
 public:
  explicit DeviceSideStream(c10::Device device);

  Mark run(const std::function<void()>& body) override;
  void join(Mark mark) override;

 private:
  c10::Event take_event();

  c10::Device device_;
  c10::Stream stream_;
  c10::Event begin_;
  std::deque<c10::Event> ends_;     // of the bodies from `joined_` + 1 on
  std::vector<c10::Event> unused_;  // to be recorded again
  Mark joined_ = 0;
};

DeviceSideStream::DeviceSideStream(c10::Device device)
    : device_(device),
      stream_(streams_of(device).getStreamFromGlobalPool(device, /*isHighPriority=*/false)),
      begin_(device.type()) {}

c10::Event DeviceSideStream::take_event() {
  if (unused_.empty()) return c10::Event(device_.type());
  c10::Event event = std::move(unused_.back());
  unused_.pop_back();
  return event;
}

// A wait is for what an event held when the wait was enqueued, so that events can be recorded again.
DeviceSideStream::Mark DeviceSideStream::run(const std::function<void()>& body) {
  begin_.record(streams_of(device_).getStream(device_));
  begin_.block(stream_);
  {
    const c10::StreamGuard beside(stream_);
    body();
  }
  c10::Event end = take_event();
  end.record(stream_);
  ends_.push_back(std::move(end));
  return joined_ + static_cast<Mark>(ends_.size());
}

void DeviceSideStream::join(Mark mark) {
  while (joined_ < mark && !ends_.empty()) {
    c10::Event end = std::move(ends_.front());
    ends_.pop_front();
    ++joined_;
    if (joined_ == mark) end.block(streams_of(device_).getStream(device_));
    unused_.push_back(std::move(end));
  }
}

}  // namespace

std::unique_ptr<SideStream> make_side_stream(c10::Device device) {
  return std::make_unique<DeviceSideStream>(device);
}

namespace {

// The columns of x in FP8: each has a scale over all rows, which the sum runs over.
Fp8Copy fp8_columns(const at::Tensor& x) {
  Fp8Copy copy{.values = at::empty({x.size(1), x.size(0)}, x.options().dtype(at::kFloat8_e4m3fn)),
               .scales = at::empty({x.size(1)}, x.options().dtype(at::kFloat))};
  kernels::quantize_columns(x, copy.values, copy.scales);
  return copy;
}

}  // namespace

void add_weight_gradient(Weight& weight, const at::Tensor& dy, const at::Tensor& x) {
  if (weight.frozen()) return;
  const bool first = std::exchange(weight.grad_is_unset, false);
  if (weight.grad_in_fp8) {
    const Fp8Copy left = fp8_columns(dy), right = fp8_columns(x);
    kernels::fp8_weight_gradient(left.values, left.scales, right.values, right.scales, !first, weight.grad);
    return;
  }
  (first ? kernels::weight_gradient : kernels::accumulate_weight_gradient)(dy, x, weight.grad);
}

void add_grouped_weight_gradient(Weight& weight, const GroupedRows& dy, const GroupedRows& x,
                                 const at::Tensor& ends) {
  if (weight.frozen()) return;
  const bool first = std::exchange(weight.grad_is_unset, false);
  at::Tensor by_expert = weight.grad.view({ends.size(0), dy.x.size(1), x.x.size(1)});
  (first ? kernels::grouped_weight_gradient : kernels::accumulate_grouped_weight_gradient)(
      dy.x, dy.optional_order(), x.x, x.optional_order(), std::max(dy.each, x.each), ends, by_expert);
}

void add_bias_gradient(Weight& bias, const at::Tensor& dy) {
  if (!bias.frozen()) kernels::accumulate_bias_gradient(dy, bias.grad);
}

void WeightGradQueue::push(HasWeightGradient& layer, std::vector<at::Tensor> operands) {
  if (!layer.learns()) return;
  if (mode_ == Mode::immediate) {
    layer.backward_weight(operands);
    return;
  }
  if (mode_ == Mode::beside) mark_ = side_->run([&layer, operands] { layer.backward_weight(operands); });
  pending_.emplace_back(&layer, std::move(operands));
}

void WeightGradQueue::run() {
  for (auto& [layer, operands] : pending_) {
    layer->backward_weight(operands);
    operands.clear();
  }
  pending_.clear();
}

void WeightGradQueue::join() {
  if (pending_.empty()) return;
  side_->join(mark_);
  pending_.clear();
}

std::vector<at::Tensor> WeightGradQueue::operands() const {
  std::vector<at::Tensor> tensors;
  for (const auto& [layer, operands] : pending_)
    tensors.insert(tensors.end(), operands.begin(), operands.end());
  return tensors;
}

}  // namespace pptrain::nn
