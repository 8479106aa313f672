#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/coverage.h"
#include "parallel/checkpoint/open_checkpoint.h"

namespace pptrain::checkpoint {
namespace {

namespace fs = std::filesystem;

void verify_file(const fs::path& step_dir, const FileEntry& entry, std::vector<std::string>& problems) {
  try {
    const io::SafetensorsReader file = open_file(step_dir, entry);
    const auto differences = compare(file, entry);
    problems.insert(problems.end(), differences.begin(), differences.end());
    const io::RegularFile input(file.path());
    for (const auto& [name, tensor] : entry.tensors) {
      if (!file.contains(name)) continue;
      try {
        const auto ignored = [](uint64_t, std::span<const std::byte>) {};
        const uint64_t size = file.bytes(name).size();
        if (stream_bytes(input, file, name, 0, size, ignored) != tensor.checksum) throw damaged(file, name);
      } catch (const Error& error) {
        problems.emplace_back(error.what());
      }
    }
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
}

void verify_attachment(const fs::path& step_dir, const Attachment& entry,
                       std::vector<std::string>& problems) {
  try {
    check_attachment(step_dir, entry);
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
}

}  // namespace

std::vector<std::string> verify(const fs::path& step_dir) {
  std::vector<std::string> problems;
  try {
    const Manifest manifest = read_manifest(step_dir);
    for (const FileEntry& entry : manifest.files) verify_file(step_dir, entry, problems);
    for (const Attachment& entry : manifest.attachments) verify_attachment(step_dir, entry, problems);
    if (!problems.empty()) return problems;  // the slices are judged once they are what the files hold
    for (const std::string& problem : coverage_problems(manifest.files)) {
      problems.push_back(fmt::format("'{}': {}", step_dir.string(), problem));
    }
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
  return problems;
}

}  // namespace pptrain::checkpoint
