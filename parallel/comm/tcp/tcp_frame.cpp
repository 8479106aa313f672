#include "parallel/comm/tcp/tcp_frame.h"

#include <spdlog/fmt/fmt.h>

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
  std::string result = text.substr(0, max_failure_bytes);
  for (char& c : result) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return result;
}

}  // namespace pptrain::comm
