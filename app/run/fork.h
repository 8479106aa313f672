// A run that begins at another run's checkpoint: FOLDER/fork.json says at which.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace pptrain::app {

struct Fork {
  std::filesystem::path run;  // the folder that it comes from, absolute
  int64_t step = 0;           // the checkpoint that it began at
};

inline constexpr const char* fork_name = "fork.json";

// Nothing if the run is no fork, or if the file cannot be read.
std::optional<Fork> read_fork(const std::filesystem::path& run_dir);

// Makes the folder `to` of a run that goes on from the checkpoint of `step` in `run` (nothing: the newest
// sound one). It holds the checkpoint as hard links (copies on another file system), an empty metrics.jsonl,
// fork.json, and job.toml: the job as given that saved the checkpoint, with `to` as its run.dir. The folder
// appears whole or not at all. The other run is not touched, and may be running. Returns the fork. Throws
// UsageError if `to` holds something or there is no such checkpoint, and Error if the checkpoint is damaged
// or nothing can be written.
Fork fork_run(const std::filesystem::path& run, std::optional<int64_t> step, const std::filesystem::path& to);

}  // namespace pptrain::app
