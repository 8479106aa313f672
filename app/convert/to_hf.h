// A checkpoint as a Hugging Face directory.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "app/convert/from_hf.h"

namespace pptrain::app {

// What is left open is as it was in the directory that the checkpoint was made of, or else the default.
struct HfOptions {
  std::optional<at::ScalarType> dtype;      // float32, bfloat16 or float16; default: float32
  std::optional<uint64_t> max_shard_bytes;  // default: transformers'
  std::string tokenizer;                    // tokenizer.json, or a folder with one; default: the job's
};

// Writes the directory into the empty folder `folder`, from a checkpoint of any layout. A checkpoint that was
// made of a directory (from_hf), and nothing asked for: that directory again, byte for byte. Else
// config.json, generation_config.json, the tokenizer's files and safetensors of one tensor a parameter. A
// parameter at a time is in memory. Throws UsageError where the options or the saved job do not serve, Error
// that names file and tensor where the checkpoint is damaged or is not of its job's model.
Conversion to_hf(const std::filesystem::path& step_folder, const HfOptions& options,
                 const std::filesystem::path& folder);

}  // namespace pptrain::app
