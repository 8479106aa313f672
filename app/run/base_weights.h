// Where the frozen weights of a run come from: its checkpoints name that in place of their values.
#pragma once

#include <string>

#include "core/config/job_config.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

struct Base {
  std::string source;       // model.hf_dir, absolute, or "run.seed = 42"; empty where nothing is frozen
  std::string fingerprint;  // of the source's values, wherever they lie (io::fingerprint)

  bool operator==(const Base&) const = default;
};

// Empty unless part of the job's model does not learn. Reads the ends of each tensor in model.hf_dir. Throws
// Error where there are no weights.
Base base_of(const config::JobConfig& job);

// In a checkpoint's layout: "base" and "base_xxh3_128".
Base base_of(const checkpoint::Layout& layout);
void describe_base(const Base& base, checkpoint::Layout& layout);

// Throws UsageError unless a job with this base may take weights from `checkpoint`, which has that one.
void check_base(const std::string& checkpoint, const Base& saved, const Base& base);

}  // namespace pptrain::app
