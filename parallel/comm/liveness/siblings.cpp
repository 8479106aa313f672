#include "parallel/comm/liveness/siblings.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

namespace pptrain::comm {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Those of each of its threads, which is how the kernel lists them.
std::vector<pid_t> children(pid_t parent) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& thread : fs::directory_iterator(fmt::format("/proc/{}/task", parent), error)) {
    std::ifstream list(thread.path() / "children");
    for (pid_t child = 0; list >> child;) found.push_back(child);
  }
  return found;
}

bool same_launch(const Launch& a, const Launch& b) {
  return a.kind == b.kind && a.world_size == b.world_size && a.rendezvous.host == b.rendezvous.host &&
         a.rendezvous.port == b.rendezvous.port && a.rendezvous.prefix == b.rendezvous.prefix;
}

// Its rank, where it is a process of `ours`.
std::optional<int> rank_of(pid_t pid, const Launch& ours) {
  const std::string all = read(fmt::format("/proc/{}/environ", pid));
  const auto get = [&](const char* variable) -> const char* {
    const std::string wanted = std::string(variable) + "=";
    size_t at = 0;
    while (at < all.size() && all.compare(at, wanted.size(), wanted) != 0) {
      at = all.find('\0', at);
      if (at != std::string::npos) ++at;
    }
    return at < all.size() ? all.data() + at + wanted.size() : nullptr;
  };
  try {
    const Launch launch = detect_launch(get);
    if (same_launch(launch, ours)) return launch.rank;
  } catch (const std::exception&) {
    // Not one of ours.
  }
  return std::nullopt;
}

// The state is behind the program's name, which is in brackets and may hold anything.
bool is_stopped(pid_t pid) {
  const std::string text = read(fmt::format("/proc/{}/stat", pid));
  const size_t end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && (text[end + 2] == 'T' || text[end + 2] == 't');
}

}  // namespace

std::vector<Sibling> find_siblings(const Launch& launch) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  std::vector<Sibling> found;
  for (const pid_t pid : children(getppid())) {
    if (pid == getpid() || fs::read_symlink(fmt::format("/proc/{}/exe", pid), error) != program) continue;
    if (const auto rank = rank_of(pid, launch)) found.push_back({*rank, pid, is_stopped(pid)});
  }
  std::ranges::sort(found, {}, &Sibling::rank);
  return found;
}

}  // namespace pptrain::comm
