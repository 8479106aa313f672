// The whole model of a checkpoint that only holds what was trained.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/convert/stored_weights.h"
#include "core/config/job_config.h"
#include "core/nn/parameter.h"
#include "models/hf_directory.h"

namespace pptrain::app {

// The job that saved the checkpoint, with its model's sizes filled in. Throws UsageError if there is none.
config::JobConfig saved_job(const std::filesystem::path& step_folder);

// The parameters of the job's model without adapters. Trained ones come from the checkpoint, the others from
// the base that it names, model.hf_dir or run.seed; with an adapter, W + alpha / rank B A.
class MergedParameters {
 public:
  // `trained`: of the checkpoint that `job` saved. It must outlive this. Throws UsageError if the base has
  // changed.
  MergedParameters(const StoredWeights& trained, const config::JobConfig& job,
                   const std::filesystem::path& step_folder);

  at::Tensor values(const std::string& parameter) const;  // float32, whole
  const std::vector<int64_t>& shape(const std::string& parameter) const;

 private:
  at::Tensor of_base(const std::string& parameter) const;
  at::Tensor read(const std::string& parameter) const;

  const StoredWeights& trained_;
  double scale_ = 0;  // of adapters
  uint64_t seed_;
  std::map<std::string, nn::ParameterSpec> specs_;
  std::optional<models::HfDirectory> hf_;
};

}  // namespace pptrain::app
