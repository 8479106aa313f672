#include "models/weight_map.h"

#include <ATen/ops/as_strided.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/base/error.h"

namespace pptrain::models {
namespace {

// The numbers that stand at the pattern's '*'s; nothing if `name` is not the pattern's.
std::optional<std::vector<std::string_view>> match(std::string_view pattern, std::string_view name) {
  std::vector<std::string_view> numbers;
  for (size_t star = pattern.find('*'); star != std::string_view::npos; star = pattern.find('*')) {
    if (!name.starts_with(pattern.substr(0, star))) return std::nullopt;
    name.remove_prefix(star);
    pattern.remove_prefix(star + 1);
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits == 0) return std::nullopt;
    numbers.push_back(name.substr(0, digits));
    name.remove_prefix(digits);
  }
  return name == pattern ? std::optional(std::move(numbers)) : std::nullopt;
}

int64_t stars(std::string_view pattern) {
  return std::ranges::count(pattern, '*');
}

// Fills in as many numbers as the pattern has '*'s.
std::string fill(std::string_view pattern, const std::vector<std::string_view>& numbers) {
  std::string result;
  for (const std::string_view number : numbers) {
    const size_t star = pattern.find('*');
    if (star == std::string_view::npos) break;
    result.append(pattern.substr(0, star)).append(number);
    pattern.remove_prefix(star + 1);
  }
  return result.append(pattern);
}

// `<module>.<weight|bias>`, taken apart.
struct ModuleName {
  std::string_view module, kind;
};
std::optional<ModuleName> split(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view kind = name.substr(dot + 1);
  if (kind != "weight" && kind != "bias") return std::nullopt;
  return ModuleName{name.substr(0, dot), kind};
}

// A name translated to the other side.
struct Translation {
  std::string name;
  std::vector<std::string_view> numbers;
  const WeightName* entry;
};

using Side = std::string_view WeightName::*;

std::optional<Translation> translate(const WeightName& entry, std::string_view name, Side from, Side to) {
  if (split(entry.global) || entry.global.ends_with(".sinks")) {
    auto numbers = match(entry.*from, name);
    if (!numbers || stars(entry.*to) > std::ssize(*numbers)) return std::nullopt;
    return Translation{fill(entry.*to, *numbers), *std::move(numbers), &entry};
  }
  const auto parts = split(name);
  auto numbers = parts ? match(entry.*from, parts->module) : std::nullopt;
  if (!numbers) return std::nullopt;
  return Translation{fmt::format("{}.{}", fill(entry.*to, *numbers), parts->kind), *std::move(numbers),
                     &entry};
}

// All translations, first among `names`, then among decoder_weights.
std::vector<Translation> translate(std::span<const WeightName> names, std::string_view name, Side from,
                                   Side to) {
  std::vector<Translation> result;
  for (const std::span<const WeightName> list : {names, std::span<const WeightName>(decoder_weights)}) {
    for (const WeightName& entry : list) {
      if (auto found = translate(entry, name, from, to)) result.push_back(*std::move(found));
    }
    if (!result.empty()) break;
  }
  return result;
}

std::vector<Translation> to_hf(std::span<const WeightName> names, std::string_view global) {
  auto result = translate(names, global, &WeightName::global, &WeightName::hf);
  if (result.empty()) throw Error(fmt::format("no Hugging Face name is known for the parameter {}", global));
  return result;
}

int64_t to_number(std::string_view digits) {
  int64_t number = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), number).ec != std::errc())
    throw Error(fmt::format("{} is no layer and no expert", digits));
  return number;
}

}  // namespace

std::string hf_name(std::span<const WeightName> names, std::string_view global) {
  return to_hf(names, global).front().name;
}

std::vector<std::string> hf_names(std::span<const WeightName> names, std::string_view global) {
  std::vector<std::string> all;
  for (Translation& one : to_hf(names, global)) all.push_back(std::move(one.name));
  return all;
}

std::optional<std::string> global_name(std::span<const WeightName> names, std::string_view hf) {
  auto result = translate(names, hf, &WeightName::hf, &WeightName::global);
  return result.empty() ? std::nullopt : std::optional(std::move(result.front().name));
}

bool HfWeight::is_contiguous() const {
  return (columns() == 1 || column_stride == 1) && row_stride == columns() &&
         (bands == 1 || band_stride == rows() / bands * row_stride);
}

at::Tensor HfWeight::view_of(const at::Tensor& tensor) const {
  return at::as_strided(tensor, {bands, rows() / bands, columns()}, {band_stride, row_stride, column_stride},
                        tensor.storage_offset() + first);
}

at::Tensor HfWeight::rows_of(const at::Tensor& tensor, int64_t begin, int64_t end) const {
  const at::Tensor view = view_of(tensor);
  if (bands == 1) return view.squeeze(0).narrow(0, begin, end - begin);
  const int64_t band = rows() / bands;
  const int64_t first_band = begin / band, end_band = (end + band - 1) / band;
  return view.narrow(0, first_band, end_band - first_band)
      .reshape({-1, columns()})
      .narrow(0, begin - first_band * band, end - begin);
}

