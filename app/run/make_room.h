// How a run's folder takes in a start without losing anything of those before it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "app/run/start_choice.h"

namespace pptrain::app {

// Creates run.dir. Throws Error that says what cannot be written.
void create_run_dir(const std::filesystem::path& folder);

// Makes sure that there is a folder for checkpoints and that nothing there or in metrics.jsonl is of a step
// after `kept`, which the run to come goes on from; nothing: of any step. What is moves to checkpoints.1,
// metrics.1.jsonl and so on. Reports what moved. Throws Error that names what cannot be moved.
void make_room(const std::filesystem::path& folder, std::optional<int64_t> kept, const Report& report);

// Moves checkpoints of steps after `kept` (nothing: all) from `root` to the first free of checkpoints.1, .2,
// ... beside it, the newest last: a crash in between leaves a folder whose newest checkpoint is the one it
// was.
void set_aside_checkpoints(const std::filesystem::path& root, std::optional<int64_t> kept,
                           const Report& report);

// Moves `file`, where it is there, to a numbered name: trace.json to trace.1.json.
void make_room_for_file(const std::filesystem::path& file, const Report& report);

// Writes the job to `file`; another one that is there is kept as job.1.toml, job.2.toml, ..., the oldest
// first.
void keep_job(const std::filesystem::path& file, const std::string& job);

}  // namespace pptrain::app
