// Whether a job may go on from a checkpoint that another job saved.
#pragma once

#include <string>
#include <vector>

#include "app/run/start_choice.h"
#include "core/config/job_config.h"

namespace pptrain::app {

struct ResumeTerms {
  bool new_data = false;             // sample and seed are the job's: its data are others, or the first
  int64_t next_sample = 0;           // where the data go on
  std::vector<std::string> remarks;  // lines for the user: what differs
};

// `data`: the fingerprint of the job's data. Throws UsageError that names both values where the model or the
// optimizer is another one, and where the data or their order are and checkpoint.data = "same". data.path is
// what it holds, where both fingerprints are known: a file may have moved. A step may take another number of
// samples: none is left out or comes twice, and the remark says so. Of weights alone only the model counts.
ResumeTerms check_resume(const SavedRun& saved, const config::JobConfig& job, const std::string& data);

// What makes the model of one job another one than the other job's, in words: tensors of equal shapes may be
// of a model that computes something else.
std::vector<std::string> model_differences(const config::JobConfig& saved, const config::JobConfig& job);

}  // namespace pptrain::app
