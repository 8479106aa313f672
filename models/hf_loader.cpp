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
#include "core/io/hf_checkpoint.h"
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
      throw Error(fmt::format(
          "{}: tensor {} is of layer {}, but this model has {} (num_hidden_layers), counted from 0: "
          "are its config.json and [model] those of these weights?",
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

// A parameter's values in the mapped file, and the name of the tensor that they lie in.
struct Stored {
  std::string name;
  at::Tensor tensor;
};

// Of a tensor of all experts.
std::optional<Stored> find_fused(const io::HfCheckpoint& checkpoint, const nn::ParameterSpec& spec,
                                 int64_t experts) {
  const auto fused = fused_expert(spec.name);
  if (!fused || !checkpoint.contains(fused->hf)) return std::nullopt;
  const at::Tensor all = checkpoint.tensor(fused->hf);
  const int64_t rows = spec.shape.front();
  const int64_t expected[] = {experts, rows * fused->parts, spec.shape.back()};
  if (all.sizes() != at::IntArrayRef(expected)) {
    throw Error(fmt::format("{}: tensor {} has shape [{}], but this model's experts have [{}]",
                            checkpoint.folder().string(), fused->hf, fmt::join(all.sizes(), ", "),
                            fmt::join(expected, ", ")));
  }
  return Stored{fused->hf, all[fused->expert].narrow(0, fused->part * rows, rows)};
}

Stored find_stored(const io::HfCheckpoint& checkpoint, std::span<const WeightName> names,
                   const nn::ParameterSpec& spec, const ModelConfig& model) {
  const std::vector<std::string> candidates = hf_names(names, spec.name, model.tied);
  for (const std::string& name : candidates) {
    if (checkpoint.contains(name)) return {name, checkpoint.tensor(name)};
  }
  if (auto fused = find_fused(checkpoint, spec, model.sparse.experts)) return *std::move(fused);
  return {candidates.front(), checkpoint.tensor(candidates.front())};  // which says that it is missing
}

void check_stored(const io::HfCheckpoint& checkpoint, const Stored& stored, const nn::ParameterSpec& spec) {
  const std::string folder = checkpoint.folder().string();
  if (stored.tensor.sizes() != at::IntArrayRef(spec.shape)) {
    throw Error(fmt::format("{}: tensor {} has shape [{}], but {} of this model has [{}]", folder,
                            stored.name, fmt::join(stored.tensor.sizes(), ", "), spec.name,
                            fmt::join(spec.shape, ", ")));
  }
  if (!stored.tensor.is_floating_point())
    throw Error(fmt::format("{}: tensor {} does not hold floating-point numbers", folder, stored.name));
}

}  // namespace

// Biases that balance experts are in no Hugging Face directory: they start at zero.
void load_hf_weights(TransformerStage& stage, const std::filesystem::path& hf_dir) {
  const io::HfCheckpoint checkpoint(hf_dir);
  const std::span<const WeightName> names = find_architecture(stage.model().arch).weights;
  refuse_left_over(stage, names, checkpoint);
  for (nn::Slice* slice : stage.parameters().slices()) {
    if (slice->spec.role == nn::Role::balance) continue;
    const Stored stored = find_stored(checkpoint, names, slice->spec, stage.model());
    check_stored(checkpoint, stored, slice->spec);
    nn::copy_slice(stored.tensor, slice->shape, slice->master);
  }
  stage.parameters().refresh_compute();
}

void check_hf_weights(const ModelConfig& model, const std::filesystem::path& hf_dir) {
  const io::HfCheckpoint checkpoint(hf_dir);
  const std::span<const WeightName> names = find_architecture(model.arch).weights;
  TransformerStage whole(model,
                         {.end_layer = static_cast<int>(model.layers), .embedding = true, .head = true});
  refuse_left_over(whole, names, checkpoint);
  for (const nn::ParameterSpec* spec : whole.parameters().specs()) {
    if (spec->role == nn::Role::balance) continue;
    check_stored(checkpoint, find_stored(checkpoint, names, *spec, model), *spec);
  }
}

}  // namespace pptrain::models
