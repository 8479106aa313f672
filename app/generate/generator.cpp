#include "app/generate/generator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>

#include "app/plan/plan.h"
#include "core/attention/cache.h"
#include "core/base/error.h"
#include "core/data/microbatch.h"
#include "models/decoder.h"
#include "parallel/comm/liveness/activity.h"

namespace pptrain::app {

namespace {

using at::Tensor;

constexpr auto host_ids = at::kLong;

// Small lists of numbers, on the device.
template <class T>
Tensor on_device(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(type));
  std::memcpy(tensor.mutable_data_ptr(), values.data(), values.size() * sizeof(T));
  return device.is_cpu() ? tensor : tensor.to(device);
}

// How many of its last tokens' logits are wanted.
int64_t logits_rows(const Sequence& sequence) {
  const auto tokens = static_cast<int64_t>(sequence.tokens().size());
  return sequence.first_logits < 0 ? 1 : tokens - sequence.first_logits;
}

std::span<const int64_t> ids_of(const Tensor& chosen) {
  return {chosen.const_data_ptr<int64_t>(), static_cast<size_t>(chosen.numel())};
}

}  // namespace

struct Generator::StageState {
  models::TransformerStage& stage;
  pipeline::WeightActions& weights;
  attention::CachedAttention& attention;
  std::unique_ptr<attention::KeyValueCache> cache;  // of the wave
};

struct Generator::Group {
  std::vector<Sequence*> active;
  int64_t round = 0;
  // In the round, if prepared.
  bool prepared = false;
  data::Microbatch data;
  at::Tensor last_rows;  // int64: rows of the sequences' last tokens; undefined: all rows
  std::vector<attention::CachedDocument> documents;
  // The round's choice, while it is on its way here.
  at::Tensor chosen;  // int64 [active]
  std::unique_ptr<comm::Work> choice;
};

Generator::~Generator() = default;

Generator::Generator(RunContext& context, RankModel& model, GenerateOptions options)
    : context_(context),
      model_(model),
      options_(std::move(options)),
      placement_(context.plan.schedule),
      pipeline_(context.mesh.along(mesh::Axis::pp)),
      peers_(context.mesh.of(mesh::Group::stage).host()) {
  for (const RankModel::RankStage& own : model.stages()) {
    if (!own.attention) throw Error("this model was not built to generate");
    stages_.push_back({*own.stage, *own.weights, *own.attention, nullptr});
  }
}

void Generator::check(const models::ModelConfig& model, std::span<const int64_t> prompt, int64_t number,
                      int64_t max_tokens) {
  const std::string who = fmt::format("prompt {}", number + 1);
  if (prompt.empty()) throw UsageError(who + ": it is empty; the model goes on from one token at least");
  for (const int64_t id : prompt) {
    if (id < 0 || id >= model.vocab)
      throw UsageError(
          fmt::format("{}: the id {} is not in the model's vocabulary, [0, {})", who, id, model.vocab));
  }
  const auto tokens = static_cast<int64_t>(prompt.size());
  // The last token is never read.
  if (tokens > model.longest_text()) {
    throw UsageError(fmt::format(
        "{}: it has {} tokens, and the model takes {} (model.max_position_embeddings): shorten it", who,
        tokens, model.longest_text()));
  }
  if (tokens + max_tokens - 1 > model.longest_text()) {
    throw UsageError(
        fmt::format("{}: {} tokens and {} more are beyond the model's {} positions "
                    "(model.max_position_embeddings): give --max-tokens {} at most",
                    who, tokens, max_tokens, model.longest_text(), model.longest_text() - tokens + 1));
  }
}

void Generator::run(std::vector<Sequence>& sequences, const Listener& listener) {
  for (const Sequence& s : sequences) check(context_.model, s.tokens(), s.number(), options_.stop.max_tokens);
  const comm::ActivityScope working(context_.activity, comm::ActivityKind::work, "generating");
  for (StageState& state : stages_) state.weights.unshard(schedule::ActionKind::forward);
  model_.gather_head();
  const auto all = std::span(sequences);
  const auto wave = static_cast<size_t>(std::max<int64_t>(1, options_.in_flight));
  for (size_t first = 0; first < all.size(); first += wave)
    run_wave(all.subspan(first, std::min(wave, all.size() - first)), listener);
  for (StageState& state : stages_) state.weights.reshard();
  for (StageState& state : stages_) {
    state.weights.finish();
    state.cache.reset();
  }
  model_.release_head();
}

