#include "models/hf_loader.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/io/hf_checkpoint.h"
#include "models/registry.h"
#include "models/weight_map.h"

namespace pptrain::models {
namespace {

// The layer of a global name ("layers.17.attn.q.weight" -> 17), nothing for one outside the layers.
std::optional<int> layer_of(std::string_view global) {
  constexpr std::string_view prefix = "layers.";
  int layer = 0;
  if (!global.starts_with(prefix)) return {};
  global.remove_prefix(prefix.size());
  if (std::from_chars(global.data(), global.data() + global.size(), layer).ec != std::errc()) return {};
  return layer;
}

// A weight that the file has and the model lacks (a bias, most likely) would give wrong results without a
// word.
void refuse_left_over(TransformerStage& stage, std::span<const WeightName> names,
                      const io::HfCheckpoint& checkpoint) {
  for (const std::string& name : checkpoint.names()) {
    const auto global = global_name(names, name);
    const auto layer = global ? layer_of(*global) : std::nullopt;
    if (layer && *layer >= stage.slice().first_layer && *layer < stage.slice().end_layer &&
        stage.parameters().find(*global) == nullptr) {
      throw Error(
          fmt::format("{}: tensor {} has no place in this {} model: do its config.json and [model] describe "
                      "these weights (biases, q_norm and k_norm)?",
                      checkpoint.folder().string(), name, stage.model().arch));
    }
  }
}

}  // namespace

void load_hf_weights(TransformerStage& stage, const std::filesystem::path& hf_dir) {
  const io::HfCheckpoint checkpoint(hf_dir);
  const std::span<const WeightName> names = find_architecture(stage.model().arch).weights;
  refuse_left_over(stage, names, checkpoint);
  for (nn::Slice* slice : stage.parameters().slices()) {
    const std::string name = hf_name(names, slice->spec.name, stage.tied());
    const at::Tensor stored = checkpoint.tensor(name);
    if (stored.sizes() != at::IntArrayRef(slice->spec.shape)) {
      throw Error(fmt::format("{}: tensor {} has shape [{}], but {} of this model has [{}]", hf_dir.string(),
                              name, fmt::join(stored.sizes(), ", "), slice->spec.name,
                              fmt::join(slice->spec.shape, ", ")));
    }
    if (!stored.is_floating_point()) {
      throw Error(fmt::format("{}: tensor {} does not hold floating-point numbers", hf_dir.string(), name));
    }
    nn::copy_slice(stored, slice->shape, slice->master);
  }
  stage.parameters().refresh_compute();
}

}  // namespace pptrain::models
