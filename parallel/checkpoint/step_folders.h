// The names in a folder of checkpoints: whoever makes or reads one does it here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pptrain::checkpoint {

inline constexpr const char* temporary_prefix = ".tmp_";
inline constexpr const char* latest_name = "latest";

// "step_17".
std::string step_folder_name(int64_t step);
// The step of a name that step_folder_name gives; nothing for others, "step_007" and "step_best" among them.
std::optional<int64_t> parse_step_folder(const std::string& name);

struct StepFolder {
  std::filesystem::path path;
  int64_t step = 0;
};
// Those under `root`, sound or not, the highest step first. Empty if `root` is no folder. Throws Error where
// it is one that cannot be read.
std::vector<StepFolder> list_step_folders(const std::filesystem::path& root);

}  // namespace pptrain::checkpoint
