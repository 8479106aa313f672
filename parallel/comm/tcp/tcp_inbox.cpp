#include "parallel/comm/tcp/tcp_inbox.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/host_memory.h"
#include "core/base/text.h"

namespace pptrain::comm {

std::string fault_of(const FrameHeader& header) {
  if (header.magic != frame_magic) return "sent bytes that are no frame";
  switch (header.kind) {
    case FrameKind::data:
      if (header.bytes <= max_frame_bytes) return "";
      return fmt::format("announced a message of {} bytes", header.bytes);
    case FrameKind::goodbye:
      return header.bytes == 0 ? "" : "took leave with a body";
    case FrameKind::failure:
      if (header.bytes <= max_failure_bytes) return "";
      return fmt::format("announced a report of {} bytes", header.bytes);
  }
  return fmt::format("sent a frame of the unknown kind {}", static_cast<uint32_t>(header.kind));
}

std::string failure_text(const std::string& text) {
  return printable(text.substr(0, max_failure_bytes));
}

namespace {

// Bytes that the inbox needs to keep a message, whatever its size: so many small messages are bounded too.
constexpr size_t message_cost = 256;

std::string size_error(size_t bytes, size_t expected) {
  return fmt::format("a message of {} bytes came where {} bytes were expected", bytes, expected);
}

// Takes the first of the channel's queue at `place`; removes the queue when it is empty.
template <typename T>
T take_first(std::map<uint64_t, std::deque<T>>& queues,
             typename std::map<uint64_t, std::deque<T>>::iterator place) {
  T first = std::move(place->second.front());
  place->second.pop_front();
  if (place->second.empty()) queues.erase(place);
  return first;
}

}  // namespace

// A message that came before its receive.
struct TcpInbox::Early {
  std::unique_ptr<char[]> bytes;
  size_t size = 0;
  bool complete = false;
  OperationPtr claimed;  // by a receive posted while the message was coming in

