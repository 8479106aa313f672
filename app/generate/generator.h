// Generates tokens through the pipeline: one rank's part.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "app/generate/sampling.h"
#include "app/generate/sequence.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "parallel/pipeline/token_order.h"

namespace pptrain::app {

struct GenerateOptions {
  Sampling sampling;
  StopRules stop;
  // Prompts whose keys are held at a time; if there are more, they run in waves.
  int64_t in_flight = 32;
  // If set, nothing is generated: ranks of the last stage get the logits of each sequence, float32 [tokens
  // from Sequence::first_logits on, vocab], on the host. Then stop.max_tokens is 1, and the token that ends a
  // sequence means nothing.
  using Reader = std::function<void(const Sequence&, const at::Tensor& logits)>;
  Reader read = {};
};

// Every rank of the mesh runs the same Generator on the same prompts. The ranks of a pipeline divide the
// work. Data, context and expert ranks of a stage each do all of it, on weights that they shard, and take the
// tokens that the first of them chose.
class Generator {
 public:
  // `model`: built to generate, with its values. Both must outlive it.
  Generator(RunContext& context, RankModel& model, GenerateOptions options);
  ~Generator();

  // Called on every rank for each token, when the token arrives there.
  using Listener = std::function<void(const Sequence&)>;

  // Continues all sequences until they finish. A round of a group is one forward pass over the last token of
  // each of its sequences; a group's first pass takes whole prompts. Memory for keys is allocated once a
  // wave. Collective. Throws UsageError if a sequence may become longer than the model's positions, or holds
  // ids outside of its vocabulary.
  void run(std::vector<Sequence>& sequences, const Listener& listener = {});

  // Throws the UsageErrors of run().
  static void check(const models::ModelConfig& model, std::span<const int64_t> prompt, int64_t number,
                    int64_t max_tokens);

 private:
  struct StageState;
  struct Group;
  void run_wave(std::span<Sequence> sequences, const Listener& listener);
  void take_cache(std::span<Sequence> sequences);
  std::vector<Group> make_groups(std::span<Sequence> sequences) const;
  void prepare(Group& group) const;
  void forward(Group& group, int group_index, int stage, const Listener& listener);
  at::Tensor input_of(const Group& group, int group_index, StageState& state);
  void send_on(at::Tensor output, int group_index, int stage);
  at::Tensor choose_tokens(const Group& group, const at::Tensor& logits) const;
  void send_choice(const at::Tensor& chosen);
  void post_choice(Group& group);
  void receive_choice(Group& group, const Listener& listener);
  void take(Group& group, const at::Tensor& chosen, const Listener& listener);
  void reap_sends(bool wait);
  bool is_last(int stage) const { return stage + 1 == placement_.stages(); }
  int last_rank() const { return placement_.rank_of(placement_.stages() - 1); }
  StageState& state_of(int stage);

  RunContext& context_;
  RankModel& model_;
  GenerateOptions options_;
  const schedule::Schedule& placement_;
  std::vector<StageState> stages_;
  comm::Communicator& pipeline_;                     // carries activations; its host(), tokens
  comm::Communicator& peers_;                        // all ranks of this one's stages
  std::map<std::pair<int, int>, at::Tensor> local_;  // stage, group: inputs made by a stage of this rank
  std::deque<std::pair<at::Tensor, std::unique_ptr<comm::Work>>> sends_;  // tensors live until they are sent
};

}  // namespace pptrain::app
