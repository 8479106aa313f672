// Weights from and to Hugging Face.
#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pptrain::app {

// An option that is not given is as in the directory from which the checkpoint was made, else the default.
struct ConvertArguments {
  std::string from, to;
  std::optional<at::ScalarType> dtype = {};  // float32, bfloat16 or float16; default: float32
  double max_shard_gb = 0;                   // of a file, 1e9 bytes; 0: not given, default: transformers'
  std::string tokenizer = {};                // tokenizer.json, or a folder with one; default: the job's
  bool overwrite = false;
  bool merge = false;  // a checkpoint of adapters becomes a whole model
  bool ema = false;    // the average of weights takes their place
};

// Converts a Hugging Face directory to a checkpoint, or a checkpoint (a step folder; the newest sound one in
// a folder of them, or in a run's folder) to a Hugging Face directory. `to` appears whole or not at all.
// Returns lines for people: the first says what was done, the others what was left out. Throws UsageError if
// the arguments do not fit, Error if the source is damaged or cannot be converted.
std::vector<std::string> convert(const ConvertArguments& arguments);

// --- The steps of convert(), which return its lines. Each writes into the empty folder `folder`.

// The checkpoint of step 0: the directory's weights as float32 under the names of our parameters. hf/ holds
// all that to_hf needs to write the directory again byte for byte (hf_companions.h). Reads weights in chunks.
// Throws UsageError if config.json describes no model of ours. Throws Error that names file and tensor if the
// weights are not the model's, or cannot be kept exactly.
std::vector<std::string> from_hf(const std::filesystem::path& hf_dir, const std::filesystem::path& folder);

// The directory, from a checkpoint of any layout. If the checkpoint was made from a directory (from_hf) and
// no option is given, that directory again, byte for byte. If it has adapters that are not to be merged, what
// to_peft writes. Else config.json, generation_config.json, the tokenizer's files and safetensors with one
// tensor a parameter. One parameter at a time is in memory. Throws UsageError if the arguments or the saved
// job do not fit. Throws Error that names file and tensor if the checkpoint is damaged or does not match its
// job's model.
std::vector<std::string> to_hf(const std::filesystem::path& step_folder, const ConvertArguments& arguments,
                               const std::filesystem::path& folder);

// The adapters of a checkpoint in peft's format: adapter_config.json and adapter_model.safetensors.
std::vector<std::string> to_peft(const std::filesystem::path& step_folder, const ConvertArguments& arguments,
                                 const std::filesystem::path& folder);

// The files, relative, that a checkpoint carries along, which to_hf writes again in addition to weights. None
// if the checkpoint was not made from a directory.
std::set<std::string> carried_names(const std::filesystem::path& step_folder);

}  // namespace pptrain::app