  std::span<const char> content() const { return {bytes.get(), size}; }
};

size_t TcpInbox::quarter_of_memory() {
  static const size_t quarter = std::max(static_cast<size_t>(memory_limit()) / 4, size_t{1} << 30);
  return quarter;
}

TcpInbox::TcpInbox(int peer, Complete complete, Limits limits, Total total)
    : peer_(peer), complete_(std::move(complete)), limits_(limits), total_(std::move(total)) {}

bool TcpInbox::receive(uint64_t channel, OperationPtr operation) {
  const std::lock_guard lock(mutex_);
  const bool was_paused = paused();
  const auto found = early_.find(channel);
  if (found == early_.end()) {
    if (ended_) {
      complete_(*operation, end_reason_, /*peer_ended=*/true);
    } else {
      receives_[channel].push_back(std::move(operation));
      ++waiting_;
    }
    return was_paused;
  }
  const auto message = take_first(early_, found);
  const bool was_crowded = is_crowded();
  early_bytes_ -= message->size + message_cost;
  *total_ -= message->size + message_cost;
  if (message->complete) {
    deliver(message->content(), *operation);
  } else {
    message->claimed = std::move(operation);
    delivering_ = true;
  }
  return was_paused || (was_crowded && !is_crowded());
}

// Copies a whole message into the tensor of its receive.
void TcpInbox::deliver(std::span<const char> message, TcpOperation& operation) {
  const size_t expected = operation.tensor.nbytes();
  if (message.size() != expected) return complete_(operation, size_error(message.size(), expected), false);
  if (expected > 0) std::memcpy(operation.tensor.mutable_data_ptr(), message.data(), expected);
  complete_(operation, "", false);
}

void TcpInbox::hand_over(uint64_t channel, std::span<const char> message) {
  OperationPtr operation;
  {
    const std::lock_guard lock(mutex_);
    const auto found = receives_.find(channel);
    if (found == receives_.end()) {
      auto early = std::make_shared<Early>();
      early->bytes = std::make_unique_for_overwrite<char[]>(message.size());
      std::ranges::copy(message, early->bytes.get());
      early->size = message.size();
      early->complete = true;
      early_[channel].push_back(std::move(early));
      early_bytes_ += message.size() + message_cost;
      *total_ += message.size() + message_cost;
      return;
    }
    operation = take_first(receives_, found);
    --waiting_;
  }
  deliver(message, *operation);
}

std::string TcpInbox::ended_message(int peer) {
  return fmt::format("rank {} has ended, so it takes part in no more messages", peer);
}

bool TcpInbox::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

bool TcpInbox::paused() const {
  const bool holds_much = early_bytes_ > limits_.early || (early_bytes_ > 0 && is_crowded());
  return holds_much && waiting_ == 0 && !delivering_;
}

bool TcpInbox::wants_bytes() const {
  const std::lock_guard lock(mutex_);
  return !paused();
}

std::span<char> TcpInbox::room() {
  if (header_read_ < sizeof(header_)) {
    return {reinterpret_cast<char*>(&header_) + header_read_, sizeof(header_) - header_read_};
  }
  const size_t left = header_.bytes - body_read_;
  if (target_ == nullptr) return {dropped_.data(), std::min(left, dropped_.size())};
  return {target_ + body_read_, left};
}

std::optional<FrameKind> TcpInbox::took(size_t bytes) {
  if (header_read_ < sizeof(header_)) {
    header_read_ += bytes;
    if (header_read_ < sizeof(header_)) return std::nullopt;
    if (const std::string fault = fault_of(header_); !fault.empty()) throw Error(fault);
    begin_body();
  } else {
    body_read_ += bytes;
  }
  return body_read_ == header_.bytes ? std::optional(end_body()) : std::nullopt;
}

void TcpInbox::begin_body() {
  const std::lock_guard lock(mutex_);
  if (ended_) throw Error("went on after it had taken leave");
  if (header_.kind == FrameKind::data) return begin_data();
  text_.resize(header_.bytes);
  target_ = text_.data();
}

void TcpInbox::begin_data() {
  const auto found = receives_.find(header_.channel);
  if (found == receives_.end()) return keep_early();
  OperationPtr operation = take_first(receives_, found);
  --waiting_;
  delivering_ = true;
  const size_t expected = operation->tensor.nbytes();
  if (expected != header_.bytes) return complete_(*operation, size_error(header_.bytes, expected), false);
  operation_ = std::move(operation);
  if (expected > 0) target_ = static_cast<char*>(operation_->tensor.mutable_data_ptr());
}

void TcpInbox::keep_early() {
  const size_t bytes = header_.bytes;
  if (*total_ + bytes + message_cost > limits_.most) {
    const auto gigabytes = [](size_t count) { return static_cast<double>(count) * 1e-9; };
    throw Error(
        fmt::format("sent {:.1f} GB for which this rank has posted no receive; with what others sent so it "
                    "would keep {:.1f} GB, more than a quarter of the memory that it may use",
                    gigabytes(early_bytes_ + bytes), gigabytes(*total_ + bytes)));
  }
  auto message = std::make_shared<Early>();
  message->bytes = std::make_unique_for_overwrite<char[]>(bytes);
  message->size = bytes;
  early_[header_.channel].push_back(message);
  early_bytes_ += bytes + message_cost;
  *total_ += bytes + message_cost;
  message_ = std::move(message);
  target_ = message_->bytes.get();
}

FrameKind TcpInbox::end_body() {
  const FrameKind kind = header_.kind;
  if (kind == FrameKind::data) end_data();
  if (kind == FrameKind::goodbye) end(ended_message(peer_));
  if (kind == FrameKind::failure) text_ = failure_text(text_);
  header_ = {};
  header_read_ = body_read_ = 0;
  target_ = nullptr;
  return kind;
}

void TcpInbox::end_data() {
  const std::lock_guard lock(mutex_);
  delivering_ = false;
  if (const OperationPtr operation = std::exchange(operation_, nullptr)) complete_(*operation, "", false);
  if (const auto message = std::exchange(message_, nullptr)) {
    message->complete = true;
    if (message->claimed) deliver(message->content(), *message->claimed);
  }
}

// Only messages that can no longer come are in error; other ranks go on.
void TcpInbox::end(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  end_reason_ = reason;
  ended_ = true;
  for (const auto& [channel, operations] : receives_) {
    for (const OperationPtr& operation : operations) complete_(*operation, end_reason_, /*peer_ended=*/true);
  }
  receives_.clear();
  waiting_ = 0;
}

}  // namespace pptrain::comm
