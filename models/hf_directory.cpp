#include "models/hf_directory.h"

#include <ATen/core/Tensor.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/base/error.h"
#include "core/nn/adapter.h"
#include "models/hf_config.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

namespace fs = std::filesystem;

// --- What becomes of a tensor that no parameter takes, in this order:
//
//   Ignored   computed_endings: transformers computes these itself.
//   Refused   quantized_endings: weights in fewer bits, or their scales.
//   Noted     layers of multi-token prediction (num_nextn_predict_layers), which transformers does not load.
//   Refused   another tensor of the model's layers, of a layer behind them, or of its embedding, norm or head
//   Noted     everything else, as transformers does
//
// If a tied model (tie_word_embeddings) has a head tensor too, the tensor is the embedding again, or a head
// of its own with a warning: read_hf_model.

// Rotary frequencies, and masks of GPT-2 and GPT-NeoX.
constexpr std::string_view computed_endings[] = {
    "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", ".attn.bias",
    ".attn.masked_bias",   ".attention.bias",       ".attention.masked_bias"};

// Endings of fp8, GPTQ, AWQ, bitsandbytes and mxfp4.
constexpr std::string_view quantized_endings[] = {".weight_scale_inv",
                                                  ".weight_scale",
                                                  ".input_scale",
                                                  ".weight_packed",
                                                  ".qweight",
                                                  ".qzeros",
                                                  ".scales",
                                                  ".g_idx",
                                                  ".absmax",
                                                  ".quant_map",
                                                  ".SCB",
                                                  "_blocks",
                                                  "_scales"};

bool ends_with_one(std::string_view name, std::span<const std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); });
}

// The layer in the name of a tensor of the model's layers, whatever the module. A number too large for int
// becomes the largest int.
std::optional<int> layer_of(std::span<const WeightName> names, std::string_view usual) {
  const std::string first = hf_name(names, "layers.0.attn.o.weight");
  const std::string before = first.substr(0, first.find('0'));  // "model.layers."
  if (!usual.starts_with(before)) return {};
  usual.remove_prefix(before.size());
  int layer = 0;
  const auto read = std::from_chars(usual.data(), usual.data() + usual.size(), layer);
  if (read.ec == std::errc::result_out_of_range) return std::numeric_limits<int>::max();
  return read.ec == std::errc() ? std::optional(layer) : std::nullopt;
}

// Like torch.equal of both as float32; compares `piece` elements at a time, up to the first difference.
bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  constexpr int64_t piece = int64_t{1} << 20;
  const at::Tensor left = a.view({-1}), right = b.view({-1});
  for (int64_t begin = 0; begin < left.numel(); begin += piece) {
    const int64_t count = std::min(piece, left.numel() - begin);
    if (!left.narrow(0, begin, count).to(at::kFloat).equal(right.narrow(0, begin, count).to(at::kFloat)))
      return false;
  }
  return true;
}

// The tensors of an embedding and of a head; nothing unless a directory has both.
struct TwoEnds {
  std::string embedding, head;  // names in the directory
};
std::optional<TwoEnds> two_ends(std::span<const WeightName> names, const HfNames& stored) {
  const std::string embedding = stored.stored(hf_name(names, "embed.weight"));
  if (embedding.empty()) return {};
  for (const std::string& usual : hf_names(names, "head.weight")) {
    if (const std::string head = stored.stored(usual); !head.empty()) return TwoEnds{embedding, head};
  }
  return {};
}

bool has_own_head(const config::ModelSection& model, const fs::path& folder) {
  const std::span<const WeightName> names = find_architecture(model.arch).weights;
  try {
    const io::HfCheckpoint files(folder);
    const auto both = two_ends(names, HfNames(names, files.names()));
    return both && !same_values(files.tensor(both->embedding), files.tensor(both->head));
  } catch (const Error&) {
    return false;  // the error is reported when weights are needed
  }
}

bool has_config(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "config.json", error);
}

