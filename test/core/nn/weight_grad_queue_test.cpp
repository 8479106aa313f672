#include "core/nn/weight_grad_queue.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "test/core/nn/late_side_stream.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using nn::WeightGradQueue;

namespace {

class SumLayer final : public nn::HasWeightGradient {
 public:
  void backward_weight(std::span<const at::Tensor> operands) override {
    for (const at::Tensor& operand : operands) sum += operand.sum().item<double>();
    ++calls;
  }
  double sum = 0;
  int calls = 0;
};

std::vector<at::Tensor> operands_of(double value) {
  return {at::full({3}, value), at::full({2}, value)};
}

// A device without memory; its streams know which numbered operations have been done before.
class FakeDevice final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType kind = c10::DeviceType::PrivateUse1;
  using Operations = std::set<int>;

  c10::DeviceType type() const override { return kind; }
  c10::Device exchangeDevice(c10::Device /*d*/) const override { return {kind, 0}; }
  c10::Device getDevice() const override { return {kind, 0}; }
  void setDevice(c10::Device /*d*/) const override {}
  void uncheckedSetDevice(c10::Device /*d*/) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Stream getStream(c10::Device /*d*/) const override { return stream(current); }
  c10::Stream getStreamFromGlobalPool(c10::Device /*d*/, bool /*high*/) const override { return stream(1); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    const c10::Stream before = stream(current);
    current = s.id();
    return before;
  }

  void record(void** event, const c10::Stream& s, c10::DeviceIndex /*index*/,
              c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Operations;
    *static_cast<Operations*>(*event) = done[s.id()];
  }
  void block(void* event, const c10::Stream& s) const override {
    const auto& before = *static_cast<Operations*>(event);
    done[s.id()].insert(before.begin(), before.end());
  }
  void destroyEvent(void* event, c10::DeviceIndex /*index*/) const noexcept override {
    delete static_cast<Operations*>(event);
  }

  static void operate(int operation) { done[current].insert(operation); }
  static bool is_behind(c10::StreamId id, int operation) { return done[id].contains(operation); }

 private:
  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kind, 0), id);
  }
  inline static c10::StreamId current = 0;
  inline static std::map<c10::StreamId, Operations> done;
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, FakeDevice);

}  // namespace

TEST_CASE("a queue computes at once, when it is run, or beside until it is joined") {
  SumLayer layer;
  WeightGradQueue now(WeightGradQueue::Mode::immediate);
  now.push(layer, operands_of(1));
  CHECK(layer.sum == 5);
  CHECK(now.size() == 0);

  WeightGradQueue later(WeightGradQueue::Mode::deferred);
  later.push(layer, operands_of(1));
  CHECK(layer.sum == 5);
  CHECK(later.operands().size() == 2);
  later.run();
  CHECK(layer.sum == 10);
  CHECK(later.operands().empty());

  test::LateSideStream side;
  WeightGradQueue first(side), second(side);
  CHECK(first.mode() == WeightGradQueue::Mode::beside);
  std::vector<at::Tensor> operands = operands_of(1);
  const at::Tensor watched = operands[0];
  first.push(layer, operands);
  first.push(layer, operands_of(2));
  second.push(layer, operands_of(100));
  operands.clear();
  CHECK(layer.sum == 10);
  CHECK(first.operands().size() == 4);
  CHECK(watched.use_count() > 1);
  first.join();
  CHECK(layer.sum == 25);  // the second queue's gradients are still in flight
  CHECK(first.operands().empty());
  CHECK(watched.use_count() == 1);
  first.join();
  second.join();
  CHECK(layer.sum == 525);
  CHECK(side.waiting() == 0);
}

TEST_CASE("a side stream comes behind what the current one holds, which comes behind it once it is joined") {
  const auto side = nn::make_side_stream(c10::Device(FakeDevice::kind, 0));
  constexpr c10::StreamId main = 0, beside = 1;
  std::vector<nn::SideStream::Mark> marks;
  for (int i = 0; i < 6; ++i) {
    FakeDevice::operate(i);
    marks.push_back(side->run([&] {
      CHECK(FakeDevice::is_behind(beside, i));
      FakeDevice::operate(100 + i);
    }));
    CHECK(!FakeDevice::is_behind(main, 100 + i));
    if (i == 0) continue;
    side->join(marks[static_cast<size_t>(i) - 1]);  // one late, as a stage's blocks are
    CHECK(FakeDevice::is_behind(main, 100 + i - 1));
    CHECK(!FakeDevice::is_behind(main, 100 + i));
  }
  side->join(marks[2]);  // long past
  CHECK(!FakeDevice::is_behind(main, 105));
  side->join(marks.back());
  CHECK(FakeDevice::is_behind(main, 105));
  FakeDevice::operate(6);
  CHECK(!FakeDevice::is_behind(beside, 6));  // the current stream is the main one again
}
