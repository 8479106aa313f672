// What a job may well mean, but most do not.
#pragma once

#include <string>
#include <vector>

#include "core/config/job_config.h"

namespace pptrain::config {

// One sentence each, of a resolved job; none where there is nothing to say.
std::vector<std::string> warnings(const JobConfig& job);

}  // namespace pptrain::config
