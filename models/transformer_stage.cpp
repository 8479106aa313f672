#include "models/transformer_stage.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "core/nn/feed_forward.h"
#include "models/decoder.h"
#include "models/learning.h"
#include "models/registry.h"

namespace pptrain::models {
namespace {

// Throws Error, which names the stage, unless the condition holds.
template <typename... Values>
void require(bool holds, const StageSlice& stage, fmt::format_string<Values...> text, Values&&... values) {
  if (!holds)
    throw Error(fmt::format("stage {}: {}", stage.index, fmt::format(text, std::forward<Values>(values)...)));
}

// Pieces of the documents that this rank, or this slice, has tokens of.
std::vector<nn::TextPiece> pieces_of(const data::Microbatch& data) {
  std::vector<nn::TextPiece> pieces;
  const auto add = [&](int64_t document, int64_t skipped, int64_t tokens) {
    const int64_t length = data.text_length(document);
    const int64_t cached = std::max<int64_t>(0, length - data.segments.length(document));
    pieces.push_back({.length = length, .first = cached + skipped, .tokens = tokens});
  };
  if (!data.context) {
    for (int64_t i = 0; i < data.segments.documents(); ++i) add(i, 0, data.segments.length(i));
    return pieces;
  }
  for (const tokens::DocumentPiece& own :
       tokens::document_pieces(*data.context, data.context->part, data.segments))
    add(own.document, own.begin - data.segments.first(own.document), own.length);
  return pieces;
}

}  // namespace

template <typename Declare>
TransformerStage::Groups TransformerStage::declare(const Declare& declare) {
  const size_t first = store_.groups().size();
  declare();
  return {first, store_.groups().size()};
}

TransformerStage::TransformerStage(const ModelConfig& model, const StageSlice& slice,
                                   const StageParallelism& parallelism)
    : model_(model), slice_(slice), tp_(parallelism.tp), store_(learning_of(model)) {
  require(0 <= slice.first_layer && slice.first_layer < slice.end_layer && slice.end_layer <= model.layers,
          slice, "layers [{}, {}) of a model of {} layers", slice.first_layer, slice.end_layer, model.layers);
  if (slice.embedding) {
    embedding_groups_ = declare(
        [&] { embedding_.emplace(store_.add_group("embed"), "embed", embedding_config(model), tp_); });
  } else if (slice.has_embedding_shard()) {
    nn::Embedding(store_.add_group("embed"), "embed", embedding_config(model), tp_);  // declares it
  }
  blocks_.reserve(static_cast<size_t>(slice.end_layer - slice.first_layer));
  for (int layer = slice.first_layer; layer < slice.end_layer; ++layer) {
    const BlockConfig block = block_config(model, layer);
    StageParallelism own = parallelism;
    own.attention = slice_attention_.emplace_back(
        attention::make_slice_attention(parallelism.attention, parallelism.deterministic));
    const std::string name = fmt::format("layers.{}", layer);
    block_groups_.push_back(declare([&] {
      nn::ParameterGroup& group = store_.add_group(name);
      nn::ParameterGroup* const experts =
          block.experts ? &store_.add_group(name + ".experts", /*of_experts=*/true) : nullptr;
      if (model.fp8) group.multiply_in_fp8(model.fp8_weight_gradients);
      if (model.lora.rank > 0) group.put_adapters_in(store_.add_group(name + ".lora"));
      blocks_.emplace_back(group, name, block, own, experts);
    }));
  }
  if (slice.head) {
    const nn::TensorShard& cut = tp_->cut();
    norm_groups_ = declare([&] {
      const nn::NormKind kind = find_architecture(model.arch).decoder.norm;
      norm_.emplace(store_.add_group("norm"), "norm", model.hidden, kind, model.norm_eps, cut);
    });
  }
  if (slice.has_whole_head() || slice.has_head_part()) head_groups_ = declare([&] { declare_head(); });
}

void TransformerStage::declare_head() {
  const bool whole = slice_.has_whole_head();
  const nn::TensorShard& cut = tp_->cut();
  const nn::TensorShard held =
      whole ? cut : nn::LinearCrossEntropy::part_of(cut, slice_.index, slice_.head_parts);
  head_weight_ = &store_.add_group("head").add({held.cut({.name = "head.weight",
                                                          .shape = {model_.vocab, model_.hidden},
                                                          .role = nn::Role::head,
                                                          .init_std = model_.initializer_range,
                                                          .init_name = model_.tied ? "embed.weight" : ""},
                                                         0)});
  head_weight_->grad_by_products = true;
  head_.emplace(make_head(*head_weight_));
  if (!whole) head_->hold_part(slice_.index, slice_.head_parts);
}

nn::LinearCrossEntropy TransformerStage::make_head(nn::Weight& weight) const {
  nn::LinearCrossEntropy head(weight, model_.vocab, tp_);
  head.scale_logits(model_.logit_scale, model_.logit_softcap);
  return head;
}

at::Tensor TransformerStage::copy_of_head_part() {
  require(slice_.has_head_part(), slice_, "it has no part of the head");
  at::Tensor copy;
  weights_.with(head_groups_, nn::Use::forward, [&] { copy = head_weight_->compute.clone(); });
  return copy;
}

void TransformerStage::lend_head(at::Tensor weight) {
  lent_head_.compute = std::move(weight);
}

void TransformerStage::materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients,
                                   const nn::ParameterStore::PlaceOf& place_of) {
  store_.materialise(device, compute_dtype, with_gradients, place_of);
  size_chunks_for(device.type());
  ropes_.clear();
  for (const nn::RopeConfig& rope : rope_tables(model_)) ropes_.emplace_back(rope, model_.max_seq, device);
}

