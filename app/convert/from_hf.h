// A Hugging Face directory as a checkpoint of weights alone.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pptrain::app {

// What a conversion did, for people.
struct Conversion {
  std::string written;             // "llama of 1.24 M parameters, ..."
  std::vector<std::string> notes;  // what was left out
};

// Writes the checkpoint of step 0 into the empty folder `folder`: the directory's weights as float32 under
// the names of our parameters, and under hf/ all that to_hf needs to write the directory again byte for byte
// (carried.h). Weights are read a piece at a time. Throws UsageError where config.json describes no model of
// ours, Error that names file and tensor where the weights are not the model's, or cannot be kept exactly.
Conversion from_hf(const std::filesystem::path& hf_dir, const std::filesystem::path& folder);

}  // namespace pptrain::app
