#include "parallel/comm/liveness/heartbeat_frames.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/error.h"

namespace pptrain::comm {
namespace {

constexpr uint32_t frame_magic = 0x70706862;
constexpr size_t max_text = 4096;
constexpr size_t max_body = size_t{16} << 20;  // a roll call of some 10,000 ranks is 1 MiB

struct Header {
  uint32_t magic = frame_magic;
  uint32_t kind = 0;
  uint64_t bytes = 0;
};

class Packer {
 public:
  template <typename T>
  Packer& number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Packer& string(std::string_view value) {
    value = value.substr(0, max_text);
    number(static_cast<uint32_t>(value.size()));
    text_.append(value);
    return *this;
  }
  Packer& state(const Activity::State& state) {
    return number(state.doing).number(state.seconds).string(state.text);
  }
  std::string frame(Frame::Kind kind) const {
    const Header header{.kind = static_cast<uint32_t>(kind), .bytes = text_.size()};
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + text_;
  }

 private:
  std::string text_;
};

// Reads what Packer wrote; after the first thing that is not there, `good` is false and all values are empty.
class Unpacker {
 public:
  explicit Unpacker(std::string_view text) : text_(text) {}

  template <typename T>
  T number() {
    T value{};
    if (!take(sizeof(T))) return value;
    std::memcpy(&value, text_.data() - sizeof(T), sizeof(T));
    return value;
  }
  std::string string() {
    const auto size = number<uint32_t>();
    if (size > max_text || !take(size)) {
      good_ = false;
      return {};
    }
    return std::string(text_.data() - size, size);
  }
  Activity::State state() {
    Activity::State state;
    const auto doing = number<uint8_t>();
    if (doing > static_cast<uint8_t>(ActivityKind::storage)) good_ = false;
    state.doing = static_cast<ActivityKind>(doing);
    state.seconds = number<double>();
    if (!std::isfinite(state.seconds)) good_ = false;
    state.text = string();
    return state;
  }
  bool good() const { return good_; }
  bool at_end() const { return text_.empty(); }

 private:
  bool take(size_t bytes) {
    good_ = good_ && bytes <= text_.size();
    if (good_) text_.remove_prefix(bytes);
    return good_;
  }

  std::string_view text_;
  bool good_ = true;
};

template <typename T>
std::optional<T> if_whole(const Unpacker& in, T value) {
  if (!in.good() || !in.at_end()) return std::nullopt;
  return value;
}

}  // namespace

std::string encode_beat(const Activity::State& state) {
  return Packer().state(state).frame(Frame::Kind::beat);
}

std::string encode(const Verdict& verdict) {
  return Packer()
      .number(int32_t{verdict.rank})
      .number(static_cast<uint8_t>(verdict.code))
      .number(static_cast<uint8_t>(verdict.said))
      .string(verdict.text)
      .frame(Frame::Kind::verdict);
}

std::string encode(const RollCall& call) {
  Packer packer;
  packer.number(int32_t{call.origin}).number(call.number);
  for (const RankState& s : call.states) packer.number(int32_t{s.rank}).string(s.host).state(s.state);
  return packer.frame(Frame::Kind::roll_call);
}

std::string encode(Frame::Kind kind) {
  return Packer().frame(kind);
}

std::optional<Activity::State> decode_beat(std::string_view body) {
  Unpacker in(body);
  Activity::State state = in.state();
  return if_whole(in, std::move(state));
}

std::optional<Verdict> decode_verdict(std::string_view body) {
  Unpacker in(body);
  Verdict verdict;
  verdict.rank = in.number<int32_t>();
  verdict.code = in.number<uint8_t>();
  verdict.said = in.number<uint8_t>() != 0;
  verdict.text = in.string();
  return if_whole(in, std::move(verdict));
}

std::optional<RollCall> decode_roll_call(std::string_view body) {
  Unpacker in(body);
  RollCall call;
  call.origin = in.number<int32_t>();
  call.number = in.number<uint32_t>();
  while (in.good() && !in.at_end()) {
    RankState state;
    state.rank = in.number<int32_t>();
    state.host = in.string();
    state.state = in.state();
    call.states.push_back(std::move(state));
  }
  return if_whole(in, std::move(call));
}

std::optional<Frame> take_frame(std::string& stream) {
  Header header;
  if (stream.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, stream.data(), sizeof(header));
  if (header.magic != frame_magic || header.kind > static_cast<uint32_t>(Frame::Kind::summons) ||
      header.bytes > max_body) {
    throw Error("heartbeats that make no sense");
  }
  if (stream.size() - sizeof(header) < header.bytes) return std::nullopt;
  Frame frame{static_cast<Frame::Kind>(header.kind), stream.substr(sizeof(header), header.bytes)};
  stream.erase(0, sizeof(header) + header.bytes);
  return frame;
}

}  // namespace pptrain::comm
