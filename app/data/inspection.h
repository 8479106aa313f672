// Finds faults in a run's files before it starts.
#pragma once

#include <string>
#include <vector>

#include "app/plan/plan.h"
#include "core/config/loader.h"

namespace pptrain::app {

// Reports data on which the job cannot be trained or validated: missing files, files of another format, token
// ids outside the vocabulary (checked at a few places), fewer tokens than a sample needs, no token to learn.
void inspect_data(const Plan& plan, const config::ReportConflict& report);

// Allowed, but seldom meant: validation files that are also trained on; ids of 4 bytes that are read as ids
// of 2; conversations not written by the model's own chat template. For data that inspect_data() found sound.
std::vector<std::string> data_warnings(const config::JobConfig& job);

// Texts with documents without a token to learn, found in a part of them: a start counts all of them.
std::vector<std::string> target_warnings(const config::JobConfig& job);

// Deviations of the model's directory from config.json, or from what can be exported. For a plan that
// inspect_all() found sound.
std::vector<std::string> model_warnings(const Plan& plan);

// Reports what inspect_data() does, and what keeps the run from starting or saving: weights missing in
// model.hf_dir, a path to resume from without a checkpoint, a run.dir that cannot be written.
void inspect_all(const Plan& plan, const config::ReportConflict& report);

}  // namespace pptrain::app
