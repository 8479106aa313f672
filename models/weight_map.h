// Global parameter names <-> Hugging Face tensor names. Llama and Qwen3 name their tensors alike.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace pptrain::models {

// "layers.17.attn.q.weight" -> "model.layers.17.self_attn.q_proj.weight". With `tied`, "head.weight" is the
// embedding's tensor. Throws Error for a name that no model of ours has.
std::string hf_name(std::string_view global, bool tied);

// The inverse (untied): nothing for a tensor that no parameter takes
// ("model.layers.0.self_attn.rotary_emb.inv_freq").
std::optional<std::string> global_name(std::string_view hf);

}  // namespace pptrain::models
