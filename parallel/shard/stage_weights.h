// The parameters of one stage while it computes, on a rank that has shards of them: which groups are whole
// when, and when their gradients are summed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/parameter.h"
#include "core/nn/weight_access.h"
#include "parallel/pipeline/stage.h"
#include "parallel/schedule/action.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/shard/gradient_sums.h"
#include "parallel/shard/group_exchange.h"

namespace pptrain::shard {

// Ranks that share a stage call everything here in one order. Only acquire(), for what its use needs, and
// settle(), finish() and discard() wait.
class StageWeights final : public pipeline::WeightActions, public nn::WeightAccess {
 public:
  // `store`: the stage's parameters, materialised; its groups are sharded over the given ranks, and have a
  // gradient buffer of their own if they are summed after each microbatch (nn::ShardPlace). `options`: as
  // lower() had them; kept weights stay whole from unshard() to reshard(), streamed ones group by group while
  // a pass uses them. `sums`: of all stages of this rank. `name` stands for the stage in messages. All must
  // outlive this.
  StageWeights(nn::ParameterStore& store, const ShardRanks& dense, const ShardRanks& experts,
               const schedule::ShardOptions& options, GradientSums& sums, std::string name);
  ~StageWeights() override;

  // Gathers weights anew. Kept: all groups at once. Streamed: the first group that `next`, the stage's next
  // pass, uses; passes gather the others, each overlapped with the computation of the one before.
  void unshard(std::optional<schedule::ActionKind> next) override;
  void reshard() override;
  // Begins the sums of the gradients taken so far that are not under way yet. After each microbatch most are;
  // once a step those of blocks are, if reduce_follows was given with the last pass.
  void reduce_grad() override;
  void begin_pass(const pipeline::Pass& pass) override;
  void acquire(size_t group, nn::Use use) override;
  void release(size_t group, nn::Use use) override;
  void settle() override;
  // Waits for the sums of the rank's other stages too. Gradients can be read then; those that the list did
  // not take are zero.
  void finish() override;
  void discard() override;

  // Groups whose compute weights are whole or being gathered, and the most there have been since the last
  // call.
  int whole_groups() const;
  int take_most_whole_groups();

 private:
  struct Group;
  using Order = std::vector<size_t>;  // groups in the order in which a pass acquires their weights

  bool is_sharded(size_t group) const;
  void gather(size_t group);
  void wait_for_gather(size_t group);
  void free(size_t group);
  void gather_ahead();
  std::vector<size_t> upcoming(size_t count) const;
  static size_t order_index(schedule::ActionKind kind);
  void prepare_gradient(size_t group, size_t buffer);
  void begin_sums(size_t group, nn::Use use = nn::Use::backward);  // of what this use takes and has taken
  std::string reduction_of(size_t group) const;

  schedule::ShardOptions options_;
  GradientSums& sums_;
  std::string name_;
  std::vector<Group> groups_;    // sums under way refer to them: it never grows
  std::array<Order, 3> orders_;  // of the last forward, the last backward (or its input part), and of S and T
  pipeline::Pass pass_;          // under way, or about to begin
  Order acquired_;               // in this pass so far
  int64_t largest_ = 0;          // elements of the largest group
  int most_whole_ = 0;
};

}  // namespace pptrain::shard
