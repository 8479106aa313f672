// Lists for transports whose sends block: they end if each pass first waits for all messages of its rank.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "parallel/pipeline/executor.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"
#include "test/parallel/pipeline/blocking_device.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/passes_of.h"

namespace pptrain {
namespace {

using schedule::Schedule;
using test::contains_text;

at::Tensor boundary() {
  return at::zeros({1, 2});
}

// Waits for the device in each pass, and counts forwards minus backwards.
class DrainingStage final : public pipeline::Stage {
 public:
  DrainingStage(int index, const Schedule& lists, test::BlockingDevice& device)
      : index_(index), stages_(lists.stages()), spread_(lists.spread_head), device_(device) {}

  int index() const override { return index_; }
  bool is_first() const override { return index_ == 0; }
  bool is_last() const override { return index_ == stages_ - 1 && !spread_; }
  at::Tensor empty_boundary(const data::Microbatch&) const override { return boundary(); }
  at::Tensor forward(int, const data::Microbatch&, at::Tensor) override {
    ++saved;
    return pass();
  }
  at::Tensor forward_only(const data::Microbatch&, at::Tensor) override { return pass(); }
  at::Tensor logits(const data::Microbatch&, at::Tensor, const at::Tensor&) override { return pass(); }
  at::Tensor backward(int, at::Tensor) override {
    --saved;
    return pass();
  }
  at::Tensor backward_input(int, at::Tensor) override {
    --saved;
    return pass();
  }
  void backward_weight(int) override { pass(); }
  bool has_head_part() const override { return spread_; }
  at::Tensor empty_statistics(const data::Microbatch&) const override { return boundary(); }
  at::Tensor head_forward(int, const data::Microbatch&, at::Tensor) override { return pass(); }
  at::Tensor head_backward(int, const data::Microbatch&, const at::Tensor&, bool) override { return pass(); }
  double take_loss() override { return 0; }
  void discard() override { saved = 0; }
  nn::ParameterStore& parameters() override { return store_; }

  int saved = 0;

 private:
  at::Tensor pass() {
    device_.drain();
    return boundary();
  }

  int index_, stages_;
  bool spread_;
  test::BlockingDevice& device_;
  nn::ParameterStore store_;
};

class DrainingActions final : public pipeline::WeightActions {
 public:
  explicit DrainingActions(test::BlockingDevice& device) : device_(device) {}
  void unshard(std::optional<schedule::ActionKind>) override { device_.drain(); }
  void reshard() override { device_.drain(); }
  void reduce_grad() override { device_.drain(); }

 private:
  test::BlockingDevice& device_;
};

// Runs the lists on threads, once or, with `again`, with a first try that is thrown away.
void run(const Schedule& lists, bool again = false,
         std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  comm::run_thread_ranks(lists.ranks, [&](comm::Communicator& world) {
    const c10::InferenceMode inference;
    world.set_timeout(timeout);
    test::BlockingDevice device(world);
    DrainingActions actions(device);
    std::deque<DrainingStage> own;
    std::vector<pipeline::StageWithWeights> stages;
    for (const int stage : lists.stages_of(world.rank()))
      stages.push_back({own.emplace_back(stage, lists, device), actions});
    pipeline::Executor executor(stages, device, lists);
    const std::vector<data::Microbatch> microbatches(static_cast<size_t>(lists.microbatches));
    if (again) {
      executor.prepare_validation(lists);
      executor.run(microbatches, [&] {
        device.drain();  // as kernels of the validation do
        world.barrier();
        return false;
      });
    } else {
      executor.run(microbatches);
    }
    for (const DrainingStage& stage : own) {
      if (stage.saved != 0) throw Error("a stage keeps activations");
    }
  });
}

std::optional<Schedule> made(const std::string& name, int ranks, int microbatches, int slices = 1) {
  try {
    return schedule::make_schedule(
        {.name = name, .ranks = ranks, .microbatches = microbatches, .sequence_slices = slices});
  } catch (const UsageError&) {
    return std::nullopt;  // there is none of these numbers
  }
}

schedule::Costs head_costs(int ranks) {
  schedule::Costs costs{.stages = {schedule::passes_of(1, 1, 1)}, .latency = {0.05}};
  costs.stages[0].time.head_forward = 1.0 / ranks;
  costs.stages[0].time.head_backward = 2.0 / ranks;
  costs.head_latency = 0.05;
  return costs;
}

// Every schedule as it is, with pairs, in slices, with its weights sharded, with a spread head (sliced too);
// and its forwards.
template <typename Visit>
void for_every_list(int ranks, int microbatches, const Visit& visit) {
  for (const std::string& name : schedule::schedule_names()) {
    CAPTURE(name, ranks, microbatches);
    if (const auto plain = made(name, ranks, microbatches)) {
      visit(schedule::lower(*plain, {.blocking_sends = true}));
      visit(schedule::lower(*plain, {.gather = schedule::Gather::streamed,
                                     .reduce = schedule::Reduce::microbatch,
                                     .keep_pairs = true,
                                     .blocking_sends = true}));
      visit(schedule::lower(*plain, {.keep_pairs = true, .blocking_sends = true}));
      visit(schedule::lower(schedule::forward_only(*plain), {.blocking_sends = true}));
      if (!plain->forward_only && ranks > 1) {
        const Schedule spread = schedule::spread_head(*plain, head_costs(ranks));
        visit(schedule::lower(spread, {.blocking_sends = true}));
        visit(schedule::lower(spread, {.keep_pairs = true, .blocking_sends = true}));
        visit(schedule::lower(schedule::forward_only(spread), {.blocking_sends = true}));
      }
    }
    for (const int slices : {2, 4}) {
      const auto sliced = made(name, ranks, microbatches, slices);
      if (!sliced) continue;
      visit(schedule::lower(*sliced, {.blocking_sends = true}));
      if (!sliced->forward_only && ranks > 1)
        visit(schedule::lower(schedule::spread_head(*sliced, head_costs(ranks)), {.blocking_sends = true}));
    }
  }
}

}  // namespace

TEST_CASE("every schedule is proven for sends that block, up to 8 ranks and 32 microbatches") {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const int microbatches : {1, 2, 5, 8, 16, 32}) {
      for_every_list(ranks, microbatches, [](const Schedule& lists) {
        CHECK(lists.blocking_sends);
        validate(lists);
      });
    }
  }
}

