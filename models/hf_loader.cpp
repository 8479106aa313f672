#include "models/hf_loader.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <charconv>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/nn/adapter.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

// The layer of a global name ("layers.17.attn.q.weight" -> 17), nothing for one outside the layers. Numbers
// that no int holds are the largest.
std::optional<int> layer_of(std::string_view global) {
  constexpr std::string_view prefix = "layers.";
  int layer = 0;
  if (!global.starts_with(prefix)) return {};
  global.remove_prefix(prefix.size());
  const auto read = std::from_chars(global.data(), global.data() + global.size(), layer);
  if (read.ec == std::errc::result_out_of_range) return std::numeric_limits<int>::max();
  return read.ec == std::errc() ? std::optional(layer) : std::nullopt;
}

// A weight that the file has and the model lacks (a bias, most likely) would give wrong results without a
// word.
void refuse_left_over(const ModelConfig& model, const StageSlice& slice, const WeightMap& map,
                      const io::HfCheckpoint& checkpoint) {
  const std::span<const WeightName> names = find_architecture(model.arch).weights;
  for (const std::string& name : checkpoint.names()) {
    if (map.find(name) != nullptr) continue;
    const auto global = global_name(names, name);
    const auto layer = global ? layer_of(*global) : std::nullopt;
    if (layer && *layer >= model.layers) {
      throw Error(
          fmt::format("{}: tensor {} is of layer {}, but this model has {} (num_hidden_layers), counted from "
                      "0: are its config.json and [model] those of these weights?",
                      checkpoint.folder().string(), name, *layer, model.layers));
    }
    if (layer && *layer >= slice.first_layer && *layer < slice.end_layer) {
      throw Error(
          fmt::format("{}: tensor {} has no place in this {} model: do its config.json and [model] describe "
                      "these weights (biases, q_norm and k_norm, experts)?",
                      checkpoint.folder().string(), name, model.arch));
    }
  }
}

void check_tensor(const io::HfCheckpoint& checkpoint, const HfTensor& tensor, std::string_view parameter) {
  const io::TensorSpec& spec = checkpoint.spec(tensor.name);
  if (spec.shape != tensor.shape) {
    throw Error(fmt::format("{}: tensor {} has shape [{}], but {}{} of this model has [{}]",
                            checkpoint.folder().string(), tensor.name, fmt::join(spec.shape, ", "),
                            tensor.parts.size() > 1 ? "the tensor with " : "", parameter,
                            fmt::join(tensor.shape, ", ")));
  }
  if (!c10::isFloatingType(spec.dtype)) {
    throw Error(fmt::format("{}: tensor {} does not hold floating-point numbers",
                            checkpoint.folder().string(), tensor.name));
  }
}

HfWeight find_weight(const io::HfCheckpoint& checkpoint, const WeightMap& map, std::string_view parameter) {
  const std::vector<std::string>& candidates = map.tensors_of(parameter);
  for (const std::string& name : candidates) {
    if (!checkpoint.contains(name)) continue;
    check_tensor(checkpoint, *map.find(name), parameter);
    return map.place(parameter, name);
  }
  checkpoint.spec(candidates.front());  // says that it is missing
  return {};
}

// Adapters have no tensor, nor have biases that balance experts where they are no part of the family.
bool has_tensor(const ModelConfig& model, const nn::ParameterSpec& spec) {
  if (spec.role == nn::Role::balance) return find_architecture(model.arch).decoder.sigmoid_router;
  return !nn::adapted_weight(spec.name);
}

}  // namespace

WeightMap weight_map(const ModelConfig& model, const StageSlice& slice) {
  TransformerStage stage(model, slice);
  std::vector<const nn::ParameterSpec*> specs = stage.parameters().specs();
  std::erase_if(specs, [&](const nn::ParameterSpec* spec) { return !has_tensor(model, *spec); });
  return WeightMap(find_architecture(model.arch).weights, specs, model.tied, model.kv_heads);
}

// Parameters without a tensor start as they are.
void load_hf_weights(TransformerStage& stage, const std::filesystem::path& hf_dir) {
  const io::HfCheckpoint checkpoint(hf_dir);
  const WeightMap map = weight_map(stage.model(), stage.slice());
  refuse_left_over(stage.model(), stage.slice(), map, checkpoint);
  for (nn::Slice* slice : stage.parameters().slices()) {
    if (!has_tensor(stage.model(), slice->spec)) continue;
    const HfWeight weight = find_weight(checkpoint, map, slice->spec.name);
    at::Tensor values = slice->values();
    copy_slice(weight, checkpoint.tensor(weight.tensor), slice->shape, values);
  }
  stage.parameters().refresh_compute();
}

std::vector<HfWeight> find_hf_weights(const ModelConfig& model, const io::HfCheckpoint& checkpoint) {
  TransformerStage whole(model, whole_model(model));
  const WeightMap map = weight_map(model, whole.slice());
  refuse_left_over(model, whole.slice(), map, checkpoint);
  std::vector<HfWeight> weights;
  for (const nn::ParameterSpec* spec : whole.parameters().specs()) {
    if (!has_tensor(model, *spec)) continue;
    weights.push_back(find_weight(checkpoint, map, spec->name));
  }
  return weights;
}

std::vector<HfTensor> hf_tensors(const ModelConfig& model) {
  TransformerStage whole(model, whole_model(model));
  const WeightMap map = weight_map(model, whole.slice());
  std::vector<HfTensor> tensors;
  std::set<std::string> taken;
  for (const nn::ParameterSpec* spec : whole.parameters().specs()) {
    const bool stored = has_tensor(model, *spec);
    if (!stored && spec->role == nn::Role::balance) {
      throw Error(fmt::format(
          "{}: {} has no bias on the choice of experts (model.router_bias_update_rate > 0), and without it "
          "the model would compute something else",
          spec->name, find_architecture(model.arch).hf_class));
    }
    if (!stored) continue;
    const std::string& tensor = map.tensors_of(spec->name).front();
    if (taken.insert(tensor).second) tensors.push_back(*map.find(tensor));
  }
  return tensors;
}

}  // namespace pptrain::models
