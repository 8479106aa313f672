// From a TOML file and --set overrides to a checked JobConfig.
#pragma once

#include <span>
#include <string>

#include "core/config/job_config.h"

namespace pptrain::config {

// Reads, applies `overrides` ("section.key=value", the value in TOML or a bare word) and validates. Throws
// UsageError whose message holds every problem found, one a line: "job.toml:LINE:COL: section.key: what is
// wrong ...", with the nearest valid name and the allowed values. Paths in the job are relative to the
// current directory. distributed.dp is folded into dp_shard, unset model sizes come from
// model.hf_dir/config.json.
JobConfig load_job(const std::string& path, std::span<const std::string> overrides);

// The same from text; `name` stands for the file in messages.
JobConfig parse_job(const std::string& text, const std::string& name, std::span<const std::string> overrides);

// The whole job as TOML, every key with its resolved value; parse_job reads it back to the same job.
std::string to_toml(const JobConfig& job);

// Commented TOML with every key: type, default, range and meaning.
std::string reference_toml();

// JSON schema (draft 2020-12) of the job.
std::string json_schema();

}  // namespace pptrain::config
