// The source of a run's frozen weights: its checkpoints name it instead of holding their values.
#pragma once

#include <string>

#include "core/config/job_config.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

struct Base {
  std::string source;       // model.hf_dir, absolute, or "run.seed = 42"; empty if nothing is frozen
  std::string fingerprint;  // of the source's values, in whatever folder (io::fingerprint)

  bool operator==(const Base&) const = default;
};

// Empty unless part of the job's model is frozen. Reads the ends of each tensor in model.hf_dir. Throws Error
// if there are no weights.
Base base_of(const config::JobConfig& job);

// In a checkpoint's layout: "base" and "base_xxh3_128".
Base base_of(const checkpoint::Layout& layout);
void describe_base(const Base& base, checkpoint::Layout& layout);

// Throws UsageError unless a job with this base may take weights from `checkpoint`, whose base is `saved`.
void check_base(const std::string& checkpoint, const Base& saved, const Base& base);

}  // namespace pptrain::app
