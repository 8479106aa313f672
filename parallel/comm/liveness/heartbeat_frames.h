// What neighbours on the ring of heartbeats say to each other, as bytes on a stream.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/liveness/activity.h"

namespace pptrain::comm {

// Why the job ends.
struct Verdict {
  int rank = 0;       // that is dead, or has failed
  int code = 1;       // exit code of all ranks
  bool said = false;  // some rank has it on its standard error, or will have
  std::string text;
};

// A list of what the ranks do that goes once round the ring; each rank adds itself.
struct RollCall {
  int origin = 0;
  uint32_t number = 0;  // of the origin's roll calls
  std::vector<RankState> states;
};

struct Frame {
  enum class Kind : uint32_t { beat, verdict, roll_call, goodbye, summons };
  Kind kind = Kind::beat;
  std::string body;
};

// Texts are cut to 4 KiB.
std::string encode_beat(const Activity::State& state);
std::string encode(const Verdict& verdict);
std::string encode(const RollCall& call);
std::string encode(Frame::Kind kind);  // of a frame without a body

// Nothing if the body is not what encode makes.
std::optional<Activity::State> decode_beat(std::string_view body);
std::optional<Verdict> decode_verdict(std::string_view body);
std::optional<RollCall> decode_roll_call(std::string_view body);

// Takes the frame that `stream` begins with, if it is whole. Throws Error if the stream is not one of frames.
std::optional<Frame> take_frame(std::string& stream);

}  // namespace pptrain::comm
