// The adapters of a checkpoint as a folder that peft loads.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "app/convert/convert.h"
#include "app/convert/element_types.h"
#include "app/convert/hf_companions.h"
#include "app/convert/merged_parameters.h"
#include "app/convert/stored_weights.h"
#include "app/run/base_weights.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/safetensors.h"
#include "core/nn/adapter.h"
#include "models/flops.h"
#include "models/hf_directory.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "models/weight_map.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::app {
namespace {

namespace fs = std::filesystem;

// "model.layers.0.self_attn.q_proj" for "layers.0.attn.q.weight". Throws UsageError if the tensor holds
// several parameters.
std::string hf_module(const models::WeightMap& map, const std::string& weight) {
  const models::HfTensor& tensor = *map.find(map.tensors_of(weight).front());
  if (tensor.parts.size() > 1) {
    throw UsageError(fmt::format(
        "the adapter of {}: peft knows those of whole tensors alone, and {} holds {} parameters; --merge "
        "writes the whole model",
        weight, tensor.name, tensor.parts.size()));
  }
  return tensor.name.substr(0, tensor.name.rfind('.'));
}

std::string last_word(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

// The targets that peft adapts.
struct Targets {
  std::set<std::string> modules;
  std::set<std::string> parameters;
};

// "q_proj" if all modules of that name have an adapter, else whole names. In families with experts, peft
// (from 0.19 on) takes a module "gate_proj" to be the experts'. So projections of dense and shared MLPs are
// targeted by their weights.
Targets find_targets(const models::ModelConfig& model, const std::set<std::string>& adapted) {
  std::set<std::string> partly;
  for (const models::HfTensor& tensor : models::hf_tensors(model)) {
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    if (!adapted.contains(module)) partly.insert(last_word(module));
  }
  const bool has_experts = models::find_architecture(model.arch).sparse;
  Targets targets;
  for (const std::string& module : adapted) {
    if (has_experts && module.find(".mlp.") != std::string::npos) {
      targets.parameters.insert(module + ".weight");
    } else {
      targets.modules.insert(partly.contains(last_word(module)) ? module : last_word(module));
    }
  }
  return targets;
}

nlohmann::ordered_json adapter_config(const config::LoraSection& lora, const std::string& base,
                                      const Targets& targets, bool transposed) {
  nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                   {"task_type", "CAUSAL_LM"},
                                   {"base_model_name_or_path", nullptr},
                                   {"inference_mode", true},
                                   {"r", lora.rank},
                                   {"lora_alpha", lora.alpha},
                                   {"lora_dropout", 0.0},
                                   {"bias", "none"},
                                   {"fan_in_fan_out", transposed},
                                   {"use_rslora", false},
                                   {"modules_to_save", nullptr},
                                   {"target_modules", nullptr}};
  if (!targets.modules.empty()) config["target_modules"] = targets.modules;
  if (!targets.parameters.empty()) config["target_parameters"] = targets.parameters;
  if (!base.empty()) config["base_model_name_or_path"] = base;
  if (lora.alpha == std::round(lora.alpha)) config["lora_alpha"] = static_cast<int64_t>(lora.alpha);
  return config;
}

// "layers.0.attn.q.lora_a.weight" -> "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
std::string peft_name(const models::WeightMap& map, const std::string& parameter) {
  return fmt::format("base_model.model.{}.lora_{}.weight", hf_module(map, *nn::adapted_weight(parameter)),
                     parameter.ends_with(".lora_a.weight") ? "A" : "B");
}

struct PeftTensor {
  std::string parameter;
  io::TensorSpec spec;
  bool transposed = false;  // the module's weight is [in, out], as in GPT-2
};

// Tensors of all adapters in the checkpoint; fills `adapted` with their modules.
std::vector<PeftTensor> peft_tensors(const StoredWeights& stored, const models::ModelConfig& model,
                                     at::ScalarType type, std::set<std::string>& adapted) {
  const models::WeightMap map = models::weight_map(model, models::whole_model(model));
  std::vector<PeftTensor> tensors;
  for (const std::string& parameter : stored.names()) {
    const auto weight = nn::adapted_weight(parameter);
    if (!weight) throw Error(fmt::format("the checkpoint holds {}, which is no adapter's", parameter));
    adapted.insert(hf_module(map, *weight));
    tensors.push_back({parameter,
                       {peft_name(map, parameter), type, stored.shape(parameter)},
                       map.place(*weight, map.tensors_of(*weight).front()).column_stride != 1});
  }
  return tensors;
}

void write_adapters(const StoredWeights& stored, const std::vector<PeftTensor>& tensors,
                    const fs::path& path) {
  std::vector<io::TensorSpec> specs;
  for (const PeftTensor& tensor : tensors) specs.push_back(tensor.spec);
  io::SafetensorsWriter file(path, specs, {{"format", "pt"}});
  for (const auto& [parameter, spec, transposed] : tensors) {
    at::Tensor values = at::empty(spec.shape, at::kFloat);
    stored.read(parameter, values);
    file.write_pieces(spec.name, [&](uint64_t begin, std::span<std::byte> piece) {
      const uint64_t size = c10::elementSize(spec.dtype);
      to_type(spec.dtype, {values.const_data_ptr<float>() + begin / size, piece.size() / size}, piece,
              fmt::format("the parameter '{}'", parameter));
    });
  }
  file.finish();
}

}  // namespace

std::vector<std::string> to_peft(const fs::path& step_folder, const ConvertArguments& arguments,
                                 const fs::path& folder) {
  if (arguments.max_shard_gb > 0) throw UsageError("--max-shard-gb: adapters are one file");
  const config::JobConfig job = saved_job(step_folder);
  const models::ModelConfig model = models::make_model_config(job.model, 1);
  const StoredWeights stored(step_folder, arguments.ema);
  std::set<std::string> adapted;
  const std::vector<PeftTensor> tensors =
      peft_tensors(stored, model, arguments.dtype.value_or(at::kFloat), adapted);
  write_adapters(stored, tensors, folder / "adapter_model.safetensors");
  int64_t elements = 0;
  for (const PeftTensor& tensor : tensors) elements += c10::multiply_integers(tensor.spec.shape);
  const Base base = base_of(checkpoint::read_manifest(step_folder).layout);
  const bool of_hf = job.model.init == config::Init::hf;
  const bool transposed = std::ranges::any_of(tensors, &PeftTensor::transposed);
  const auto config =
      adapter_config(job.lora, of_hf ? base.source : "", find_targets(model, adapted), transposed);
  io::write_file_atomically(folder / "adapter_config.json", config.dump(2) + "\n");
  std::vector<std::string> lines = {fmt::format("adapters of {} ({}, rank {}) at step {}, for {}",
                                                job.model.arch, models::parameters_text(elements),
                                                job.lora.rank, stored.step(), base.source)};
  if (arguments.tokenizer.empty()) {
    copy_tokenizer_of(job, folder, lines);
  } else {
    copy_tokenizer(arguments.tokenizer, folder, "--tokenizer");
  }
  return lines;
}

}  // namespace pptrain::app