TEST_CASE("every schedule ends on a device for which each pass waits") {
  for (const auto& [ranks, microbatches] :
       {std::pair(2, 4), std::pair(3, 7), std::pair(4, 8), std::pair(8, 16), std::pair(8, 32)})
    for_every_list(ranks, microbatches, [](const Schedule& lists) { run(lists); });
}

TEST_CASE("a step that is thrown away ends there too") {
  for (const std::string name : {"gpipe", "1f1b", "zb_h1", "zb_h2", "zbv"}) {
    CAPTURE(name);
    run(schedule::lower(*made(name, 4, 8), {.blocking_sends = true}), /*again=*/true);
  }
}

TEST_CASE("a list with receives of its own gets them anew, since there they may come too early") {
  const Schedule hoisted = schedule::lower(*made("gpipe", 4, 8));
  const Schedule lists = schedule::lower(hoisted, {.blocking_sends = true});
  CHECK((schedule::compute_only(lists).actions == schedule::compute_only(hoisted).actions));
  CHECK_NOTHROW(run(lists));
}

// Each of two ranks has sent what the other receives only after its next pass.
TEST_CASE("receives at their consumers deadlock there, and the proof says so") {
  Schedule lists = schedule::add_communication(*made("zbv", 2, 4));
  CHECK_THROWS_AS(run(lists, false, std::chrono::milliseconds(300)), Error);
  lists.blocking_sends = true;
  CHECK_THROWS_WITH(validate(lists), contains_text("for the other ends of 1 of its messages"));
  CHECK_NOTHROW(run(schedule::match_messages(lists)));
}

TEST_CASE("a list that ends keeps its receives, and a spread head's are added only if ranks would wait") {
  const auto count = [](const Schedule& lists, schedule::ActionKind kind) {
    ptrdiff_t found = 0;
    for (const auto& list : lists.actions) found += std::ranges::count(list, kind, &schedule::Action::kind);
    return found;
  };
  Schedule plain = schedule::add_communication(*made("1f1b", 4, 8));
  CHECK((schedule::match_messages(plain).actions == plain.actions));
  const Schedule spread = schedule::spread_head(*made("1f1b", 4, 8), head_costs(4));
  const Schedule lists = schedule::lower(spread, {.blocking_sends = true});
  CHECK((schedule::compute_only(lists).actions == spread.actions));
  CHECK(count(lists, schedule::ActionKind::recv_head) > 0);
  CHECK(count(schedule::lower(spread), schedule::ActionKind::recv_head) == 0);
  Schedule without = lists;
  for (auto& list : without.actions)
    std::erase_if(list, [](const schedule::Action& a) { return a.kind == schedule::ActionKind::recv_head; });
  CHECK_THROWS_AS(validate(without), Error);
}

}  // namespace pptrain
