// A job as this program runs it: read, checked against what schedules and splits allow, and filled in.
#pragma once

#include <string>

#include "app/commands/commands.h"
#include "core/config/job_config.h"
#include "core/config/loader.h"

namespace pptrain::app {

// config::load_job and finish_job.
config::JobConfig load_job(const JobArguments& arguments);

// The same, but what auto and cost leave open stays open.
config::JobConfig load_open_job(const JobArguments& arguments);

// Checks pp_schedule, pp_stages_per_rank and pp_split with each other and with the model, and resolves them:
// pp_schedule to the plain name (or the file), pp_stages_per_rank to a number.
// Chooses what auto and cost leave open.
void finish_job(config::JobConfig& job, const config::ReportConflict& report, bool sound);

// Is pp_schedule a file, and not a name?
bool is_schedule_file(const std::string& pp_schedule);

}  // namespace pptrain::app
