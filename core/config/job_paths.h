// Paths that a job gives: relative to its file, and absolute in the job that a run keeps.
#pragma once

#include <filesystem>
#include <string>

#include "core/config/job_config.h"

namespace pptrain::config {

// A path to read (Names::read) that a job's file in `folder` gives: `folder` / `path` if a file, a folder or
// files that match a pattern are there; else `path` as it stands, relative to the current directory.
std::string beside_job(const std::filesystem::path& folder, const std::string& path);

// The job with all its paths absolute, so that it means the same from any directory.
JobConfig with_absolute_paths(JobConfig job);

}  // namespace pptrain::config