void TransformerStage::size_chunks_for(at::DeviceType device) {
  if (head_) head_->set_chunk_bytes(nn::LinearCrossEntropy::default_chunk_bytes(device));
}

int64_t TransformerStage::share(const data::Microbatch& data) const {
  return tp_->cut().count(data.token_count());
}

at::Tensor TransformerStage::empty_boundary(const data::Microbatch& data) const {
  return at::empty({share(data), model_.hidden},
                   at::TensorOptions(store_.compute_dtype()).device(data.positions.device()));
}

// This rank's shard of a list, if it is defined.
at::Tensor TransformerStage::own_rows(const at::Tensor& list, int64_t tokens) const {
  if (!list.defined()) return {};
  const nn::TensorShard& cut = tp_->cut();
  return list.narrow(0, cut.begin(tokens, cut.rank), cut.count(tokens));
}

void TransformerStage::check(const data::Microbatch& data) const {
  const int64_t tokens = data.token_count();
  const int ranks = tp_->cut().size;
  require(data.positions.dim() == 1 && data.positions.size(0) == tokens, slice_,
          "positions [{}] of a list of {} tokens", fmt::join(data.positions.sizes(), ", "), tokens);
  require(tokens >= ranks, slice_, "a list of {} tokens cannot be shared out to {} tensor-parallel ranks",
          tokens, ranks);
  require(data.segments.longest <= model_.longest_text(), slice_,
          "a document of {} tokens, but the model takes {}", data.segments.longest, model_.longest_text());
}

// Reading positions would wait for the GPU; there the kernel gives NaN beyond the tables instead.
void TransformerStage::check_positions(const nn::TokenInfo& info) const {
  if (!info.positions.is_cpu()) return;
  int64_t reach = model_.longest_text();
  for (const nn::Rotation& rotation : info.ropes) {
    if (!rotation.rows.defined()) reach = std::min(reach, rotation.table.cos.size(0));
  }
  const auto [lowest, highest] = at::aminmax(info.positions);
  const int low = lowest.item<int>(), high = highest.item<int>();
  require(low >= 0 && high < reach, slice_, "positions from {} to {}, outside of [0, {})", low, high, reach);
}

