// The weights that a command works on which does not train: of a checkpoint, or of a Hugging Face directory.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"

namespace pptrain::app {

// Does DIR hold a model of Hugging Face, and no checkpoint of ours?
bool is_hf_directory(const std::string& dir);

// The checkpoint that `option` ("--checkpoint") names: a step folder, or the newest sound one of a folder of
// them or of a run. Throws UsageError, which begins with the option, where there is none.
std::filesystem::path named_checkpoint(std::string_view option, const std::string& path);

// The overrides that make a job take model and weights from `checkpoint`, where that is a Hugging Face
// directory; none elsewhere.
std::vector<std::string> hf_overrides(const std::string& checkpoint);

// Fills the model: from `checkpoint`, a step folder, a folder of them or a run's folder; where it is "" or a
// Hugging Face directory, from the newest sound checkpoint in run.dir or, with model.init = "hf" and none
// there, from model.hf_dir. Returns what it was, for people; rank 0 logs it. Nothing is written. Throws
// UsageError where there is nothing to load or the checkpoint is of another model, Error where it is damaged.
// Collective over all ranks, which take what rank 0 finds.
std::string load_weights(RunContext& context, RankModel& model, const std::string& checkpoint);

}  // namespace pptrain::app
