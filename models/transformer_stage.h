// A contiguous slice of a decoder-only transformer: embedding (first stage), blocks, final norm and head
// (last stage).
//
// Under tensor parallelism each rank has its shard of the rows (nn::TensorShard) of inputs, outputs and saved
// activations, and computes with its shard of heads, inner width and vocabulary; token ids, labels and
// positions are of all rows. All ranks of the group run the same passes in the same order. Each reports the
// loss of all rows, with equal bits: losses are not summed over the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/kernels/kernels.h"
#include "core/nn/norm.h"
#include "core/nn/parameter.h"
#include "core/nn/rope.h"
#include "core/nn/tensor_group.h"
#include "core/nn/token_info.h"
#include "core/nn/vocabulary.h"
#include "core/nn/weight_access.h"
#include "models/block.h"
#include "models/model_config.h"
#include "models/stage_losses.h"
#include "models/stage_records.h"
#include "models/stage_slice.h"
#include "parallel/pipeline/stage.h"

namespace pptrain::models {

// Parameters, by global name: `embed.weight`, `embed_positions.weight`;
// `layers.N.{attn_norm,attn_post_norm,mlp_norm,mlp_post_norm}.{weight,bias}`,
// `layers.N.attn.{q,k,v,o}.{weight,bias}`, `layers.N.attn.{q_norm,k_norm}.weight`,
// `layers.N.mlp.{gate,up,down}.{weight,bias}`, or in a sparse layer `layers.N.mlp.router.{weight,bias}` and
// `layers.N.mlp.experts.E.{gate,up,down}.weight`; `norm.{weight,bias}`, `head.weight`.
//
// With tied embeddings the stage with the head holds its own copy, `head.weight`, even if it holds the
// embedding: the two uses have a gradient accumulator each on every layout, so that their sum has the same
// bits on all. Both copies start equal (their initial values are those of `embed.weight`). The caller that
// steps the optimizer adds the two gradients (embedding's + head's, float32), counts the sum once in the
// gradient norm, and updates both copies with it.
class TransformerStage final : public pipeline::Stage {
 public:
  // Declares the parameters; nothing has memory before materialise(). Throws Error for an empty or impossible
  // slice.
  TransformerStage(const ModelConfig& model, const StageSlice& slice,
                   const StageParallelism& parallelism = {});

  // Allocates parameters. compute_dtype: float32 or bfloat16. Then fill the masters:
  // parameters().initialise(seed), HfDirectory::load(), or a checkpoint and refresh_compute().
  void materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients = true,
                   const nn::ParameterStore::PlaceOf& place_of = {});

  // From now on the backward pass of microbatch i recomputes what levels[i % levels.size()] says; before,
  // none recomputes anything. Changes no bit. Sequence slices count as microbatches.
  void recompute_by_microbatch(std::vector<Recompute> levels) { recompute_ = std::move(levels); }

  // Tells `access` from now on which groups a pass uses; it must outlive the stage's passes.
  void use_weights(nn::WeightAccess& access) { weights_ = nn::GroupUses(&access); }

  // From now on B computes the weight gradients of blocks on `side`, overlapped with the input gradients. The
  // current stream joins block i's after the input gradients of block i - 1, and block 0's at the end of
  // backward(); their operands are held until then. Changes no bit. `side` must outlive the stage's passes.
  void overlap_weight_gradients(nn::SideStream& side) { side_ = &side; }

  // Sets the size of logit chunks for a device; materialise() sets it for its own device.
  void size_chunks_for(at::DeviceType device);

  // For the training loss, as in nn::LinearCrossEntropy.
  void add_to_loss(const nn::LossTerms& terms) {
    if (head_) head_->add_to_loss(terms);
  }

  void hear_losses(StageLosses::Listener listener) { losses_.hear(std::move(listener)); }

  int index() const override { return slice_.index; }
  bool is_first() const override { return slice_.embedding; }
  bool is_last() const override { return slice_.has_whole_head(); }
  bool has_head_part() const override { return slice_.has_head_part(); }
  at::Tensor empty_boundary(const data::Microbatch& data) const override;  // T [share, hidden]

  // Keeps `input` (read only) until the microbatch's backward.
  at::Tensor forward(int microbatch, const data::Microbatch& data, at::Tensor input) override;
  at::Tensor forward_only(const data::Microbatch& data, at::Tensor input) override;
  at::Tensor logits(const data::Microbatch& data, at::Tensor input, const at::Tensor& rows) override;
  at::Tensor backward(int microbatch, at::Tensor dy) override;
  // dy is an operand of W: it stays in use, read only, until backward_weight.
  at::Tensor backward_input(int microbatch, at::Tensor dy) override;
  void backward_weight(int microbatch) override;
  at::Tensor head_forward(int microbatch, const data::Microbatch& data, at::Tensor h) override;
  at::Tensor empty_statistics(const data::Microbatch& data) const override;
  at::Tensor head_backward(int microbatch, const data::Microbatch& data, const at::Tensor& statistics,
                           bool with_gradients) override;

