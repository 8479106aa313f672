// The adapters of a checkpoint as a folder that peft loads.
#include <c10/util/accumulate.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "app/convert/convert.h"
#include "app/convert/hf_companions.h"
#include "app/convert/merged_parameters.h"
#include "app/convert/parameter_source.h"
#include "app/run/base_weights.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/safetensors.h"
#include "core/nn/adapter.h"
#include "models/flops.h"
#include "models/hf_loader.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "models/weight_map.h"

namespace pptrain::app {
namespace {

namespace fs = std::filesystem;
using checkpoint::model_file;

// "model.layers.0.self_attn.q_proj" of "layers.0.attn.q.weight".
std::string hf_module(const models::ModelConfig& model, const std::string& weight) {
  const std::string name = models::hf_name(models::find_architecture(model.arch).weights, weight, model.tied);
  return name.substr(0, name.rfind('.'));
}

std::string last_word(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

// peft's target_modules: "q_proj" where all modules of that name have an adapter, whole names elsewhere.
std::vector<std::string> target_modules(const models::ModelConfig& model,
                                        const std::set<std::string>& adapted) {
  std::set<std::string> partly;
  for (const models::HfWeight& weight : models::hf_tensors(model)) {
    const std::string module = weight.tensor.substr(0, weight.tensor.rfind('.'));
    if (!adapted.contains(module)) partly.insert(last_word(module));
  }
  std::set<std::string> targets;
  for (const std::string& module : adapted)
    targets.insert(partly.contains(last_word(module)) ? module : last_word(module));
  return {targets.begin(), targets.end()};
}

nlohmann::ordered_json adapter_config(const config::LoraSection& lora, const std::string& base,
                                      const std::vector<std::string>& targets) {
  nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                   {"task_type", "CAUSAL_LM"},
                                   {"base_model_name_or_path", nullptr},
                                   {"inference_mode", true},
                                   {"r", lora.rank},
                                   {"lora_alpha", lora.alpha},
                                   {"lora_dropout", 0.0},
                                   {"bias", "none"},
                                   {"fan_in_fan_out", false},
                                   {"use_rslora", false},
                                   {"modules_to_save", nullptr},
                                   {"target_modules", targets}};
  if (!base.empty()) config["base_model_name_or_path"] = base;
  if (lora.alpha == std::round(lora.alpha)) config["lora_alpha"] = static_cast<int64_t>(lora.alpha);
  return config;
}

// "layers.0.attn.q.lora_a.weight" -> "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
std::string peft_name(const models::ModelConfig& model, const std::string& parameter) {
  return fmt::format("base_model.model.{}.lora_{}.weight", hf_module(model, *nn::adapted_weight(parameter)),
                     parameter.ends_with(".lora_a.weight") ? "A" : "B");
}

}  // namespace

std::vector<std::string> to_peft(const fs::path& step_folder, const ConvertArguments& arguments,
                                 const fs::path& folder) {
  if (arguments.max_shard_gb > 0) throw UsageError("--max-shard-gb: adapters are one file");
  const config::JobConfig job = saved_job(step_folder);
  const models::ModelConfig model = models::make_model_config(job.model, 1);
  ParameterSource source(step_folder);
  const at::ScalarType type = arguments.dtype.value_or(at::kFloat);
  std::vector<std::pair<std::string, io::TensorSpec>> tensors;
  std::set<std::string> adapted;
  int64_t elements = 0;
  for (const std::string& parameter : source.reader().names(model_file)) {
    const auto weight = nn::adapted_weight(parameter);
    if (!weight)
      throw Error(fmt::format("{} holds {}, which is no adapter's", step_folder.string(), parameter));
    adapted.insert(hf_module(model, *weight));
    const std::vector<int64_t>& shape = source.reader().global_shape(model_file, parameter);
    elements += c10::multiply_integers(shape);
    tensors.emplace_back(parameter, io::TensorSpec{peft_name(model, parameter), type, shape});
  }
  std::vector<io::TensorSpec> specs;
  for (const auto& [parameter, spec] : tensors) specs.push_back(spec);
  io::SafetensorsWriter file(folder / "adapter_model.safetensors", specs, {{"format", "pt"}});
  for (const auto& [parameter, spec] : tensors) {
    const std::string what = fmt::format("'{}': the parameter '{}'", step_folder.string(), parameter);
    file.write_pieces(spec.name, source.fill(spec, {parameter}, what));
  }
  file.finish();
  const Base base = base_of(source.reader().layout());
  const bool of_hf = job.model.init == config::Init::hf;
  io::write_file_atomically(
      folder / "adapter_config.json",
      adapter_config(job.lora, of_hf ? base.source : "", target_modules(model, adapted)).dump(2) + "\n");
  if (!arguments.tokenizer.empty()) copy_tokenizer(arguments.tokenizer, folder, "--tokenizer");
  return {fmt::format("adapters of {} ({}, rank {}) at step {}, for {}", job.model.arch,
                      models::parameters_text(elements), job.lora.rank, source.reader().state().step,
                      base.source)};
}

}  // namespace pptrain::app
