#include "parallel/comm/nccl/ipc_link.h"

#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <iterator>
#include <utility>

#include "core/base/error.h"

namespace pptrain::comm {

auto IpcEnd::make(Handles& handles) -> Events {
  Events events;
  for (size_t i = 0; i < events.size(); ++i) events[i] = device_.make_event(handles[i]);
  return events;
}

auto IpcEnd::open(const Handles& handles) -> Events {
  Events events;
  for (size_t i = 0; i < events.size(); ++i) events[i] = device_.open_event(handles[i]);
  return events;
}

void IpcEnd::await_end(const std::atomic<bool>& other) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  try {
    page_.bell.await([&] { return other.load(); },
                     [&] { return ended_() || std::chrono::steady_clock::now() > deadline; });
  } catch (const LinkEnded&) {
    // The other process is failing too, or gone.
  }
}

IpcSender::IpcSender(IpcPage& page, IpcDevice& device, std::function<bool()> ended)
    : IpcEnd(page, device, std::move(ended)) {
  filled_ = make(page.filled);
}

IpcSender::~IpcSender() {
  if (messages_ > 0) await_end(page_.finished);
  memory_.clear();
  emptied_ = {};
  page_.closed = true;
  page_.bell.ring();
}

void IpcSender::send(const void* from, size_t bytes) {
  const int64_t message = messages_++;
  await([&] { return page_.taken > message - IpcPage::places; });
  page_.bytes[place(message)] = bytes;
  page_.announced = message + 1;
  page_.bell.ring();
  if (bytes > place_bytes_) map_memory();
  const size_t to = place(message);
  device_.wait(emptied_[to]);
  if (bytes > 0) device_.copy(memory_of(to), from, bytes);
  device_.record(filled_[to]);
  page_.sent = message + 1;
  page_.bell.ring();
}

// The receiver allocates larger memory when it comes to the message.
void IpcSender::map_memory() {
  await([&] { return page_.memories > std::ssize(memory_); });
  memory_.push_back(device_.open_memory(page_.memory));
  place_bytes_ = page_.place_bytes;
}

IpcReceiver::IpcReceiver(IpcPage& page, IpcDevice& device, std::function<bool()> ended)
    : IpcEnd(page, device, std::move(ended)) {
  emptied_ = make(page.emptied);
}

IpcReceiver::~IpcReceiver() {
  filled_ = {};
  page_.finished = true;
  page_.bell.ring();
  if (messages_ > 0) await_end(page_.closed);
}

void IpcReceiver::receive(void* to, size_t bytes) {
  const int64_t message = messages_++;
  await([&] { return page_.announced > message; });
  const size_t from = place(message);
  if (page_.bytes[from] != bytes)
    throw Error(fmt::format("a message has {} bytes, but its receiver expects {}", page_.bytes[from], bytes));
  if (bytes > page_.place_bytes) allocate(bytes);
  await([&] { return page_.sent > message; });
  device_.wait(filled_[from]);
  if (bytes > 0) device_.copy(to, memory_of(from), bytes);
  device_.record(emptied_[from]);
  page_.taken = message + 1;
  page_.bell.ring();
}

void IpcReceiver::allocate(size_t bytes) {
  constexpr size_t line = 512;  // what GPUs like copies to be aligned to
  const size_t place_bytes = (bytes + line - 1) / line * line;
  memory_.push_back(device_.allocate(place_bytes * IpcPage::places, page_.memory));
  page_.place_bytes = place_bytes;
  ++page_.memories;
  page_.bell.ring();
}

}  // namespace pptrain::comm
