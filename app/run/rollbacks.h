// How often a run went back because its loss had left its band, and which samples it skipped then
// (train.max_rollbacks): FOLDER/rollbacks.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

inline constexpr const char* rollbacks_name = "rollbacks.json";

struct Rollback {
  int64_t diverged = 0;     // the step at which the run was given up
  int64_t above_since = 0;  // the first step with a loss above the band
  int64_t skip_to = 0;      // the first sample after those that led there
  bool inherited = false;   // of the run from which this one was forked
};

// Their text in the run's folder; "[]" if there were none.
std::string read_rollbacks(const std::filesystem::path& run_dir);
// Throws Error if the text says nothing of the kind.
std::vector<Rollback> parse_rollbacks(const std::string& text);
void add_rollback(const std::filesystem::path& run_dir, const Rollback& rollback);

// The sample with which a start from this state begins. A state from before a loss left its band skips what
// led there; one that was saved after the run had gone back has skipped it. So a run that is killed after
// going back and started again reads the same samples.
int64_t first_sample(const std::vector<Rollback>& rollbacks, const checkpoint::RunState& state);

}  // namespace pptrain::app