nn::TokenInfo TransformerStage::info_of(const data::Microbatch& data) const {
  check(data);
  const std::vector<nn::TextPiece> pieces = pieces_of(data);
  nn::TokenInfo info{.positions = data.positions,
                     .segments = data.segments,
                     .ropes = {},
                     .context = data.context,
                     .filling = own_rows(data.filling, data.token_count()),
                     .global_tokens = data.global_tokens,
                     .global_targets = data.global_targets};
  for (nn::Rope& rope : ropes_) info.ropes.push_back(rope.turn(pieces));
  check_positions(info);
  return info;
}

Residual TransformerStage::enter(const data::Microbatch& data, at::Tensor input) const {
  if (embedding_) {
    require(data.tokens.dim() == 1 && data.tokens.size(0) == data.token_count(), slice_,
            "ids [{}] of a list of {} tokens", fmt::join(data.tokens.sizes(), ", "), data.token_count());
    Residual residual;
    weights_.with(embedding_groups_, nn::Use::forward,
                  [&] { residual.stream = embedding_->forward(data.tokens, data.positions); });
    return residual;
  }
  const int64_t rows = share(data);
  require(input.defined(), slice_, "its input must be [{}, {}], not undefined", rows, model_.hidden);
  require(input.dim() == 2 && input.size(0) == rows && input.size(1) == model_.hidden, slice_,
          "its input must be [{}, {}], not [{}]", rows, model_.hidden, fmt::join(input.sizes(), ", "));
  return {.stream = std::move(input), .delta = {}};
}

Residual TransformerStage::run_blocks(const data::Microbatch& data, at::Tensor input) const {
  const nn::TokenInfo info = info_of(data);
  Residual residual = enter(data, std::move(input));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block::Saved dropped;
    weights_.with(block_groups_[i], nn::Use::forward,
                  [&] { residual = blocks_[i].forward(std::move(residual), info, dropped); });
  }
  return residual;
}

at::Tensor TransformerStage::forward(int microbatch, const data::Microbatch& data, at::Tensor input) {
  require(!records_.saved.contains(microbatch), slice_, "microbatch {} ran forward twice without a backward",
          microbatch);
  const Recompute recompute = recompute_[static_cast<size_t>(microbatch) % recompute_.size()];
  nn::TokenInfo info = info_of(data);
  info.computed_again = recompute == Recompute::full;
  Residual residual = enter(data, std::move(input));
  StageRecord& record = records_.saved[microbatch];
  record.info = std::move(info);
  if (embedding_) record.tokens = data.tokens;
  record.blocks.resize(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    record.blocks[i].recompute = recompute;
    weights_.with(block_groups_[i], nn::Use::forward,
                  [&] { residual = blocks_[i].forward(std::move(residual), record.info, record.blocks[i]); });
  }
  if (!slice_.head) return sum(std::move(residual));
  if (!slice_.has_whole_head()) {
    at::Tensor normed;
    weights_.with(norm_groups_, nn::Use::forward,
                  [&] { normed = norm_->forward(residual.stream, std::move(residual.delta), record.norm); });
    return normed;
  }

  weights_.with(norm_groups_, nn::Use::backward, [&] {
    nn::Norm::Saved saved;
    const at::Tensor normed = norm_->forward(residual.stream, std::move(residual.delta), saved);
    at::Tensor dh = at::empty_like(normed);
    at::Tensor loss;
    weights_.with(head_groups_, nn::Use::backward,
                  [&] { loss = head_->forward_backward(normed, data.labels, dh); });
    losses_.add(microbatch, loss);
    record.dy = norm_->backward(saved, dh, {});
  });
  return {};
}

at::Tensor TransformerStage::final_norm(Residual residual) const {
  at::Tensor y;
  weights_.with(norm_groups_, nn::Use::forward, [&] {
    nn::Norm::Saved dropped;
    y = norm_->forward(residual.stream, std::move(residual.delta), dropped);
  });
  return y;
}

at::Tensor TransformerStage::forward_only(const data::Microbatch& data, at::Tensor input) {
  Residual residual = run_blocks(data, std::move(input));
  if (!slice_.head) return sum(std::move(residual));
  const at::Tensor normed = final_norm(std::move(residual));
  if (!slice_.has_whole_head()) return normed;
  at::Tensor losses;
  weights_.with(head_groups_, nn::Use::forward, [&] { losses = head_->losses(normed, data.labels); });
  losses_.add_of_tokens(data, losses);
  return {};
}

