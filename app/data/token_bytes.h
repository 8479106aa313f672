// How much text the tokens of a job stand for: what bits per byte are counted with.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/config/job_config.h"
#include "core/data/microbatch.h"

namespace pptrain::app {

class TokenBytes {
 public:
  // Every token is a byte.
  TokenBytes() = default;
  // `bytes`: of each id; those beyond have none.
  explicit TokenBytes(std::vector<uint32_t> bytes) : bytes_(std::move(bytes)) {}

  // Of the labels that count, of microbatches that have labels here, on any device.
  int64_t of_labels(std::span<const data::Microbatch> microbatches) const;

 private:
  std::optional<std::vector<uint32_t>> bytes_;
};

// By the job's tokenizer; nothing where it names none, or one that does not say. Throws Error where it cannot
// be read.
std::optional<TokenBytes> read_token_bytes(const config::JobConfig& job);

}  // namespace pptrain::app
