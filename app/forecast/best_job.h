// The job file that a search writes: the job that it began with, and the keys that changed.
#pragma once

#include <string>
#include <vector>

#include "app/forecast/search.h"

namespace pptrain::app {

struct BestJob {
  std::string config;            // the job file that is included
  std::string path;              // the file to write; config is named relative to it
  std::string command;           // the command that searched, for people
  std::string costs;             // the search's source of costs
  double budget = 0;             // bytes a rank; 0: no bound
  std::vector<std::string> set;  // what changed, as --set says it: "distributed.pp=4"
};

// A head of comments, `include`, and the keys that changed. `plan`: the candidate's plan, made from config
// with these keys. Throws UsageError if the file would replace the one that it includes.
std::string write_best_job(const BestJob& best, const Candidate& candidate, const Plan& plan);

}  // namespace pptrain::app
