// What travels on a link once it is set up: frames, each a header and a body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pptrain::comm {

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

// What no rank would send; "" for a header that makes sense.
std::string fault_of(const FrameHeader& header);

// At most max_failure_bytes of `text`, without characters that steer a terminal.
std::string failure_text(const std::string& text);

}  // namespace pptrain::comm