// Adapters have no tensor. Biases that balance experts have one only if they are part of the family.
bool has_tensor(const ModelConfig& model, const nn::ParameterSpec& spec) {
  if (spec.role == nn::Role::balance) return find_architecture(model.arch).decoder.sigmoid_router;
  return !nn::adapted_weight(spec.name);
}

std::vector<std::string> stored_parameters(const ModelConfig& model) {
  TransformerStage whole(model, whole_model(model));
  std::vector<std::string> parameters;
  for (const nn::ParameterSpec* spec : whole.parameters().specs())
    if (has_tensor(model, *spec)) parameters.push_back(spec->name);
  return parameters;
}

// "3 tensors (a, b, ...)".
std::string some_of(const std::vector<std::string>& tensors) {
  constexpr size_t shown = 3;
  const std::span first = std::span(tensors).first(std::min(shown, tensors.size()));
  return fmt::format("{} tensor{} ({}{})", tensors.size(), tensors.size() == 1 ? "" : "s",
                     fmt::join(first, ", "), tensors.size() > shown ? ", ..." : "");
}

}  // namespace

config::ModelSection read_hf_model(const std::string& dir) {
  config::ModelSection model = read_hf_config(dir);
  if (model.tie_word_embeddings && has_own_head(model, dir)) model.tie_word_embeddings = false;
  return model;
}

HfNames::HfNames(std::span<const WeightName> names, const std::vector<std::string>& stored)
    : names_(names), all_(stored.begin(), stored.end()) {
  const std::string embedding = hf_name(names, "embed.weight");
  const std::string base = embedding.substr(0, embedding.rfind('.', embedding.rfind('.') - 1) + 1);
  struct Beginning {
    std::string here, usual;
  };
  const Beginning known[] = {{"", ""}, {"", base}, {"language_model.", ""}, {"model.language_model.", base}};
  for (const Beginning& one : known) {
    if (!all_.contains(one.here + embedding.substr(one.usual.size()))) continue;
    begins_ = one.here;
    usually_ = one.usual;
    return;
  }
}

std::string HfNames::usual(const std::string& stored) const {
  if (begins_ == usually_ || !stored.starts_with(begins_) || global_name(names_, stored)) return stored;
  return usually_ + stored.substr(begins_.size());
}

std::string HfNames::stored(const std::string& usual) const {
  if (all_.contains(usual)) return usual;
  if (!usual.starts_with(usually_)) return {};
  std::string here = begins_ + usual.substr(usually_.size());
  return all_.contains(here) ? here : std::string();
}

HfDirectory::HfDirectory(const ModelConfig& model, const fs::path& folder)
    : model_(model),
      files_(folder),
      parameters_(stored_parameters(model)),
      map_(weight_map(model, whole_model(model))),
      names_(find_architecture(model.arch).weights, files_.names()) {
  if (has_config(folder)) prediction_layers_ = static_cast<int>(hf_prediction_layers(folder.string()));
  const std::set<std::string> used = taken();
  for (const std::string& stored : files_.names()) {
    const std::string usual = names_.usual(stored);
    if (map_.find(usual) == nullptr) {
      sort_out(stored, usual);
    } else if (!used.contains(usual)) {
      check_unused(stored, usual);
    }
  }
  note_left_out();
  if (!model_.tied && has_config(folder)) warn_of_own_head();
}

void HfDirectory::refuse(const std::string& stored, const std::string& why) const {
  throw Error(fmt::format("{}: tensor {} {}", files_.folder().string(), stored, why));
}

std::set<std::string> HfDirectory::taken() const {
  std::set<std::string> used;
  for (const std::string& parameter : parameters_) {
    const auto& candidates = map_.tensors_of(parameter);
    const auto found = std::ranges::find_if(
        candidates, [&](const std::string& usual) { return !names_.stored(usual).empty(); });
    if (found != candidates.end()) used.insert(*found);
  }
  return used;
}

