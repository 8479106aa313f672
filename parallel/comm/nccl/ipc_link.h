// Messages between two processes of one host through device memory that both have mapped (CUDA IPC).
//
// The receiver owns places for messages. The sender copies a message into the next place, records an event
// behind the copy, and then says so in a page of host memory that both share. The receiver waits for that on
// its host, and only then lets its stream wait for the event. Places become free again in the same way. So a
// device waits for events that are recorded already, and never for what another rank has yet to ask for:
// loading a kernel, which waits for all work of a device, cannot hang. A link itself never waits for its
// device: larger messages get new memory, and the old is freed at the end.
//
// The transfer starts when the sender is ready, not when the receiver wants it, and no multiprocessor is
// held. The same with events and copies in llmq's --memcpy-send-recv; NCCL 2.29 has ncclPutSignal.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "parallel/comm/nccl/shared_page.h"

namespace pptrain::comm {

// What one end of a link asks of its device. Copies and waits are put on the link's own stream.
class IpcDevice {
 public:
  using Handle = std::array<char, 64>;  // names memory or an event to another process
  using Memory = std::shared_ptr<void>;
  using Event = std::shared_ptr<void>;

  virtual ~IpcDevice() = default;
  virtual Memory allocate(size_t bytes, Handle& handle) = 0;
  virtual Memory open_memory(const Handle& handle) = 0;
  virtual Event make_event(Handle& handle) = 0;
  virtual Event open_event(const Handle& handle) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void record(const Event& event) = 0;
  virtual void wait(const Event& event) = 0;
  virtual void synchronize() = 0;  // the host waits for the stream
};

struct IpcPage {
  static constexpr int64_t places = 2;

  PageBell bell;
  // Messages so far: the size is written, the copy is on the stream, the copy out of its place is.
  std::atomic<int64_t> announced, sent, taken;
  std::atomic<int64_t> memories;  // that the receiver has allocated, each larger than the one before
  std::atomic<bool> finished;     // the receiver uses the sender's events no more
  std::atomic<bool> closed;       // the sender uses memory and events of the receiver no more
  std::array<size_t, places> bytes;
  size_t place_bytes;
  IpcDevice::Handle memory;
  std::array<IpcDevice::Handle, places> filled, emptied;  // events
};

// What both ends have. Each end makes its events, then opens the other's once that has made its own.
class IpcEnd {
 public:
  // Both must outlive it. `ended`: true once waits for the other end shall throw LinkEnded.
  IpcEnd(IpcPage& page, IpcDevice& device, std::function<bool()> ended)
      : page_(page), device_(device), ended_(std::move(ended)) {}

 protected:
  using Events = std::array<IpcDevice::Event, IpcPage::places>;
  using Handles = std::array<IpcDevice::Handle, IpcPage::places>;

  Events make(Handles& handles);
  Events open(const Handles& handles);
  void await(const std::function<bool()>& ready) { page_.bell.await(ready, ended_); }
  // For destructors: waits for the other end's, ten seconds at most.
  void await_end(const std::atomic<bool>& other);
  static size_t place(int64_t message) { return static_cast<size_t>(message % IpcPage::places); }
  char* memory_of(size_t place) const {
    return static_cast<char*>(memory_.back().get()) + place * page_.place_bytes;
  }

  IpcPage& page_;
  IpcDevice& device_;
  int64_t messages_ = 0;  // so far
  Events filled_, emptied_;
  std::vector<IpcDevice::Memory> memory_;  // the last is used

 private:
  const std::function<bool()> ended_;
};

class IpcSender : IpcEnd {
 public:
  IpcSender(IpcPage& page, IpcDevice& device, std::function<bool()> ended);
  // Waits until the receiver has all messages.
  ~IpcSender();
  IpcSender(const IpcSender&) = delete;
  IpcSender& operator=(const IpcSender&) = delete;

  void open_events() { emptied_ = open(page_.emptied); }
  // Returns when the copy is on the stream.
  void send(const void* from, size_t bytes);

 private:
  void map_memory();

  size_t place_bytes_ = 0;
};

class IpcReceiver : IpcEnd {
 public:
  IpcReceiver(IpcPage& page, IpcDevice& device, std::function<bool()> ended);
  // All messages are received. Waits until the sender uses nothing of it.
  ~IpcReceiver();
  IpcReceiver(const IpcReceiver&) = delete;
  IpcReceiver& operator=(const IpcReceiver&) = delete;

  void open_events() { filled_ = open(page_.filled); }
  // Returns when the copy out of the message's place is on the stream. Throws Error if the message has
  // another size.
  void receive(void* to, size_t bytes);

 private:
  void allocate(size_t bytes);
};

}  // namespace pptrain::comm
