#include "core/io/process_space.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <span>
#include <system_error>

#include "core/io/checksum.h"

namespace pptrain::io {

const std::string& process_space() {
  static const std::string space = [] {
    std::string boot;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
    std::error_code ignored;
    const std::string ids = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
    const std::string both = boot + ids;
    return checksum_hex(std::as_bytes(std::span(both))).substr(0, 16);
  }();
  return space;
}

std::string unique_suffix() {
  static std::atomic<int> calls = 0;
  return fmt::format("{}.{}.{}", process_space(), ::getpid(), calls++);
}

}  // namespace pptrain::io
