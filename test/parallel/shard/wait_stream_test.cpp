#include "parallel/shard/wait_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "test/support/catch.h"

using namespace pptrain;

namespace {

constexpr auto type = c10::DeviceType::PrivateUse1;
constexpr int pool = 4;  // streams

// A device of streams alone. As with CUDA, the pool goes round.
class Streams final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return ::type; }
  c10::Device exchangeDevice(c10::Device device) const override { return device; }
  c10::Device getDevice() const override { return {::type, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return stream(device, current); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return stream(device, ++taken % pool);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream before = stream(next.device(), current);
    current = next.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  static inline int64_t current = 0, taken = 0;

 private:
  static c10::Stream stream(c10::Device device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, device, static_cast<c10::StreamId>(id));
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Streams)

}  // namespace

TEST_CASE("a stream that waits is one and the same, and never the rank's own") {
  shard::WaitStream side;
  CHECK_FALSE(side.get(c10::Device(c10::kCPU)));
  const c10::Device device(type, 0);
  for (int64_t own = 0; own < pool; ++own) {
    Streams::current = own;
    shard::WaitStream one;
    const c10::Stream first = *one.get(device);
    for (int i = 0; i < 3 * pool; ++i) {
      CHECK(one.get(device)->id() != own);
      CHECK(*one.get(device) == first);
    }
  }
}
