// The architectures by name: the one list to extend when a model is added.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "core/config/job_config.h"
#include "core/config/loader.h"
#include "models/block.h"
#include "models/model_config.h"
#include "models/weight_map.h"

namespace pptrain::models {

class HfJson;

// Everything that describes one architecture.
struct Architecture {
  std::string_view name;                // model.arch
  std::string_view hf_model_type;       // config.json's model_type
  std::string_view hf_class;            // its `architectures`: the class in transformers
  std::span<const WeightName> weights;  // beside, or instead of, decoder_weights

  // What the architecture fixes, of the layer with this number.
  BlockConfig (*block)(const ModelConfig&, int64_t layer);
  // Reads what differs from one architecture to the next, with transformers' defaults: kv heads, head_dim,
  // max_position_embeddings, biases. The other sizes are there already. Refuses what is not supported.
  void (*read_hf)(const HfJson& json, config::ModelSection& model);
  // The inverse: writes what it reads, and what of the architecture is to stay off.
  void (*write_hf)(const config::ModelSection& model, nlohmann::ordered_json& json);
  // Reports settings of [model] that the architecture does not have. Null where there are none.
  void (*check)(const config::ModelSection& model, const config::ReportConflict& report);
};

// Each is defined in the file of its name.
extern const Architecture llama;
extern const Architecture qwen3;
extern const Architecture qwen3_moe;
extern const Architecture mixtral;

inline constexpr const Architecture* architectures[] = {&llama, &qwen3, &qwen3_moe, &mixtral};

// Throws UsageError that lists the known names.
const Architecture& find_architecture(std::string_view name);

}  // namespace pptrain::models