// Each rank puts in the chosen rows that it has; all others are zero.
at::Tensor TransformerStage::chosen_rows(const at::Tensor& normed, int64_t tokens,
                                         const at::Tensor& rows) const {
  const nn::TensorShard& cut = tp_->cut();
  if (!rows.defined()) return tp_->enter(normed, tokens);
  if (cut.alone()) return normed.index_select(0, rows);
  const at::Tensor places = rows.sub(cut.begin(tokens, cut.rank));
  const at::Tensor elsewhere = places.lt(0).logical_or(places.ge(normed.size(0)));
  const at::Tensor own =
      normed.index_select(0, places.clamp(0, normed.size(0) - 1)).masked_fill(elsewhere.unsqueeze(1), 0);
  return tp_->enter(own, cut.size * rows.size(0)).view({cut.size, rows.size(0), -1}).sum(0);
}

at::Tensor TransformerStage::logits(const data::Microbatch& data, at::Tensor input, const at::Tensor& rows) {
  const bool lent = slice_.head && lent_head_.compute.defined();
  if (!slice_.has_whole_head() && !lent)
    throw Error(fmt::format("stage {} has no head: only the last stage gives logits", slice_.index));
  const at::Tensor normed =
      chosen_rows(final_norm(run_blocks(data, std::move(input))), data.token_count(), rows);
  if (lent) return make_head(lent_head_).logits(normed);
  at::Tensor logits;
  weights_.with(head_groups_, nn::Use::forward, [&] { logits = head_->logits(normed); });
  return logits;
}

StageRecord TransformerStage::take_record(int microbatch) {
  auto node = records_.saved.extract(microbatch);
  require(!node.empty(), slice_, "backward of microbatch {}, which did not run forward", microbatch);
  return std::move(node.mapped());
}

// The gradient at the last block's output.
at::Tensor TransformerStage::gradient_of_blocks(StageRecord& record, at::Tensor dy, nn::Use use) {
  if (!slice_.head) return dy;
  if (slice_.has_whole_head()) return std::move(record.dy);
  weights_.with(norm_groups_, use, [&] { dy = norm_->backward(record.norm, dy, {}); });
  record.norm = {};
  return dy;
}

at::Tensor TransformerStage::backward_blocks(StageRecord& record, at::Tensor dy, nn::Use use,
                                             std::span<nn::WeightGradQueue> queues) {
  at::Tensor grad = gradient_of_blocks(record, std::move(dy), use);
  for (size_t i = blocks_.size(); i-- > 0;) {
    weights_.with(block_groups_[i], use,
                  [&] { grad = blocks_[i].backward_input(record.blocks[i], grad, record.info, queues[i]); });
  }
  return grad;
}

at::Tensor TransformerStage::backward_blocks_at_once(StageRecord& record, at::Tensor dy) {
  std::vector<nn::WeightGradQueue> queues(blocks_.size(),
                                          nn::WeightGradQueue(nn::WeightGradQueue::Mode::immediate));
  return backward_blocks(record, std::move(dy), nn::Use::backward, queues);
}

// The sharding hooks see an I of each block, and a W that starts with it and ends one block later: a
// reduction must not begin before the current stream has joined the side stream.
at::Tensor TransformerStage::backward_blocks_beside(StageRecord& record, at::Tensor dy) {
  std::vector<nn::WeightGradQueue> queues(blocks_.size(), nn::WeightGradQueue(*side_));
  const auto join = [&](size_t i) {
    queues[i].join();
    weights_.release(block_groups_[i], nn::Use::backward_weight);
  };
  at::Tensor grad = gradient_of_blocks(record, std::move(dy), nn::Use::backward);
  for (size_t i = blocks_.size(); i-- > 0;) {
    weights_.acquire(block_groups_[i], nn::Use::backward_weight);
    weights_.with(block_groups_[i], nn::Use::backward_input,
                  [&] { grad = blocks_[i].backward_input(record.blocks[i], grad, record.info, queues[i]); });
    if (i + 1 < blocks_.size()) join(i + 1);
  }
  join(0);
  return grad;
}

