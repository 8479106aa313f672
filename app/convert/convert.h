// Weights from and to Hugging Face.
#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pptrain::app {

// What is left open is as it was in the directory that the checkpoint was made of, or else the default.
struct ConvertArguments {
  std::string from, to;
  std::optional<at::ScalarType> dtype = {};  // float32, bfloat16 or float16; default: float32
  double max_shard_gb = 0;                   // 1e9 bytes; 0: left open, whose default is transformers'
  std::string tokenizer = {};                // tokenizer.json, or a folder with one; default: the job's
  bool overwrite = false;
  bool merge = false;  // a checkpoint of adapters becomes a whole model
};

// A Hugging Face directory becomes a checkpoint, a checkpoint (a step folder; the newest sound one in a
// folder of them, or in a run's folder) a Hugging Face directory. `to` appears whole or not at all. Returns
// lines for people, the first of which says what was done, the others what was left out. Throws UsageError
// where the arguments do not serve, Error where what is read is damaged or cannot be converted.
std::vector<std::string> convert(const ConvertArguments& arguments);

// --- The steps of convert(), whose results are its lines. Each writes into the empty folder `folder`.

// The checkpoint of step 0: the directory's weights as float32 under the names of our parameters, and under
// hf/ all that to_hf needs to write the directory again byte for byte (hf_companions.h). Weights are read a
// piece at a time. Throws UsageError where config.json describes no model of ours, Error that names file and
// tensor where the weights are not the model's, or cannot be kept exactly.
std::vector<std::string> from_hf(const std::filesystem::path& hf_dir, const std::filesystem::path& folder);

// The directory, from a checkpoint of any layout; of one with adapters, unless they are to be merged, what
// to_peft writes. A checkpoint that was made of a directory (from_hf), and
// nothing asked for: that directory again, byte for byte. Else config.json, generation_config.json, the
// tokenizer's files and safetensors of one tensor a parameter. A parameter at a time is in memory. Throws
// UsageError where the arguments or the saved job do not serve, Error that names file and tensor where the
// checkpoint is damaged or is not of its job's model.
std::vector<std::string> to_hf(const std::filesystem::path& step_folder, const ConvertArguments& arguments,
                               const std::filesystem::path& folder);

// The adapters of a checkpoint as peft has them: adapter_config.json and adapter_model.safetensors.
std::vector<std::string> to_peft(const std::filesystem::path& step_folder, const ConvertArguments& arguments,
                                 const std::filesystem::path& folder);

// The files, relative, that a checkpoint carries along: what to_hf writes again beside weights. None for one
// that was made otherwise.
std::set<std::string> carried_names(const std::filesystem::path& step_folder);

}  // namespace pptrain::app
