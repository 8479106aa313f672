// The names in a folder of checkpoints: whoever makes or reads one does it here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pptrain::checkpoint {

inline constexpr const char* temporary_prefix = ".tmp_";
inline constexpr const char* latest_name = "latest";
inline constexpr const char* best_name = "best";  // that of the lowest validation loss

// "step_17".
std::string step_folder_name(int64_t step);
// The step of a name that step_folder_name gives; nothing for others, "step_007" and "step_best" among them.
std::optional<int64_t> parse_step_folder(const std::string& name);

// "diverged_step_17": what a run that diverged had come to. No run goes on from it by itself.
std::string diverged_folder_name(int64_t step);

// The name of a step's folder that a file such as `latest` holds; "" where it holds none.
std::string name_in(const std::filesystem::path& file);

struct StepFolder {
  std::filesystem::path path;
  int64_t step = 0;
};
// Those under `root`, sound or not, the highest step first. Empty if `root` is no folder. Throws Error where
// it is one that cannot be read.
std::vector<StepFolder> list_step_folders(const std::filesystem::path& root);

// Where a run was killed as it replaced a step's folder on a file system that cannot exchange two names, the
// old folder lies beside its place (io::rename_folder_synced): gives it its name again, if nothing has it.
// Reports what it did and what it could not do. By the one process that writes below `root`.
void take_back_replaced(const std::filesystem::path& root,
                        const std::function<void(const std::string&)>& report);

}  // namespace pptrain::checkpoint