// A second tensor of a parameter that is read from another one: the head of a tied model, or experts in two
// forms.
void HfDirectory::check_unused(const std::string& stored, const std::string& usual) {
  const std::string& parameter = map_.find(usual)->parts.front().parameter;
  const HfWeight place = find(parameter);
  if (!model_.tied || parameter != "embed.weight")
    refuse(stored,
           fmt::format("holds {}, which {} holds too: which of them is right?", parameter, place.tensor));
  if (same_values(files_.tensor(place.tensor), files_.tensor(stored))) return;
  refuse(stored, fmt::format("is not {}, but this model has one matrix for both (tie_word_embeddings): it is "
                             "of a model with a head of its own",
                             place.tensor));
}

void HfDirectory::sort_out(const std::string& stored, const std::string& usual) {
  const std::span<const WeightName> names = find_architecture(model_.arch).weights;
  const std::optional<int> layer = layer_of(names, usual);
  const bool predicts = layer && *layer >= model_.layers && *layer - model_.layers < prediction_layers_;
  if (ends_with_one(usual, computed_endings)) {
    others_.push_back(stored);
  } else if (ends_with_one(usual, quantized_endings)) {
    refuse(stored, "is of quantized weights, which are not supported: take the model's bf16 or fp32 version");
  } else if (predicts) {
    others_.push_back(stored);
    predicting_.push_back(stored);
  } else if (layer && *layer >= model_.layers) {
    refuse(stored,
           fmt::format("is of layer {}, but this model has {} (num_hidden_layers), counted from 0: are "
                       "its config.json and [model] those of these weights?",
                       *layer, model_.layers));
  } else if (layer || global_name(names, usual)) {
    // A weight that the file has and the model lacks (most likely a bias) would silently give wrong results.
    refuse(stored, fmt::format("has no place in this {} model: do its config.json and [model] describe these "
                               "weights (biases, q_norm and k_norm, experts)?",
                               model_.arch));
  } else {
    others_.push_back(stored);
    unknown_.push_back(stored);
  }
}

void HfDirectory::note_left_out() {
  const auto note = [&](const std::vector<std::string>& tensors, std::string_view why) {
    if (!tensors.empty())
      notes_.push_back(fmt::format("{}: {} {}", files_.folder().string(), some_of(tensors), why));
  };
  note(predicting_, "of layers for multi-token prediction are left out, as in transformers");
  note(unknown_, "that this model does not have are left out, as in transformers");
}

void HfDirectory::warn_of_own_head() {
  const auto both = two_ends(find_architecture(model_.arch).weights, names_);
  if (!both || !read_hf_config(files_.folder().string()).tie_word_embeddings) return;
  warnings_.push_back(fmt::format(
      "{}: {} differs from {}, though config.json says tie_word_embeddings: the head is a matrix of its own, "
      "as in transformers 5. Write false into config.json, or remove {} if the embedding is the head",
      files_.folder().string(), both->head, both->embedding, both->head));
}

namespace {

void check_tensor(const io::HfCheckpoint& files, const std::string& stored, const HfTensor& tensor,
                  std::string_view parameter) {
  const io::TensorSpec& spec = files.spec(stored);
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("{}: tensor {} {}", files.folder().string(), stored, why));
  };
  if (spec.shape != tensor.shape) {
    refuse(fmt::format("has shape [{}], but {}{} of this model has [{}]", fmt::join(spec.shape, ", "),
                       tensor.parts.size() > 1 ? "the tensor with " : "", parameter,
                       fmt::join(tensor.shape, ", ")));
  }
  if (!c10::isFloatingType(spec.dtype)) refuse("does not hold floating-point numbers");
  if (spec.dtype != at::kFloat && spec.dtype != at::kBFloat16 && spec.dtype != at::kHalf) {
    refuse(fmt::format("is stored as {}; F32, BF16 and F16 are read, and nothing else",
                       io::dtype_name(spec.dtype)));
  }
}

}  // namespace

HfWeight HfDirectory::find(std::string_view parameter) const {
  const std::vector<std::string>& candidates = map_.tensors_of(parameter);
  for (const std::string& usual : candidates) {
    const std::string stored = names_.stored(usual);
    if (stored.empty()) continue;
    check_tensor(files_, stored, *map_.find(usual), parameter);
    HfWeight place = map_.place(parameter, usual);
    place.tensor = stored;
    return place;
  }
  files_.spec(candidates.front());  // throws: it is missing
  return {};
}

