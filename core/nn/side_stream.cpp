#include "core/nn/side_stream.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace pptrain::nn {
namespace {

c10::impl::VirtualGuardImpl streams_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

}  // namespace

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
SideStream::Mark DeviceSideStream::run(const std::function<void()>& body) {
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

}  // namespace pptrain::nn
