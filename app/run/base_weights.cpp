#include "app/run/base_weights.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>

#include "core/base/error.h"
#include "core/io/hf_checkpoint.h"

namespace pptrain::app {
namespace {

constexpr const char* source_key = "base";
constexpr const char* fingerprint_key = "base_xxh3_128";

std::string value_of(const checkpoint::Layout& layout, const char* key) {
  const auto found = layout.find(key);
  return found == layout.end() ? "" : found->second;
}

}  // namespace

Base base_of(const config::JobConfig& job) {
  const auto& groups = job.optimizer.groups;
  if (job.lora.rank <= 0 && std::ranges::none_of(groups, &config::OptimizerGroup::frozen)) return {};
  if (job.model.init != config::Init::hf) {
    std::string random = fmt::format("run.seed = {}", job.run.seed);
    if (const double range = job.model.initializer_range; range != config::ModelSection().initializer_range)
      random += fmt::format(", model.initializer_range = {}", range);
    return {.source = random, .fingerprint = random};
  }
  return {.source = std::filesystem::absolute(job.model.hf_dir).lexically_normal().string(),
          .fingerprint = io::fingerprint(io::HfCheckpoint(job.model.hf_dir))};
}

Base base_of(const checkpoint::Layout& layout) {
  return {.source = value_of(layout, source_key), .fingerprint = value_of(layout, fingerprint_key)};
}

void describe_base(const Base& base, checkpoint::Layout& layout) {
  if (base == Base()) return;
  layout[source_key] = base.source;
  layout[fingerprint_key] = base.fingerprint;
}

void check_base(const std::string& checkpoint, const Base& saved, const Base& base) {
  if (saved.fingerprint == base.fingerprint) return;
  if (saved == Base()) {
    throw UsageError(fmt::format(
        "{} holds a whole model, but frozen weights (lora.rank, optimizer.groups.frozen) come from "
        "model.hf_dir or run.seed alone: pptrain convert --from {} --to DIR, and model.hf_dir = \"DIR\", "
        "model.init = \"hf\"",
        checkpoint, checkpoint));
  }
  if (base == Base()) {
    throw UsageError(fmt::format(
        "{} holds what learned alone; the frozen weights are those of {}. Use the job that saved it, or make "
        "a whole model of both: pptrain convert --merge",
        checkpoint, saved.source));
  }
  throw UsageError(fmt::format("{} was trained on the frozen weights of {} (fingerprint {}), but {} has {}",
                               checkpoint, saved.source, saved.fingerprint, base.source,
                               base.fingerprint == base.source ? "others" : base.fingerprint));
}

}  // namespace pptrain::app
