#include "app/convert/merged_parameters.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <spdlog/fmt/fmt.h>

#include <initializer_list>
#include <string_view>
#include <utility>

#include "app/run/base_weights.h"
#include "app/run/start_choice.h"
#include "core/base/error.h"
#include "core/nn/adapter.h"
#include "models/model_config.h"
#include "models/transformer_stage.h"
#include "models/weight_map.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::app {

config::JobConfig saved_job(const std::filesystem::path& step_folder) {
  SavedRun saved = read_saved_run(step_folder);
  if (!saved.job) {
    throw UsageError(fmt::format("{} does not say which job saved it, and so not what its model is",
                                 step_folder.string()));
  }
  config::JobConfig job = *std::move(saved.job);
  models::finish_model(job.model, job.train.seq_len,
                       [&](std::initializer_list<std::string_view> options, const std::string& text) {
                         throw UsageError(fmt::format("the job that saved {}: {}: {}", step_folder.string(),
                                                      *options.begin(), text));
                       });
  return job;
}

MergedParameters::MergedParameters(const StoredWeights& trained, const config::JobConfig& job,
                                   const std::filesystem::path& step_folder)
    : trained_(trained), seed_(static_cast<uint64_t>(job.run.seed)) {
  check_base(step_folder.string(), base_of(checkpoint::read_manifest(step_folder).layout), base_of(job));
  if (job.lora.rank > 0) scale_ = job.lora.alpha / static_cast<double>(job.lora.rank);
  const models::ModelConfig model = models::make_model_config(job.model, 1);
  models::TransformerStage whole(model, models::whole_model(model));
  for (const nn::ParameterSpec* spec : whole.parameters().specs()) specs_.emplace(spec->name, *spec);
  if (job.model.init != config::Init::hf) return;
  hf_.emplace(model, job.model.hf_dir);
}

const std::vector<int64_t>& MergedParameters::shape(const std::string& parameter) const {
  return specs_.at(parameter).shape;
}

at::Tensor MergedParameters::read(const std::string& parameter) const {
  at::Tensor values = at::empty(trained_.shape(parameter), at::kFloat);
  trained_.read(parameter, values);
  return values;
}

at::Tensor MergedParameters::of_base(const std::string& parameter) const {
  const nn::ParameterSpec& spec = specs_.at(parameter);
  at::Tensor values = at::empty(spec.shape, at::kFloat);
  if (!hf_) {
    nn::fill_initial_values(spec, nn::whole_slice(spec.shape), seed_, values);
  } else {
    const models::HfWeight place = hf_->find(parameter);
    models::copy_slice(place, hf_->files().tensor(place.tensor), nn::whole_slice(spec.shape), values);
  }
  return values;
}

at::Tensor MergedParameters::values(const std::string& parameter) const {
  if (trained_.contains(parameter)) return read(parameter);
  at::Tensor values = of_base(parameter);
  const std::string down = nn::adapter_weight(parameter, 'a');
  const bool is_weight = parameter.ends_with(".weight");  // the layer's bias has no adapter
  if (is_weight && trained_.contains(down))
    values.addmm_(read(nn::adapter_weight(parameter, 'b')), read(down), 1, scale_);
  return values;
}

}  // namespace pptrain::app
