// The memory of real stages under every schedule, against the prediction from its list.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "app/forecast/footprint.h"
#include "core/base/error.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "parallel/pipeline/executor.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "test/models/allocation_counter.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

constexpr int64_t batch = 1, seq = 5;

// The stages of one rank, and the peak of their saved activations after any pass.
class Rank {
 public:
  // Forwards every call, and reads the rank's saved activations after each pass.
  class Watched final : public pipeline::Stage {
   public:
    Watched(Rank& rank, const models::ModelConfig& model, const models::StageSlice& slice,
            const std::vector<config::Recompute>& levels)
        : stage(model, slice), rank_(rank) {
      stage.recompute_by_microbatch(levels);
      stage.materialise(at::kCPU, at::kFloat);
      stage.parameters().initialise(3);
    }
    int index() const override { return stage.index(); }
    bool is_first() const override { return stage.is_first(); }
    bool is_last() const override { return stage.is_last(); }
    Tensor empty_boundary(const data::Microbatch& data) const override { return stage.empty_boundary(data); }
    Tensor forward(int microbatch, const data::Microbatch& data, Tensor input) override {
      return rank_.seen(stage.forward(microbatch, data, std::move(input)));
    }
    Tensor forward_only(const data::Microbatch& data, Tensor input) override {
      return stage.forward_only(data, std::move(input));
    }
    Tensor logits(const data::Microbatch& data, Tensor input, const Tensor& rows) override {
      return stage.logits(data, std::move(input), rows);
    }
    Tensor backward(int microbatch, Tensor dy) override {
      return rank_.seen(stage.backward(microbatch, std::move(dy)));
    }
    Tensor backward_input(int microbatch, Tensor dy) override {
      return rank_.seen(stage.backward_input(microbatch, std::move(dy)));
    }
    void backward_weight(int microbatch) override { stage.backward_weight(microbatch); }
    double take_loss() override { return stage.take_loss(); }
    void discard() override { stage.discard(); }
    nn::ParameterStore& parameters() override { return stage.parameters(); }

    models::TransformerStage stage;

   private:
    Rank& rank_;
  };

  Rank(const models::ModelConfig& model, const pipeline::LayerAssignment& layers,
       const std::vector<int>& indices, const std::vector<config::Recompute>& levels) {
    for (const int index : indices) {
      stages_.push_back(std::make_unique<Watched>(*this, model, models::stage_slice(layers, index), levels));
    }
  }
  std::vector<pipeline::StageWithWeights> stages() {
    std::vector<pipeline::StageWithWeights> result;
    for (const auto& stage : stages_) result.push_back({*stage, weights_});
    return result;
  }
  int64_t held() const {
    int64_t bytes = 0;
    for (const auto& stage : stages_) bytes += stage->stage.saved_bytes() + stage->stage.pending_bytes();
    return bytes;
  }
  int64_t peak() const { return peak_; }

 private:
  Tensor seen(Tensor result) {
    peak_ = std::max(peak_, held());
    return result;
  }

  std::vector<std::unique_ptr<Watched>> stages_;
  pipeline::WeightActions weights_;  // on one rank alone: nothing to do
  int64_t peak_ = 0;
};

// The microbatches take these levels in turn.
void check_schedule(const schedule::Schedule& lowered, const std::vector<config::Recompute>& levels) {
  const auto model = small_model("qwen3", false, lowered.stages() + 2);  // the first stages hold two layers
  const auto layers = pipeline::compute_layer_assignment(lowered.stages() + 2, lowered.stages());
  std::vector<data::Microbatch> microbatches;
  for (int i = 0; i < lowered.microbatches; ++i) {
    microbatches.push_back(random_microbatch(model, batch, seq, i));
  }
  const auto counts = schedule::in_flight(lowered);
  std::vector<app::Footprints> footprints;
  for (const config::Recompute level : levels)
    footprints.emplace_back(
        model, app::BatchShape{.documents = batch, .length = seq, .bfloat16 = false, .recompute = level});
  std::vector<schedule::StageBytes> stages,
      records;  // [cell]: everything; saved activations and operands alone
  for (int i = 0; i < lowered.stages(); ++i) {
    for (int mb = 0; mb < lowered.microbatches; ++mb) {
      const app::Footprints& own = footprints[static_cast<size_t>(mb) % levels.size()];
      stages.push_back(own.of(models::stage_slice(layers, i)).bytes());
      records.push_back(
          {.activation = stages.back().activation, .weight_operands = stages.back().weight_operands});
    }
  }
  const auto bytes = schedule::peak_bytes(lowered, stages);
  const auto left = schedule::peak_bytes(lowered, records);
  std::mutex mutex;  // Catch's assertions are not for several threads at once
  comm::run_thread_ranks(lowered.ranks, [&](comm::Communicator& world) {
    const c10::InferenceMode inference;
    at::set_num_threads(1);
    const int r = world.rank();
    Rank rank(model, layers, lowered.stages_of(r), levels);
    pipeline::Executor executor(rank.stages(), world, lowered);
    const AllocationCounter counter;
    const schedule::InFlight peak = executor.run(microbatches);
    const std::lock_guard lock(mutex);
    CAPTURE(lowered.name, lowered.ranks, lowered.microbatches, r);
    CHECK(peak.activations == counts[r].activations);
    CHECK(peak.weight_operands == counts[r].weight_operands);
    CHECK(peak.held == counts[r].held);
    CHECK(peak.receive_buffers <= counts[r].receive_buffers);
    CHECK(rank.peak() == left[r].total());
    CHECK(rank.held() == 0);
    // The allocated bytes also have the loss's scalars, and messages that left at other times than predicted.
    const int64_t message = lowered.ranks == 1 ? 0 : stages.front().message;
    const int64_t messages = 2 * lowered.microbatches * lowered.stages_per_rank * message;
    CHECK(counter.peak() + 2 * message >= bytes[r].total());
    CHECK(counter.peak() <= bytes[r].total() + messages + 64);
  });
}

}  // namespace

TEST_CASE("every schedule holds what its list says, counted and to the byte") {
  using Levels = std::vector<config::Recompute>;
  using enum config::Recompute;
  const auto levels = GENERATE(Levels{none}, Levels{full}, Levels{full, none, selective});
  int checked = 0;
  for (const std::string& name : schedule::schedule_names()) {
    for (int p = 1; p <= 4; ++p) {
      for (int m = 1; m <= 8; ++m) {
        schedule::Schedule s;
        try {
          s = schedule::make_schedule({.name = name, .ranks = p, .microbatches = m});
        } catch (const UsageError&) {
          continue;
        }
        if (s.forward_only) continue;
        check_schedule(schedule::lower(s), levels);
        ++checked;
      }
    }
  }
  CHECK(checked > 200);
}
