// From a TOML file and --set overrides to a checked JobConfig.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "core/config/job_config.h"

namespace pptrain::config {

// Lays a contradiction at the first of these options that the user gave, else at the first's section. Nothing
// is reported about options whose value could not be taken.
using ReportConflict =
    std::function<void(std::initializer_list<std::string_view> options, const std::string& text)>;

// The model that a Hugging Face directory describes, every size set; hf_dir and init keep their defaults.
// Throws UsageError, which names the file and the key.
using ReadHfConfig = std::function<ModelSection(const std::string& hf_dir)>;

// What the callers know beyond this folder. Each may be empty; without read_hf_config, a job with
// model.hf_dir is refused.
struct Hooks {
  ReadHfConfig read_hf_config{};

  // Checks [model] and fills in what 0 stands for. Called also if there are problems already.
  std::function<void(ModelSection& model, int64_t seq_len, const ReportConflict& report)> finish_model{};

  // Checks the job and fills in what it leaves open. Called with all else resolved, if products of sizes fit
  // (check_products). If there are problems already, `sound` is false and sizes may be 0.
  std::function<void(JobConfig& job, const ReportConflict& report, bool sound)> finish{};

  int64_t world = 0;  // ranks that the job is for, which dp_shard = -1 fills; 0: not known
  // Data, weights and checkpoints of the job must exist; a plan alone needs none of them.
  bool needs_files = true;
};

// Reads, applies `overrides` ("section.key=value", the value in TOML or a bare word) and validates. Throws
// UsageError whose message holds every problem found, one a line: "job.toml:LINE:COL: section.key: what is
// wrong ...", with the nearest valid name and the allowed values. Paths to read are relative to the
// job's file, else to the current directory. distributed.dp is folded into dp_shard, whose -1 becomes what is
// left of hooks.world; model sizes that the job leaves out come from model.hf_dir.
JobConfig load_job(const std::string& path, std::span<const std::string> overrides, const Hooks& hooks = {});

// The same from text; `name` stands for the file in messages.
JobConfig parse_job(const std::string& text, const std::string& name, std::span<const std::string> overrides,
                    const Hooks& hooks = {});

// [data.chat] of these "key=value" alone, which are taken as overrides are. Throws UsageError as load_job
// does.
ChatSection parse_chat(std::span<const std::string> settings);

// The whole job as TOML, every key that acts with its value; parse_job reads it back to the same job.
std::string to_toml(const JobConfig& job);

// Commented TOML with every key: type, default, range and meaning.
std::string reference_toml();

// JSON schema of the job: draft 07, which the TOML support of editors (Taplo) reads.
std::string json_schema();

}  // namespace pptrain::config
