#include "models/hf_loader.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <charconv>
#include <functional>
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
#include "models/weight_map.h"

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

// What this stage would hold if it held all experts. A parameter of another rank's experts is known too.
std::set<std::string, std::less<>> known_names(TransformerStage& stage) {
  std::set<std::string, std::less<>> names;
  for (const nn::ParameterSpec* spec : stage.parameters().specs()) names.insert(spec->name);
  return names;
}

bool is_another_ranks_expert(const ModelConfig& model, int layer, std::string_view global) {
  const auto expert = fused_expert(global);
  return expert && global.ends_with(".weight") && model.sparse.contains(layer) &&
         expert->expert < model.sparse.experts;
}

// A weight that the file has and the model lacks (a bias, most likely) would give wrong results without a
// word.
void refuse_left_over(TransformerStage& stage, std::span<const WeightName> names,
                      const io::HfCheckpoint& checkpoint) {
  const auto known = known_names(stage);
  for (const std::string& name : checkpoint.names()) {
    const auto global = global_name(names, name);
    const auto layer = global ? layer_of(*global) : std::nullopt;
    if (layer && *layer >= stage.model().layers) {
      throw Error(
          fmt::format("{}: tensor {} is of layer {}, but this model has {} (num_hidden_layers), counted from "
                      "0: are its config.json and [model] those of these weights?",
                      checkpoint.folder().string(), name, *layer, stage.model().layers));
    }
    if (layer && *layer >= stage.slice().first_layer && *layer < stage.slice().end_layer &&
        !known.contains(*global) && !is_another_ranks_expert(stage.model(), *layer, *global)) {
      throw Error(
          fmt::format("{}: tensor {} has no place in this {} model: do its config.json and [model] describe "
                      "these weights (biases, q_norm and k_norm, experts)?",
                      checkpoint.folder().string(), name, stage.model().arch));
    }
  }
}

// In a tensor of all experts.
std::optional<HfWeight> find_fused(const io::HfCheckpoint& checkpoint, const nn::ParameterSpec& spec,
                                   int64_t experts) {
  const auto fused = fused_expert(spec.name);
  if (!fused || !checkpoint.contains(fused->hf)) return std::nullopt;
  const std::vector<int64_t>& all = checkpoint.spec(fused->hf).shape;
  const int64_t rows = spec.shape.front(), columns = spec.shape.back();
  const std::vector<int64_t> expected = {experts, rows * fused->parts, columns};
  if (all != expected) {
    throw Error(fmt::format("{}: tensor {} has shape [{}], but this model's experts have [{}]",
                            checkpoint.folder().string(), fused->hf, fmt::join(all, ", "),
                            fmt::join(expected, ", ")));
  }
  return HfWeight{spec.name, spec.shape, fused->hf,
                  (fused->expert * fused->parts + fused->part) * rows * columns};
}

HfWeight find_place(const io::HfCheckpoint& checkpoint, std::span<const WeightName> names,
                    const nn::ParameterSpec& spec, const ModelConfig& model) {
  const std::vector<std::string> candidates = hf_names(names, spec.name, model.tied);
  for (const std::string& name : candidates) {
    if (!checkpoint.contains(name)) continue;
    const std::vector<int64_t>& shape = checkpoint.spec(name).shape;
    if (shape == spec.shape) return {spec.name, spec.shape, name};
    throw Error(fmt::format("{}: tensor {} has shape [{}], but {} of this model has [{}]",
                            checkpoint.folder().string(), name, fmt::join(shape, ", "), spec.name,
                            fmt::join(spec.shape, ", ")));
  }
  if (auto fused = find_fused(checkpoint, spec, model.sparse.experts)) return *std::move(fused);
  checkpoint.spec(candidates.front());  // says that it is missing
  return {spec.name, spec.shape, candidates.front()};
}

HfWeight find_weight(const io::HfCheckpoint& checkpoint, std::span<const WeightName> names,
                     const nn::ParameterSpec& spec, const ModelConfig& model) {
  HfWeight weight = find_place(checkpoint, names, spec, model);
  if (!c10::isFloatingType(checkpoint.spec(weight.tensor).dtype)) {
    throw Error(fmt::format("{}: tensor {} does not hold floating-point numbers",
                            checkpoint.folder().string(), weight.tensor));
  }
  return weight;
}

at::Tensor view_of(const io::HfCheckpoint& checkpoint, const HfWeight& weight) {
  return checkpoint.tensor(weight.tensor)
      .view({-1})
      .narrow(0, weight.first, c10::multiply_integers(weight.shape))
      .view(weight.shape);
}

}  // namespace

// Biases that balance experts are in no Hugging Face directory: they start at zero.
void load_hf_weights(TransformerStage& stage, const std::filesystem::path& hf_dir) {
  const io::HfCheckpoint checkpoint(hf_dir);
  const std::span<const WeightName> names = find_architecture(stage.model().arch).weights;
  refuse_left_over(stage, names, checkpoint);
  for (nn::Slice* slice : stage.parameters().slices()) {
    if (slice->spec.role == nn::Role::balance || nn::adapted_weight(slice->spec.name)) continue;
    const HfWeight weight = find_weight(checkpoint, names, slice->spec, stage.model());
    at::Tensor values = slice->values();
    nn::copy_slice(view_of(checkpoint, weight), slice->shape, values);
  }
  stage.parameters().refresh_compute();
}

std::vector<HfWeight> find_hf_weights(const ModelConfig& model, const io::HfCheckpoint& checkpoint) {
  const std::span<const WeightName> names = find_architecture(model.arch).weights;
  TransformerStage whole(model, whole_model(model));
  refuse_left_over(whole, names, checkpoint);
  std::vector<HfWeight> weights;
  for (const nn::ParameterSpec* spec : whole.parameters().specs()) {
    if (spec->role == nn::Role::balance) continue;
    weights.push_back(find_weight(checkpoint, names, *spec, model));
  }
  return weights;
}

void check_hf_weights(const ModelConfig& model, const std::filesystem::path& hf_dir) {
  find_hf_weights(model, io::HfCheckpoint(hf_dir));
}

std::vector<HfWeight> hf_tensors(const ModelConfig& model) {
  const Architecture& architecture = find_architecture(model.arch);
  TransformerStage whole(model, whole_model(model));
  std::vector<HfWeight> tensors;
  for (const nn::ParameterSpec* spec : whole.parameters().specs()) {
    if (model.tied && spec->name == "head.weight") continue;
    if (spec->role == nn::Role::balance) {
      throw Error(fmt::format(
          "{}: {} has no bias on the choice of experts (model.router_bias_update_rate > 0), and without it "
          "the model would compute something else",
          spec->name, architecture.hf_class));
    }
    tensors.push_back({.parameter = spec->name,
                       .shape = spec->shape,
                       .tensor = hf_name(architecture.weights, spec->name, model.tied)});
  }
  return tensors;
}

}  // namespace pptrain::models
