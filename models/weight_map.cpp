#include "models/weight_map.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/error.h"

namespace pptrain::models {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;  // global, Hugging Face

constexpr Pair outside_layers[] = {
    {"embed.weight", "model.embed_tokens.weight"},
    {"norm.weight", "model.norm.weight"},
    {"head.weight", "lm_head.weight"},
};

// Modules within a layer; each has a weight and may have a bias.
constexpr Pair layer_modules[] = {
    {"attn_norm", "input_layernorm"},    {"attn.q", "self_attn.q_proj"},
    {"attn.k", "self_attn.k_proj"},      {"attn.v", "self_attn.v_proj"},
    {"attn.o", "self_attn.o_proj"},      {"attn.q_norm", "self_attn.q_norm"},
    {"attn.k_norm", "self_attn.k_norm"}, {"mlp_norm", "post_attention_layernorm"},
    {"mlp.gate", "mlp.gate_proj"},       {"mlp.up", "mlp.up_proj"},
    {"mlp.down", "mlp.down_proj"},
};

constexpr std::string_view global_prefix = "layers.";
constexpr std::string_view hf_prefix = "model.layers.";

// Translates `<from_prefix><number>.<module>.<weight|bias>`, or a name outside the layers.
std::optional<std::string> translate(std::string_view name, std::string_view from_prefix,
                                     std::string_view to_prefix, std::string_view Pair::*from,
                                     std::string_view Pair::*to) {
  for (const auto& pair : outside_layers) {
    if (pair.*from == name) return std::string(pair.*to);
  }
  if (!name.starts_with(from_prefix)) return {};
  std::string_view rest = name.substr(from_prefix.size());
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0 || digits == rest.size() || rest[digits] != '.') return {};
  const std::string_view number = rest.substr(0, digits);
  rest.remove_prefix(digits + 1);
  const size_t dot = rest.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view module = rest.substr(0, dot);
  const std::string_view kind = rest.substr(dot + 1);
  if (kind != "weight" && kind != "bias") return {};
  for (const auto& pair : layer_modules) {
    if (pair.*from != module) continue;
    std::string result(to_prefix);
    for (const auto piece : {number, std::string_view("."), pair.*to, std::string_view("."), kind})
      result += piece;
    return result;
  }
  return {};
}

}  // namespace

std::string hf_name(std::string_view global, bool tied) {
  if (tied && global == "head.weight") global = "embed.weight";
  auto name = translate(global, global_prefix, hf_prefix, &Pair::first, &Pair::second);
  if (!name) throw Error("no Hugging Face name is known for the parameter " + std::string(global));
  return *std::move(name);
}

std::optional<std::string> global_name(std::string_view hf) {
  return translate(hf, hf_prefix, global_prefix, &Pair::second, &Pair::first);
}

}  // namespace pptrain::models
