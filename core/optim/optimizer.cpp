#include "core/optim/optimizer.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/kernels.h"
#include "core/kernels/out_of_memory.h"

namespace pptrain::optim {

namespace {

// "adamw.exp_avg of layers.0.attn.q.weight and 8 more".
std::string describe(const std::string& file, const nn::Slice& first, size_t slices) {
  return fmt::format("{} of {}{}", file, first.spec.name,
                     slices > 1 ? fmt::format(" and {} more", slices - 1) : "");
}

}  // namespace

// Neighbouring slices of one shard under one rule.
struct Optimizer::Range {
  nn::Buffer* shard;
  Rule rule;
  size_t first_slice, slices = 0;
  int64_t offset, size = 0;
  std::vector<at::Tensor> state;
  Buffers previous;  // empty unless it is kept
  at::Tensor average, previous_average;

  at::Tensor master() const { return shard->master.narrow(0, offset, size); }
};

Optimizer::~Optimizer() = default;

Optimizer::Optimizer(std::span<nn::Buffer* const> shards, std::vector<std::unique_ptr<Update>> updates,
                     const std::function<Rule(const nn::ParameterSpec&)>& rule_of, double ema_decay)
    : updates_(std::move(updates)), ema_decay_(ema_decay) {
  for (nn::Buffer* shard : shards) {
    if (!shard->master.defined() || !shard->grad.defined())
      throw Error("an optimizer needs parameters that were materialised with gradients");
    divide(*shard, rule_of);
  }
  std::vector<std::vector<const nn::Slice*>> slices(updates_.size());
  for (Range& range : ranges_) {
    const auto allocate = [&](const std::string& file, at::ScalarType type) {
      return kernels::allocate_for(
          [&] { return describe(file, range.shard->slices[range.first_slice], range.slices); },
          [&] { return at::zeros({range.size}, range.shard->master.options().dtype(type)); });
    };
    const Update& update = *updates_[range.rule.update];
    for (const std::string& file : update.state_files())
      range.state.push_back(allocate(file, update.state_type()));
    if (ema_decay_ > 0) range.average = allocate(average_file, at::kFloat);
    for (size_t i = 0; i < range.slices; ++i)
      slices[range.rule.update].push_back(&range.shard->slices[range.first_slice + i]);
  }
  for (size_t i = 0; i < updates_.size(); ++i) updates_[i]->prepare(slices[i]);
}

void Optimizer::divide(nn::Buffer& shard, const std::function<Rule(const nn::ParameterSpec&)>& rule_of) {
  for (size_t i = 0; i < shard.slices.size(); ++i) {
    const nn::Slice& slice = shard.slices[i];
    const Rule rule = rule_of(slice.spec);
    if (i == 0 || ranges_.back().rule != rule) {
      ranges_.push_back({.shard = &shard,
                         .rule = rule,
                         .first_slice = i,
                         .offset = slice.offset,
                         .state = {},
                         .previous = {},
                         .average = {},
                         .previous_average = {}});
    }
    Range& range = ranges_.back();
    ++range.slices;
    range.size = slice.offset + slice.shape.numel() - range.offset;
  }
}

Run Optimizer::make_run(const Range& range) const {
  const nn::Buffer& shard = *range.shard;
  const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, range.offset, range.size); };
  Run run{.now = {.master = range.master(), .state = range.state},
          .grad = part(shard.grad),
          .compute = {},
          .previous = {},
          .lr_scale = range.rule.lr_scale,
          .weight_decay = range.rule.weight_decay,
          .slices = std::span(shard.slices).subspan(range.first_slice, range.slices),
          .offset = range.offset};
  if (shard.compute.defined()) run.compute = part(shard.compute);
  if (keeps_previous_) run.previous = range.previous;
  return run;
}

