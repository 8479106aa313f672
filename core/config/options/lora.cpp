// The options of [lora].
#include <vector>

#include "core/config/options/sections.h"

namespace pptrain::config {
namespace {

bool adapts(const JobConfig& job) {
  return job.lora.rank > 0;
}

}  // namespace

void add_lora(std::vector<Option>& options) {
  SectionFields<LoraSection> lora(options, "lora", [](JobConfig& j) -> LoraSection& { return j.lora; });
  const auto adapter = lora.only_if("lora.rank > 0", {"lora.rank"}, adapts);
  lora("rank", &LoraSection::rank,
       "Rank of low-rank adapters (LoRA). Only adapters learn: all other weights are frozen, held only in "
       "train.dtype, and come from model.hf_dir or run.seed. Checkpoints hold the adapters. 0: none.")
      .between(0, 1 << 16)
      .decides(Effect::model);
  adapter("alpha", &LoraSection::alpha, "Adapters' outputs are multiplied by alpha / rank.")
      .above(0)
      .decides(Effect::model);
  adapter("dropout", &LoraSection::dropout, "Dropout of adapters' inputs: must be 0 (layers have none).")
      .at_least(0)
      .decides(Effect::model);
  adapter("targets", &LoraSection::targets,
          "Patterns for the linear layers that have an adapter: names of layers or weights, with * for any "
          "characters, such as \"*.q\" or \"layers.0.attn.*\". Default: all projections of attention (q, k, "
          "v, o; in latent attention q_a, q_b, kv_a, kv_b) and of dense MLPs (gate, up, down). Experts and "
          "routers have none.")
      .decides(Effect::model);
}

}  // namespace pptrain::config
