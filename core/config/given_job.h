// A job as it was given, in addition to its meaning: a run keeps it, so that its folder serves any other
// layout.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config/loader.h"

namespace pptrain::config {

struct GivenJob {
  JobConfig job;  // checked and resolved, as of load_job()
  // The keys that the file, those that it includes and the overrides gave, and no others, as TOML with
  // absolute paths: read again, it is the same job. Keys of the file that an override left nothing to act on
  // are not among them.
  std::string given;
  std::vector<std::string> notes;  // for the user: paths that are not beside the job's file
};

// As load_job() and parse_job(). `warmup_steps`: what an lr_schedule.warmup_steps that is not given stands
// for; nothing: what follows from train.steps.
GivenJob load_given_job(const std::string& path, std::span<const std::string> overrides, const Hooks& hooks,
                        std::optional<int64_t> warmup_steps = {});
GivenJob parse_given_job(const std::string& text, const std::string& name,
                         std::span<const std::string> overrides, const Hooks& hooks,
                         std::optional<int64_t> warmup_steps = {});

}  // namespace pptrain::config
