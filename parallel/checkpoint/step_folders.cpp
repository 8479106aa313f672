#include "parallel/checkpoint/step_folders.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>
#include <system_error>

namespace pptrain::checkpoint {
namespace {
constexpr std::string_view step_prefix = "step_";
}

std::string step_folder_name(int64_t step) {
  return fmt::format("{}{}", step_prefix, step);
}

std::optional<int64_t> parse_step_folder(const std::string& name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + step_prefix.size(), end, step);
  if (error != std::errc() || rest != end || step < 0 || name != step_folder_name(step)) return std::nullopt;
  return step;
}

std::vector<StepFolder> list_step_folders(const std::filesystem::path& root) {
  std::vector<StepFolder> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    const auto step = parse_step_folder(entry.path().filename().string());
    if (step && entry.is_directory(error)) found.push_back({entry.path(), *step});
  }
  std::ranges::sort(found, std::greater{}, &StepFolder::step);
  return found;
}

}  // namespace pptrain::checkpoint