void Optimizer::step(double lr, double grad_scale) {
  ++steps_;
  for (size_t i = 0; i < updates_.size(); ++i) {
    std::vector<Run> runs = runs_of(i);
    updates_[i]->step(runs, lr, grad_scale, steps_);
  }
  for (const Range& range : ranges_) ++range.shard->changes;
  if (ema_decay_ > 0) average();
  can_undo_ = keeps_previous_;
}

// The decay grows over the first steps, so that the average forgets where it began (as in TensorFlow's
// ExponentialMovingAverage).
void Optimizer::average() {
  const auto steps = static_cast<double>(steps_);
  const double decay = std::min(ema_decay_, (1 + steps) / (10 + steps));
  for (Range& range : ranges_) {
    if (keeps_previous_) range.previous_average.copy_(range.average);
    kernels::momentum(range.average, range.master(), range.average, decay, /*grad_scale=*/1);
  }
}

void Optimizer::reset() {
  for (const StateTensor& own : state()) own.tensor.zero_();
  steps_ = 0;
  can_undo_ = false;
  start_average();
}

void Optimizer::start_average() {
  if (ema_decay_ == 0) return;
  for (const Range& range : ranges_) range.average.copy_(range.master());
}

// The runs that an update steps; what they overwrite is kept, unless the update does it.
std::vector<Run> Optimizer::runs_of(size_t update) const {
  std::vector<Run> runs;
  for (const Range& range : ranges_) {
    if (range.rule.update != update) continue;
    Run& run = runs.emplace_back(make_run(range));
    if (!run.previous || updates_[update]->keeps_previous()) continue;
    run.previous->master.copy_(run.now.master);
    for (size_t i = 0; i < run.now.state.size(); ++i) run.previous->state[i].copy_(run.now.state[i]);
    run.previous.reset();
  }
  return runs;
}

void Optimizer::keep_previous() {
  if (std::exchange(keeps_previous_, true)) return;
  for (Range& range : ranges_) {
    range.previous.master = at::zeros({range.size}, range.shard->master.options());
    for (const at::Tensor& state : range.state) range.previous.state.push_back(at::zeros_like(state));
    if (range.average.defined()) range.previous_average = at::zeros_like(range.average);
  }
}

void Optimizer::undo() {
  if (!can_undo_) throw Error("the optimizer has no step to take back, or did not keep it");
  for (const Range& range : ranges_) {
    const Run run = make_run(range);
    run.now.master.copy_(range.previous.master);
    for (size_t i = 0; i < range.state.size(); ++i) range.state[i].copy_(range.previous.state[i]);
    if (range.average.defined()) range.average.copy_(range.previous_average);
    if (run.compute) run.compute->copy_(run.now.master);
    ++range.shard->changes;
  }
  --steps_;
  can_undo_ = false;
}

std::vector<StateTensor> Optimizer::state() {
  std::vector<StateTensor> result;
  for (const Range& range : ranges_) {
    const std::vector<std::string> files = updates_[range.rule.update]->state_files();
    const Run run = make_run(range);
    for (const nn::Slice& slice : run.slices) {
      const auto add = [&](const std::string& file, const at::Tensor& flat) {
        result.push_back(
            {.file = file, .slice = &slice, .tensor = run.part(flat, slice).view(slice.master.sizes())});
      };
      for (size_t file = 0; file < files.size(); ++file) add(files[file], range.state[file]);
      if (range.average.defined()) add(average_file, range.average);
    }
  }
  return result;
}

kernels::ExactSum sum_of_squares(std::span<nn::Slice* const> slices) {
  if (slices.empty()) return {};
  at::Tensor words = at::zeros({kernels::exact_words}, slices.front()->grad.options().dtype(at::kLong));
  std::vector<kernels::BufferPart> parts;
  for (const nn::Slice* slice : slices) parts.push_back({slice->grad, slice->place});
  kernels::add_squares(parts, words);
  const at::Tensor host = words.cpu();
  return kernels::ExactSum(
      std::span<const int64_t, kernels::exact_words>(host.const_data_ptr<int64_t>(), kernels::exact_words));
}

}  // namespace pptrain::optim