// Tokens that only give every tensor-parallel rank a row have slots of one token at the end.
void Generator::take_cache(std::span<Sequence> sequences) {
  std::vector<int64_t> capacities;
  for (Sequence& sequence : sequences) {
    sequence.slot = static_cast<int64_t>(capacities.size());
    capacities.push_back(static_cast<int64_t>(sequence.tokens().size()) + options_.stop.max_tokens - 1);
  }
  const int tp = context_.mesh.size(mesh::Axis::tp);
  capacities.insert(capacities.end(), static_cast<size_t>(tp - 1), 1);
  for (StageState& state : stages_) {
    const models::StageSlice& slice = state.stage.slice();
    state.cache.reset();
    state.cache = std::make_unique<attention::KeyValueCache>(
        attention::KeyValueCache::Shape{.layers = slice.end_layer - slice.first_layer,
                                        .kv_heads = std::max<int64_t>(1, context_.model.kv_heads / tp),
                                        .head_dim = context_.model.head_dim,
                                        .dtype = state.stage.parameters().compute_dtype(),
                                        .device = context_.device},
        capacities);
  }
}

// As many groups as pipeline ranks keep all of them busy; more would read the weights more often.
std::vector<Generator::Group> Generator::make_groups(std::span<Sequence> sequences) const {
  std::vector<Group> groups(std::min(sequences.size(), static_cast<size_t>(placement_.ranks)));
  for (size_t i = 0; i < sequences.size(); ++i) groups[i % groups.size()].active.push_back(&sequences[i]);
  return groups;
}

void Generator::run_wave(std::span<Sequence> sequences, const Listener& listener) {
  take_cache(sequences);
  std::vector<Group> groups = make_groups(sequences);
  pipeline::TokenOrder order(placement_, pipeline_.rank(), static_cast<int>(groups.size()));
  while (!std::ranges::all_of(groups, [](const Group& g) { return g.active.empty(); })) {
    const pipeline::TokenAction action = order.next();
    Group& group = groups[static_cast<size_t>(action.group)];
    if (group.round < action.round && group.choice) receive_choice(group, listener);
    if (group.active.empty()) continue;
    if (group.round != action.round) throw Error("generation is out of order");
    if (action.is_choice) {
      post_choice(group);
    } else {
      forward(group, action.group, action.stage, listener);
    }
    pipeline_.progress();
    reap_sends(/*wait=*/false);
  }
  reap_sends(/*wait=*/true);
}

// The first round takes prompts, later ones the last chosen token, or the whole text again.
void Generator::prepare(Group& group) const {
  if (group.prepared) return;
  std::vector<int64_t> ids, rows, lengths;
  std::vector<int32_t> positions, starts{0};
  group.documents.clear();
  const auto add = [&](const std::vector<int64_t>& tokens, size_t first, int64_t slot) {
    for (size_t i = first; i < tokens.size(); ++i) {
      ids.push_back(tokens[i]);
      positions.push_back(static_cast<int32_t>(i));
    }
    lengths.push_back(static_cast<int64_t>(tokens.size()));
    group.documents.push_back({.slot = slot, .past = static_cast<int64_t>(first)});
    starts.push_back(static_cast<int32_t>(ids.size()));
  };
  for (const Sequence* sequence : group.active) {
    const size_t tokens = sequence->tokens().size();
    const bool whole =
        group.round == 0 || models::recomputes_keys_at(context_.model, static_cast<int64_t>(tokens));
    add(sequence->tokens(), whole ? 0 : tokens - 1, sequence->slot);
    for (int64_t row = logits_rows(*sequence); row > 0; --row)
      rows.push_back(static_cast<int64_t>(ids.size()) - row);
  }
  const attention::KeyValueCache& cache = *stages_.front().cache;
  const auto tp = static_cast<size_t>(context_.mesh.size(mesh::Axis::tp));
  const int64_t first_spare = cache.slots() - static_cast<int64_t>(tp) + 1;
  const bool rows_are_all = rows.size() == ids.size() && ids.size() >= tp;
  for (int64_t spare = first_spare; ids.size() < tp; ++spare) add({0}, 0, spare);
  const auto tokens = static_cast<int64_t>(ids.size());
  group.data = {.tokens = on_device(ids, at::kLong, context_.device),
                .labels = {},
                .positions = on_device(positions, at::kInt, context_.device),
                .segments = tokens::make_segments(std::move(starts), context_.device),
                .text_lengths = std::move(lengths),
                .global_tokens = tokens,
                .global_targets = tokens};
  group.last_rows = rows_are_all ? Tensor() : on_device(rows, at::kLong, context_.device);
  group.prepared = true;
}

