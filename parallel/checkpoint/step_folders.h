// The names in a folder of checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pptrain::checkpoint {

inline constexpr const char* temporary_prefix = ".tmp_";
inline constexpr const char* latest_name = "latest";

std::string step_folder_name(int64_t step);
// The step of "step_17"; nothing for other names.
std::optional<int64_t> parse_step_folder(const std::string& name);

struct StepFolder {
  std::filesystem::path path;
  int64_t step = 0;
};
// Those under `root`, sound or not, the highest step first. Empty if `root` is no folder.
std::vector<StepFolder> list_step_folders(const std::filesystem::path& root);

}  // namespace pptrain::checkpoint