std::vector<HfWeight> HfDirectory::find_all() const {
  std::vector<HfWeight> places;
  for (const std::string& parameter : parameters_) places.push_back(find(parameter));
  return places;
}

void HfDirectory::load(TransformerStage& stage) const {
  for (nn::Slice* slice : stage.parameters().slices()) {
    if (!has_tensor(stage.model(), slice->spec)) continue;
    const HfWeight place = find(slice->spec.name);
    at::Tensor values = slice->values();
    copy_slice(place, files_.tensor(place.tensor), slice->shape, values);
  }
  stage.parameters().refresh_compute();
}

WeightMap weight_map(const ModelConfig& model, const StageSlice& slice) {
  TransformerStage stage(model, slice);
  std::vector<const nn::ParameterSpec*> specs = stage.parameters().specs();
  std::erase_if(specs, [&](const nn::ParameterSpec* spec) { return !has_tensor(model, *spec); });
  return WeightMap(find_architecture(model.arch).weights, specs, model.tied, model.kv_heads);
}

namespace {

// Of a parameter that the model needs and Hugging Face's files have no tensor for.
bool has_no_place(const ModelConfig& model, const nn::ParameterSpec& spec) {
  return spec.role == nn::Role::balance && !has_tensor(model, spec);
}

std::string why_no_place(const ModelConfig& model, const nn::ParameterSpec& spec) {
  return fmt::format(
      "{}: {} has no bias on the choice of experts (model.router_bias_update_rate > 0), and without it the "
      "model would compute something else: pptrain convert cannot write it",
      spec.name, find_architecture(model.arch).hf_class);
}

}  // namespace

std::vector<std::string> export_warnings(const ModelConfig& model) {
  TransformerStage whole(model, whole_model(model));
  const WeightMap map = weight_map(model, whole.slice());
  std::vector<std::string> warnings;
  std::set<std::string> shared;  // "attn.q", of all layers
  for (const nn::ParameterSpec* spec : whole.parameters().specs()) {
    if (warnings.empty() && has_no_place(model, *spec)) warnings.push_back(why_no_place(model, *spec));
    const auto weight = nn::adapted_weight(spec->name);
    if (!weight || map.find(map.tensors_of(*weight).front())->parts.size() == 1) continue;
    const size_t module = weight->find('.', weight->find('.') + 1) + 1;  // behind "layers.0."
    shared.insert(weight->substr(module, weight->rfind('.') - module));
  }
  if (find_architecture(model.arch).heads_divide_width && model.hidden % model.heads != 0)
    warnings.push_back(fmt::format(
        "model.hidden_size = {} is no multiple of num_attention_heads = {}: transformers refuses such a {}",
        model.hidden, model.heads, find_architecture(model.arch).hf_class));
  if (shared.empty()) return warnings;
  warnings.push_back(fmt::format(
      "adapters of {}: {}'s files have these weights in one tensor with others, which peft cannot "
      "adapt. pptrain convert will write the whole model (--merge), not the adapters",
      fmt::join(shared, ", "), model.arch));
  return warnings;
}

std::vector<HfTensor> hf_tensors(const ModelConfig& model) {
  TransformerStage whole(model, whole_model(model));
  const WeightMap map = weight_map(model, whole.slice());
  std::vector<HfTensor> tensors;
  std::set<std::string> taken;
  for (const nn::ParameterSpec* spec : whole.parameters().specs()) {
    if (has_no_place(model, *spec)) throw UsageError(why_no_place(model, *spec));
    if (!has_tensor(model, *spec)) continue;
    const std::string& tensor = map.tensors_of(spec->name).front();
    if (!taken.insert(tensor).second) continue;
    tensors.push_back(*map.find(tensor));
    tensors.back().float32 = spec->role == nn::Role::balance;
  }
  return tensors;
}

}  // namespace pptrain::models
