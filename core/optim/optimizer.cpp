#include "core/optim/optimizer.h"

#include <ATen/ops/zeros_like.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/optim/adamw.h"

namespace pptrain::optim {
namespace {

struct Entry {
  std::string_view name;  // optimizer.name
  std::unique_ptr<Optimizer> (*make)(const config::OptimizerSection&, std::vector<nn::Shard*>);
  OptimizerFootprint footprint;
};

template <typename Kind>
std::unique_ptr<Optimizer> make(const config::OptimizerSection& options, std::vector<nn::Shard*> shards) {
  return std::make_unique<Kind>(std::move(shards), options);
}

// The optimizers by name: the one list to extend when one is added.
constexpr Entry entries[] = {
    {.name = "adamw", .make = make<AdamW>, .footprint = AdamW::footprint},
};

const Entry& find(const std::string& name) {
  const auto* const found = std::ranges::find(entries, name, &Entry::name);
  if (found != std::end(entries)) return *found;
  std::vector<std::string_view> names;
  for (const Entry& entry : entries) names.push_back(entry.name);
  throw UsageError(fmt::format("optimizer.name: \"{}\" is not one of {}", name, fmt::join(names, ", ")));
}

bool decays(nn::Role role) {
  return role != nn::Role::norm && role != nn::Role::bias && role != nn::Role::balance;
}

}  // namespace

Optimizer::Optimizer(std::vector<nn::Shard*> shards, std::vector<std::string> state_files,
                     double weight_decay)
    : shards_(std::move(shards)), state_files_(std::move(state_files)), weight_decay_(weight_decay) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    const nn::Shard& shard = *shards_[i];
    if (!shard.master.defined() || !shard.grad.defined())
      throw Error("an optimizer needs parameters that were materialised with gradients");
    auto& state = state_.emplace_back();
    for (size_t file = 0; file < state_files_.size(); ++file) state.push_back(at::zeros_like(shard.master));
    for (const nn::Slice& slice : shard.slices) {
      const bool same =
          !ranges_.empty() && ranges_.back().shard == i && ranges_.back().decays == decays(slice.spec.role);
      if (!same) ranges_.push_back({i, slice.offset, 0, decays(slice.spec.role)});
      ranges_.back().size = slice.offset + slice.shape.numel() - ranges_.back().offset;
    }
  }
}

Optimizer::Buffers Optimizer::changing(size_t shard) const {
  return {.master = shards_[shard]->master, .state = state_[shard]};
}

Optimizer::Run Optimizer::make_run(const Range& range) const {
  const nn::Shard& shard = *shards_[range.shard];
  const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, range.offset, range.size); };
  const auto parts = [&](const Buffers& buffers) {
    Buffers result{.master = part(buffers.master), .state = {}};
    for (const at::Tensor& flat : buffers.state) result.state.push_back(part(flat));
    return result;
  };
  Run run{.now = parts(changing(range.shard)),
          .grad = part(shard.grad),
          .compute = {},
          .previous = {},
          .weight_decay = range.decays ? weight_decay_ : 0};
  if (shard.compute.defined()) run.compute = part(shard.compute);
  if (!previous_.empty()) run.previous = parts(previous_[range.shard]);
  return run;
}

void Optimizer::step(double lr, double grad_scale) {
  ++steps_;
  const bool copies = !previous_.empty() && !keeps_previous_itself();
  for (const Range& range : ranges_) {
    Run run = make_run(range);
    if (copies) {
      run.previous->master.copy_(run.now.master);
      for (size_t i = 0; i < run.now.state.size(); ++i) run.previous->state[i].copy_(run.now.state[i]);
      run.previous.reset();
    }
    update(run, {.lr = lr, .grad_scale = grad_scale, .step = steps_});
  }
  can_undo_ = !previous_.empty();
}

void Optimizer::keep_previous() {
  if (!previous_.empty()) return;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Buffers& previous = previous_.emplace_back();
    previous.master = at::zeros_like(shards_[i]->master);  // gaps between runs stay zero
    for (const at::Tensor& state : state_[i]) previous.state.push_back(at::zeros_like(state));
  }
}

void Optimizer::undo() {
  if (!can_undo_) throw Error("the optimizer has no step to take back, or did not keep it");
  for (size_t i = 0; i < shards_.size(); ++i) {
    const Buffers now = changing(i);
    now.master.copy_(previous_[i].master);
    for (size_t j = 0; j < now.state.size(); ++j) now.state[j].copy_(previous_[i].state[j]);
    if (shards_[i]->compute.defined()) shards_[i]->compute.copy_(now.master);
  }
  --steps_;
  can_undo_ = false;
}

std::vector<StateTensor> Optimizer::state() {
  std::vector<StateTensor> result;
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const nn::Slice& slice : shards_[i]->slices) {
      for (size_t file = 0; file < state_files_.size(); ++file) {
        result.push_back(
            {.file = state_files_[file],
             .slice = &slice,
             .tensor =
                 state_[i][file].narrow(0, slice.offset, slice.shape.numel()).view(slice.master.sizes())});
      }
    }
  }
  return result;
}

std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerSection& options,
                                          std::vector<nn::Shard*> shards) {
  return find(options.name).make(options, std::move(shards));
}

OptimizerFootprint optimizer_footprint(const config::OptimizerSection& options) {
  return find(options.name).footprint;
}

}  // namespace pptrain::optim
