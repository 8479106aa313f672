// What comes in on one link. Finds for every frame the receive that waits for it, and where its bytes go:
// straight into the tensor of that receive, or into memory of the inbox when the frame comes before its
// receive. Knows no socket, so that any bytes can be put into it.
//
// Nothing is ever written beyond a receive's tensor: a message of another size ends its receive with an
// error, and its bytes are dropped. What came early is bounded: see Limits.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

namespace pptrain::comm {

// What travels on a link once it is set up: frames, each a header and a body.
enum class FrameKind : uint32_t { data, goodbye, failure };

inline constexpr uint32_t frame_magic = 0x70707463;
inline constexpr size_t max_failure_bytes = 4096;        // of the text of a failure
inline constexpr uint64_t max_frame_bytes = 1ULL << 46;  // more than any host can hold

// In the byte order of the ranks, which is the same on all of them.
struct FrameHeader {
  uint32_t magic = frame_magic;
  FrameKind kind = FrameKind::data;
  uint64_t channel = 0;  // of data: the communicator and lane
  uint64_t bytes = 0;    // of the body
};
static_assert(sizeof(FrameHeader) == 24);

// The fault of a header that no rank would send; "" for a header that makes sense.
std::string fault_of(const FrameHeader& header);

// At most max_failure_bytes of `text`, without characters that steer a terminal.
std::string failure_text(const std::string& text);

// One side of a message. `done` and `error` are guarded by the engine.
struct TcpOperation {
  at::Tensor tensor;  // until its owner has seen that the operation is done
  bool done = false;
  bool peer_ended = false;
  std::string error;
};

class TcpInbox {
 public:
  using OperationPtr = std::shared_ptr<TcpOperation>;
  using Complete = std::function<void(TcpOperation&, std::string error, bool peer_ended)>;

  // Bytes of messages that came before their receives, with what it takes to keep them.
  struct Limits {
    // Above this nothing more is read while no receive is posted on the link: the sender waits. A posted
    // receive may wait for what comes later, so then the link is read on.
    size_t early = size_t{1} << 30;
    // For all links together. Above half of it a link that holds something is read no further either; a link
    // whose peer sends more is lost.
    size_t most = quarter_of_memory();
  };
  // A quarter of the memory that this process may use, at least 1 GiB.
  static size_t quarter_of_memory();
  // Bytes that came early, on all links of a process.
  using Total = std::shared_ptr<std::atomic<size_t>>;
  static std::string ended_message(int peer);

  // complete: called for every receive that ends, from receive() or took(); it must not call back.
  // total: counts what this link keeps too.
  TcpInbox(int peer, Complete complete, Limits limits,
           Total total = std::make_shared<std::atomic<size_t>>(0));

  // --- any thread ---
  // True if bytes that were not wanted are wanted now.
  bool receive(uint64_t channel, OperationPtr operation);
  // A message of a peer in this process, copied here. As every message of its: those on the link are of
  // other kinds.
  void hand_over(uint64_t channel, std::span<const char> message);
  // The peer took leave, or cannot be reached.
  bool ended() const;
  // No more messages come: ends the receives that are posted, and those to come. reason: a sentence.
  void end(const std::string& reason);
  const std::string& end_reason() const { return end_reason_; }  // after ended()

  // --- the one thread that reads the link ---
  bool wants_bytes() const;
  // Where the next bytes go; never empty.
  std::span<char> room();
  // So many bytes were put into room(). Throws Error that says what the peer did if no rank would send this;
  // the link is of no use then. Throws std::bad_alloc if memory ends. Returns the kind of the frame that has
  // come whole.
  std::optional<FrameKind> took(size_t bytes);
  // After FrameKind::failure.
  const std::string& failure() const { return text_; }

 private:
  struct Early;  // a message that came before its receive

  bool paused() const;
  bool is_crowded() const { return *total_ > limits_.most / 2; }
  void begin_body();
  void begin_data();
  void keep_early();
  FrameKind end_body();
  void end_data();
  void deliver(std::span<const char> message, TcpOperation& operation);

  const int peer_;
  const Complete complete_;
  const Limits limits_;
  const Total total_;

  mutable std::mutex mutex_;  // guards what follows, up to the frame that is coming in
  // By channel, none of them empty; a channel has the one or the other.
  std::map<uint64_t, std::deque<OperationPtr>> receives_;
  std::map<uint64_t, std::deque<std::shared_ptr<Early>>> early_;
  size_t waiting_ = 0;       // receives in all channels
  size_t early_bytes_ = 0;   // of early messages that no receive has taken
  bool delivering_ = false;  // the body that is coming in has its receive
  bool ended_ = false;
  std::string end_reason_;

  // The frame that is coming in: the reading thread's alone.
  FrameHeader header_;
  size_t header_read_ = 0;
  size_t body_read_ = 0;
  char* target_ = nullptr;  // null: the body is dropped
  OperationPtr operation_;
  std::shared_ptr<Early> message_;
  std::string text_;
  std::array<char, 16 << 10> dropped_{};
};

}  // namespace pptrain::comm