void Generator::forward(Group& group, int group_index, int stage, const Listener& listener) {
  prepare(group);
  StageState& state = state_of(stage);
  Tensor input = input_of(group, group_index, state);
  state.weights.begin_pass({.kind = schedule::ActionKind::forward,
                            .next = schedule::ActionKind::forward,
                            .reduce_follows = false});
  const attention::CachedAttention::Use use(state.attention, *state.cache, group.documents);
  if (!is_last(stage))
    return send_on(state.stage.forward_only(group.data, std::move(input)), group_index, stage);
  const Tensor chosen =
      choose_tokens(group, state.stage.logits(group.data, std::move(input), group.last_rows));
  send_choice(chosen);
  take(group, chosen, listener);
}

Tensor Generator::input_of(const Group& group, int group_index, StageState& state) {
  models::TransformerStage& stage = state.stage;
  if (stage.is_first()) return {};
  if (auto node = local_.extract({stage.index(), group_index})) return std::move(node.mapped());
  Tensor tensor = stage.empty_boundary(group.data);
  const int source = placement_.rank_of(stage.index() - 1);
  const auto what = [&] {
    return fmt::format("the input of stage {} for group {} of prompts, round {}", stage.index(), group_index,
                       group.round);
  };
  const auto work = pipeline_.irecv(tensor, source);
  comm::Activity* const activity = context_.activity;
  const comm::ActivityScope waiting(activity, comm::ActivityKind::wait, activity != nullptr ? what() : "");
  work->wait([&] { return fmt::format("pipeline rank {} waits for {}", pipeline_.rank(), what()); });
  return tensor;
}

void Generator::send_on(Tensor output, int group_index, int stage) {
  const int next = placement_.rank_of(stage + 1);
  if (next == pipeline_.rank()) {
    local_[{stage + 1, group_index}] = std::move(output);
    return;
  }
  auto work = pipeline_.isend(output, next);
  sends_.emplace_back(std::move(output), std::move(work));
}

// Ranks of the stage have equal logits, but between hosts the last bits may differ.
Tensor Generator::choose_tokens(const Group& group, const Tensor& logits) const {
  const Tensor host = logits.to(at::kCPU, at::kFloat).contiguous();
  const auto vocab = static_cast<size_t>(host.size(1));
  const Tensor chosen = at::zeros({static_cast<int64_t>(group.active.size())}, host_ids);
  if (options_.read) {
    int64_t first = 0;
    for (const Sequence* sequence : group.active) {
      options_.read(*sequence, host.narrow(0, first, logits_rows(*sequence)));
      first += logits_rows(*sequence);
    }
    return chosen;
  }
  auto* const ids = chosen.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < group.active.size(); ++i) {
    const Sequence& sequence = *group.active[i];
    ids[i] = choose(options_.sampling, {host.const_data_ptr<float>() + i * vocab, vocab}, sequence.tokens(),
                    static_cast<uint64_t>(sequence.number()));
  }
  if (peers_.size() > 1) peers_.broadcast(chosen, 0);
  return chosen;
}

void Generator::send_choice(const Tensor& chosen) {
  comm::Communicator& host = pipeline_.host();
  for (int rank = 0; rank < host.size(); ++rank) {
    if (rank != host.rank()) sends_.emplace_back(chosen, host.isend(chosen, rank));
  }
}

void Generator::post_choice(Group& group) {
  group.chosen = at::empty({static_cast<int64_t>(group.active.size())}, host_ids);
  group.choice = pipeline_.host().irecv(group.chosen, last_rank());
}

void Generator::receive_choice(Group& group, const Listener& listener) {
  {
    const char* const what = "the tokens that the last stage chooses";
    const comm::ActivityScope waiting(context_.activity, comm::ActivityKind::wait, what);
    group.choice->wait([&] { return fmt::format("pipeline rank {} waits for {}", pipeline_.rank(), what); });
  }
  group.choice.reset();
  take(group, group.chosen, listener);
}

void Generator::take(Group& group, const Tensor& chosen, const Listener& listener) {
  const std::span<const int64_t> ids = ids_of(chosen);
  for (size_t i = 0; i < group.active.size(); ++i) {
    group.active[i]->add(ids[i]);
    if (listener) listener(*group.active[i]);
  }
  std::erase_if(group.active, [](const Sequence* sequence) { return sequence->finish().has_value(); });
  ++group.round;
  group.prepared = false;
}

void Generator::reap_sends(bool wait) {
  if (wait) {
    for (auto& [tensor, work] : sends_) work->wait([] { return "the end of a message of generation"; });
    sends_.clear();
    return;
  }
  std::erase_if(sends_, [](auto& send) { return send.second->done(); });
}

Generator::StageState& Generator::state_of(int stage) {
  for (StageState& state : stages_) {
    if (state.stage.index() == stage) return state;
  }
  throw Error(fmt::format("stage {} is not on pipeline rank {}", stage, pipeline_.rank()));
}

}  // namespace pptrain::app
