// What one job says otherwise than another: the job that a checkpoint was saved by and the one that is to go
// on.
#pragma once

#include <string>
#include <vector>

#include "core/config/field.h"
#include "core/config/job_config.h"

namespace pptrain::config {

struct Difference {
  std::string option;  // "train.steps", or a list of tables: "optimizer.groups"
  Effect effect = Effect::course;
  std::string saved, now;  // as TOML; "not set" for an optional without a value
};

// In the order of the options; those of no effect (Effect::none) too. Both jobs are resolved. Paths are
// compared as absolute ones.
std::vector<Difference> differences(const JobConfig& saved, const JobConfig& now);

// "optimizer.lr was 0.001, is 0.0003".
std::string describe(const Difference& difference);

// The job that to_toml wrote, by this version or another one: an option that is missing there, unknown here,
// or has a value that is not taken any more has its default. Paths are as they stand there. `name` stands for
// the text in messages. Throws UsageError if the text is not TOML.
JobConfig read_saved_job(const std::string& toml, const std::string& name);

}  // namespace pptrain::config