at::Tensor TransformerStage::backward(int microbatch, at::Tensor dy) {
  StageRecord record = take_record(microbatch);
  at::Tensor grad = side_ != nullptr ? backward_blocks_beside(record, std::move(dy))
                                     : backward_blocks_at_once(record, std::move(dy));
  if (!embedding_) return grad;
  weights_.with(embedding_groups_, nn::Use::backward_weight,
                [&] { embedding_->backward_weight(record.tokens, record.info.positions, grad); });
  return {};
}

at::Tensor TransformerStage::backward_input(int microbatch, at::Tensor dy) {
  require(!records_.pending.contains(microbatch), slice_,
          "the weight gradients of microbatch {} are still pending", microbatch);
  StageRecord record = take_record(microbatch);
  record.queues.assign(blocks_.size(), nn::WeightGradQueue(nn::WeightGradQueue::Mode::deferred));
  at::Tensor grad = backward_blocks(record, std::move(dy), nn::Use::backward_input, record.queues);
  record.blocks.clear();
  if (embedding_ && embedding_->learns()) record.dy = grad;
  records_.pending.emplace(microbatch, std::move(record));
  return embedding_ ? at::Tensor() : grad;
}

// In the order of the input gradients, which made them.
void TransformerStage::backward_weight(int microbatch) {
  auto node = records_.pending.extract(microbatch);
  require(!node.empty(), slice_, "no weight gradients of microbatch {} are pending", microbatch);
  StageRecord& pending = node.mapped();
  for (size_t i = blocks_.size(); i-- > 0;)
    weights_.with(block_groups_[i], nn::Use::backward_weight, [&] { pending.queues[i].run(); });
  if (!embedding_ || !embedding_->learns()) return;
  weights_.with(embedding_groups_, nn::Use::backward_weight,
                [&] { embedding_->backward_weight(pending.tokens, pending.info.positions, pending.dy); });
}

at::Tensor TransformerStage::head_forward(int microbatch, const data::Microbatch& data, at::Tensor h) {
  require(slice_.has_head_part(), slice_, "it has no part of the head");
  nn::LinearCrossEntropy::Pending& pending = records_.of_head[microbatch];
  at::Tensor statistics;
  weights_.with(head_groups_, nn::Use::forward,
                [&] { statistics = head_->statistics(h, data.labels.reshape({-1}), pending); });
  return statistics;
}

at::Tensor TransformerStage::empty_statistics(const data::Microbatch& data) const {
  require(slice_.has_head_part(), slice_, "it has no part of the head");
  return at::empty({data.labels.numel(), head_->statistics_of_row()},
                   at::TensorOptions(at::kFloat).device(data.positions.device()));
}

at::Tensor TransformerStage::head_backward(int microbatch, const data::Microbatch& data,
                                           const at::Tensor& statistics, bool with_gradients) {
  auto node = records_.of_head.extract(microbatch);
  require(!node.empty(), slice_, "T of microbatch {}, which did not run S", microbatch);
  at::Tensor losses, dh;
  weights_.with(head_groups_, with_gradients ? nn::Use::backward : nn::Use::forward, [&] {
    losses =
        head_->finish(node.mapped(), data.labels.reshape({-1}), statistics, with_gradients ? &dh : nullptr);
  });
  if (with_gradients) {
    losses_.add(microbatch, losses.sum(at::kDouble));
  } else {
    losses_.add_of_tokens(data, losses);
  }
  return dh;
}

std::map<int, at::Tensor> TransformerStage::take_loads() {
  std::map<int, at::Tensor> loads;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (at::Tensor rows = blocks_[i].take_loads(); rows.defined())
      loads.emplace(slice_.first_layer + static_cast<int>(i), std::move(rows));
  }
  return loads;
}

void TransformerStage::discard() {
  records_.clear();
  for (const auto& attention : slice_attention_) attention->discard();
  losses_.clear();
  take_loads();
}

}  // namespace pptrain::models
