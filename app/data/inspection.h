// What a run would find wrong with its files, found before it starts.
#pragma once

#include <string>
#include <vector>

#include "app/plan/plan.h"
#include "core/config/loader.h"

namespace pptrain::app {

// Reports data that the job cannot be trained or validated on: no such files, files of another format,
// token ids outside of the vocabulary (a few places are looked at), fewer tokens than a sample needs, no
// token to learn.
void inspect_data(const Plan& plan, const config::ReportConflict& report);

// What is allowed, but seldom meant: files to validate on that are trained on too; ids of 4 bytes that are
// read as ids of 2; conversations written otherwise than by the model's own chat template. Of data that
// inspect_data() found sound.
std::vector<std::string> data_warnings(const config::JobConfig& job);

// Texts with documents without a token to learn, found in a part of them: a start counts them all.
std::vector<std::string> target_warnings(const config::JobConfig& job);

// What the model's directory has otherwise than config.json says, or than can be exported. Of a plan that
// inspect_all() found sound.
std::vector<std::string> model_warnings(const Plan& plan);

// What inspect_data() reports, and what keeps the run from starting or from saving: weights that model.hf_dir
// lacks, a path to resume from without a checkpoint, a run.dir that cannot be written.
void inspect_all(const Plan& plan, const config::ReportConflict& report);

}  // namespace pptrain::app
