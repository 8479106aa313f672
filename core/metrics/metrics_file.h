// What lies in metrics.jsonl when a run starts, and how lines make room for those to come: nothing is
// deleted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace pptrain::metrics {

// Hears of what was moved, and of lines that are no records.
using Report = std::function<void(const std::string&)>;

// Whether `file` tells of any step. False where there is none. Throws Error where it cannot be read.
bool has_steps(const std::filesystem::path& file);

// Moves the lines of steps after `last`, which a run that goes on from there writes again, to the first free
// of metrics.1.jsonl, .2, ..., after a copy of the header that they belong to. So does a line that is no
// record (cut by a crash): it is reported with file and line, and a run goes on without it. Both files are
// complete and on the device before they get their names. Throws Error that names the file.
void set_aside_after(const std::filesystem::path& file, int64_t last, const Report& report);

// Moves the whole file there, if it tells of any step.
void set_aside_all(const std::filesystem::path& file, const Report& report);

}  // namespace pptrain::metrics
