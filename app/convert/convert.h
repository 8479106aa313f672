// Weights from and to Hugging Face: which way, and from where to where.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace pptrain::app {

struct ConvertArguments {
  std::string from, to;
  std::string dtype;        // fp32 | bf16 | fp16; "": left open
  double max_shard_gb = 0;  // 1e9 bytes; 0: left open
  std::string tokenizer;    // tokenizer.json, or a folder with one
  bool overwrite = false;
};

// A Hugging Face directory becomes a checkpoint, a checkpoint (a step folder; the newest sound one in a
// folder of them, or in a run's folder) a Hugging Face directory. `to` appears whole or not at all. Returns
// lines for people, the first of which says what was done. Throws UsageError where the arguments do not
// serve, Error where what is read is damaged or cannot be converted.
std::vector<std::string> convert(const ConvertArguments& arguments);

}  // namespace pptrain::app
