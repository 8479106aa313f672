#include "app/rank/not_finite.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <vector>

namespace pptrain::app {

namespace {

// A parameter's place in the model: its stage, and its number in the stage's declarations. Ranks that shard a
// layer's experts count their own.
struct NotFinite {
  int64_t place = 0;
  std::string name;
};

constexpr int64_t places_of_stage = int64_t{1} << 32;
constexpr int64_t nowhere = std::numeric_limits<int64_t>::max();

// Chunk by chunk, since isfinite() needs a result as large as its input.
bool is_finite(const at::Tensor& tensor) {
  constexpr int64_t piece = int64_t{1} << 22;
  const at::Tensor flat = tensor.view({-1});
  for (int64_t first = 0; first < flat.numel(); first += piece) {
    const at::Tensor part = flat.narrow(0, first, std::min(piece, flat.numel() - first));
    if (!at::isfinite(part).all().item<bool>()) return false;
  }
  return true;
}

// This rank's values that are not finite, in the model's order.
template <typename Value>
std::vector<NotFinite> find_not_finite(std::span<const RankModel::RankStage> stages, Value value) {
  std::vector<NotFinite> found;
  for (const RankModel::RankStage& own : stages) {
    nn::ParameterStore& parameters = own.stage->parameters();
    std::map<std::string, int64_t> numbers;
    for (const nn::ParameterSpec* spec : parameters.specs())
      numbers.emplace(spec->name, static_cast<int64_t>(numbers.size()));
    for (const nn::Slice* slice : parameters.slices()) {
      const at::Tensor& tensor = std::invoke(value, *slice);
      if (slice->spec.role == nn::Role::balance || !tensor.defined() || is_finite(tensor)) continue;
      found.push_back(
          {own.stage->index() * places_of_stage + numbers.at(slice->spec.name), slice->spec.name});
    }
  }
  std::ranges::sort(found, {}, &NotFinite::place);
  return found;
}

// The name nearest to the loss, or else to the input, that any rank gives; "" if none gives one.
std::string nearest(comm::Communicator& world, const std::vector<NotFinite>& found, bool to_loss) {
  const NotFinite* const own = found.empty() ? nullptr : to_loss ? &found.back() : &found.front();
  const at::Tensor mine = at::empty({1}, at::kLong);
  *mine.mutable_data_ptr<int64_t>() = own == nullptr ? nowhere : to_loss ? -own->place : own->place;
  const at::Tensor all = at::empty({world.size(), 1}, at::kLong);
  world.host().all_gather(all, mine);
  const int64_t* const begin = all.const_data_ptr<int64_t>();
  const int64_t* const least = std::min_element(begin, begin + world.size());
  if (*least == nowhere) return "";
  return comm::broadcast_string(world, own == nullptr ? "" : own->name, static_cast<int>(least - begin));
}

}  // namespace

std::string describe_not_finite(comm::Communicator& world, std::span<const RankModel::RankStage> stages) {
  const std::vector<NotFinite> gradients = find_not_finite(stages, &nn::Slice::grad);
  const std::string weight = nearest(world, find_not_finite(stages, &nn::Slice::values), /*to_loss=*/false);
  const std::string nearest_to_loss = nearest(world, gradients, /*to_loss=*/true);
  const std::string nearest_to_input = nearest(world, gradients, /*to_loss=*/false);
  std::string text;
  if (!weight.empty()) text = fmt::format("the weight {} is not finite; ", weight);
  if (nearest_to_loss.empty()) return text + "all gradients are finite";
  if (nearest_to_loss == nearest_to_input)
    return text + fmt::format("of the gradients, that of {} alone is not finite", nearest_to_loss);
  return text + fmt::format("gradients are not finite from {}, where the backward pass met the first, to {}",
                            nearest_to_loss, nearest_to_input);
}

}  // namespace pptrain::app
