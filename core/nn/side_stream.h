// A second stream of the device, on which a pass lets go on what nothing of the pass itself waits for.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace pptrain::nn {

// Used by one thread. What a body reads must stay unchanged, and keep its memory, until a join() of its mark.
class SideStream {
 public:
  using Mark = int64_t;  // grows with each run()

  virtual ~SideStream() = default;

  // Runs `body` so that what it enqueues comes after all that the current stream holds now, and beside what
  // that is given later. Bodies go one after another.
  virtual Mark run(const std::function<void()>& body) = 0;

  // Orders the current stream behind the body of this mark, and those before it.
  virtual void join(Mark mark) = 0;
};

// On a device with streams. Its stream has the lowest priority: blocks of threads of the current stream, if
// that has a higher one, go first.
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

// Where there is nothing beside the current stream (dry runs): a body runs at once.
class NoSideStream final : public SideStream {
 public:
  Mark run(const std::function<void()>& body) override {
    body();
    return 0;
  }
  void join(Mark /*mark*/) override {}
};

}  // namespace pptrain::nn