  double take_loss() override { return losses_.take(); }
  // What each of `count` microbatches added to the loss in the last step, after keep_microbatch_losses().
  void keep_microbatch_losses() { losses_.keep_microbatches(); }
  std::vector<double> microbatch_losses(int64_t count) const { return losses_.of_microbatches(count); }
  void discard() override;
  nn::ParameterStore& parameters() override { return store_; }

  // For logits() of a head in parts. A copy of this stage's part, T [rows, hidden]; collective over the ranks
  // that its weights are sharded over. The last stage takes all parts together (undefined: no longer), T
  // [this rank's shard of the vocabulary under tensor parallelism, hidden].
  at::Tensor copy_of_head_part();
  void lend_head(at::Tensor weight);

  // Null if this stage holds neither it nor a shard of it.
  nn::ParameterGroup* embedding_group() {
    return slice_.embedding || slice_.has_embedding_shard() ? &store_.groups().front() : nullptr;
  }
  // Null if this stage does not hold it.
  nn::Weight* embedding_weight() { return embedding_ ? &embedding_->weight() : nullptr; }
  nn::Weight* head_weight() { return head_weight_; }
  bool tied() const { return model_.tied; }

  // Rows that each expert got from this rank in the backward passes since the last call: int64 [experts], by
  // sparse layer. Layers that ran none are left out.
  std::map<int, at::Tensor> take_loads();

  const ModelConfig& model() const { return model_; }
  const StageSlice& slice() const { return slice_; }

  // Bytes of all microbatches between F and I or B, between I and W, and between S and T.
  int64_t saved_bytes() const { return records_.saved_bytes(); }
  int64_t pending_bytes() const { return records_.pending_bytes(); }
  int64_t head_bytes() const { return records_.head_bytes(); }

 private:
  using Groups = nn::GroupUses::Groups;

  // Runs `declare`, and returns the groups that it declared.
  template <typename Declare>
  Groups declare(const Declare& declare);

  void check(const data::Microbatch& data) const;         // throws Error
  void check_positions(const nn::TokenInfo& info) const;  // throws Error
  nn::TokenInfo info_of(const data::Microbatch& data) const;
  at::Tensor own_rows(const at::Tensor& list, int64_t tokens) const;
  int64_t share(const data::Microbatch& data) const;  // rows of this rank
  // normed: T [share, hidden] -> the rows that `rows` names among all tokens, or all; on every rank.
  at::Tensor chosen_rows(const at::Tensor& normed, int64_t tokens, const at::Tensor& rows) const;
  Residual enter(const data::Microbatch& data, at::Tensor input) const;
  Residual run_blocks(const data::Microbatch& data, at::Tensor input) const;
  at::Tensor final_norm(Residual residual) const;
  at::Tensor gradient_of_blocks(StageRecord& record, at::Tensor dy, nn::Use use);
  void declare_head();
  nn::LinearCrossEntropy make_head(nn::Weight& weight) const;
  StageRecord take_record(int microbatch);
  // queues: of each block.
  at::Tensor backward_blocks(StageRecord& record, at::Tensor dy, nn::Use use,
                             std::span<nn::WeightGradQueue> queues);
  at::Tensor backward_blocks_at_once(StageRecord& record, at::Tensor dy);
  at::Tensor backward_blocks_beside(StageRecord& record, at::Tensor dy);

  ModelConfig model_;
  StageSlice slice_;
  std::vector<Recompute> recompute_{Recompute::none};  // of microbatches, repeated
  std::shared_ptr<const nn::TensorGroup> tp_;
  nn::ParameterStore store_;
  std::optional<nn::Embedding> embedding_;
  std::vector<Block> blocks_;  // never changes size after construction: queues point at their layers
  std::vector<std::shared_ptr<attention::CoreAttention>> slice_attention_;  // of each block, for slices
  std::optional<nn::Norm> norm_;
  nn::Weight* head_weight_ = nullptr;
  std::optional<nn::LinearCrossEntropy> head_;
  nn::Weight lent_head_;                 // its weight is undefined if none is lent
  mutable std::vector<nn::Rope> ropes_;  // which keep tables

  Groups embedding_groups_, norm_groups_, head_groups_;
  std::vector<Groups> block_groups_;
  nn::GroupUses weights_;
  nn::SideStream* side_ = nullptr;  // for weight gradients, if any

  StageRecords records_;
  StageLosses losses_;
};

}  // namespace pptrain::models
