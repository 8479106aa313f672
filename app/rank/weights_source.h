// The weights for a command that does not train: from a checkpoint or a Hugging Face directory.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"

namespace pptrain::app {

// Does DIR hold a Hugging Face model, and no checkpoint of ours?
bool is_hf_directory(const std::string& dir);

// The checkpoint that `option` ("--checkpoint") names: a step folder, or the newest sound one of a folder of
// them or of a run. Throws UsageError, which begins with the option, if there is none.
std::filesystem::path named_checkpoint(std::string_view option, const std::string& path);

// The overrides that make a job take model and weights from `checkpoint`, if that is a Hugging Face
// directory; otherwise none.
std::vector<std::string> hf_overrides(const std::string& checkpoint);

// Fills the model from `checkpoint`: a step folder, a folder of them or a run's folder. If it is "" or a
// Hugging Face directory: from the newest sound checkpoint in run.dir or, with model.init = "hf" and none
// there, from model.hf_dir. Returns a description for people; rank 0 logs it. Writes nothing. Throws
// UsageError if there is nothing to load or the checkpoint has another model, Error if it is damaged.
// Collective over all ranks, which take what rank 0 finds.
std::string load_weights(RunContext& context, RankModel& model, const std::string& checkpoint);

}  // namespace pptrain::app
