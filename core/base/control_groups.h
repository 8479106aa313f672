// The control groups (containers, Slurm, systemd) that a process of Linux is in.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace pptrain {

enum class GroupVersion { v1, v2 };

// Calls f(folder, version) for the process's groups of that controller, "memory" or "cpu", and for their
// parents: folders where its files may lie. `root`: where proc and sys lie.
void for_control_groups(const std::filesystem::path& root, std::string_view controller,
                        const std::function<void(const std::filesystem::path&, GroupVersion)>& f);

}  // namespace pptrain