void copy_slice(const HfWeight& weight, const at::Tensor& tensor, const nn::SliceShape& slice,
                at::Tensor& out) {
  const bool matrix = slice.box.size() > 1;
  const int64_t width = matrix ? slice.box[1] : 1;
  const int64_t begin = slice.begin / width, end = (slice.end + width - 1) / width;  // rows of the box
  at::Tensor rows = weight.rows_of(tensor, slice.offset[0] + begin, slice.offset[0] + end);
  if (matrix) rows = rows.narrow(1, slice.offset[1], width);
  out.view({-1}).copy_(rows.reshape({-1}).narrow(0, slice.begin - begin * width, slice.numel()));
}

// Parameters of one tensor, while they are added.
struct WeightMap::Shared {
  struct Member {
    const nn::ParameterSpec* spec = nullptr;
    std::string parameter;
    int64_t expert = 0;
  };
  Rows rows = Rows::of_parameter;
  bool transposed = false;
  bool of_experts = false;
  std::vector<Member> members;

  HfTensor lay_out(const std::string& name, int64_t kv_heads) const;
};

// Experts lie one after the other, each as a tensor of its own would.
HfTensor WeightMap::Shared::lay_out(const std::string& name, int64_t kv_heads) const {
  const std::vector<int64_t>& one = members.front().spec->shape;
  const int64_t columns = one.size() > 1 ? one[1] : 1;
  int64_t experts = 0, all_rows = 0;
  for (const Member& member : members) {
    experts = std::max(experts, member.expert + 1);
    all_rows += member.spec->shape.front();
  }
  all_rows /= experts;
  const bool turned = transposed && one.size() > 1;
  const int64_t bands = rows == Rows::of_head ? kv_heads : rows == Rows::in_turn ? one.front() : 1;
  const int64_t row_stride = turned ? 1 : columns;
  HfTensor tensor{.name = name, .shape = {}, .parts = {}};
  std::vector<int64_t> above(static_cast<size_t>(experts));  // rows of the members before, of each expert
  for (const Member& member : members) {
    int64_t& before = above[static_cast<size_t>(member.expert)];
    tensor.parts.push_back({.parameter = member.parameter,
                            .shape = member.spec->shape,
                            .tensor = name,
                            .first = member.expert * all_rows * columns + before / bands * row_stride,
                            .bands = bands,
                            .band_stride = all_rows / bands * row_stride,
                            .row_stride = row_stride,
                            .column_stride = turned ? all_rows : 1});
    before += member.spec->shape.front();
  }
  std::ranges::sort(tensor.parts, {}, &HfWeight::first);
  if (of_experts) tensor.shape.push_back(experts);
  if (turned) tensor.shape.push_back(columns);
  tensor.shape.push_back(all_rows);
  if (!turned && one.size() > 1) tensor.shape.push_back(columns);
  return tensor;
}

WeightMap::WeightMap(std::span<const WeightName> names, const std::vector<const nn::ParameterSpec*>& specs,
                     bool tied, int64_t kv_heads)
    : tied_(tied) {
  std::map<std::string, Shared> shared;
  for (const nn::ParameterSpec* spec : specs) add(names, *spec, shared);
  for (const auto& [name, tensor] : shared) tensors_.emplace(name, tensor.lay_out(name, kv_heads));
}

std::string_view WeightMap::stored_as(std::string_view parameter) const {
  return tied_ && parameter == "head.weight" ? "embed.weight" : parameter;
}

void WeightMap::add(std::span<const WeightName> names, const nn::ParameterSpec& spec,
                    std::map<std::string, Shared>& shared) {
  const std::string parameter(stored_as(spec.name));
  const auto [known, is_new] = of_parameter_.try_emplace(parameter);
  if (!is_new) return;  // the tied head: the embedding is in already
  auto found = to_hf(names, parameter);
  if (tied_ && parameter == "embed.weight") {
    for (Translation& head : to_hf(names, "head.weight")) found.push_back(std::move(head));
  }
  for (const Translation& place : found) {
    const bool of_experts = stars(place.entry->global) > stars(place.entry->hf);
    Shared& tensor = shared[place.name];
    tensor.rows = place.entry->rows;
    tensor.transposed = place.entry->transposed;
    tensor.of_experts = of_experts;
    tensor.members.push_back({&spec, parameter, of_experts ? to_number(place.numbers.back()) : 0});
    known->second.push_back(place.name);
  }
}

const HfTensor* WeightMap::find(std::string_view tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? nullptr : &found->second;
}

const std::vector<std::string>& WeightMap::tensors_of(std::string_view parameter) const {
  return of_parameter_.find(stored_as(parameter))->second;
}

HfWeight WeightMap::place(std::string_view parameter, const std::string& tensor) const {
  HfWeight weight = *std::ranges::find(tensors_.at(tensor).parts, stored_as(parameter), &HfWeight::parameter);
  weight.parameter = parameter;
  return weight;
}

}  // namespace pptrain::models
