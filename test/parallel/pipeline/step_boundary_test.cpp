// Wall time from step to step against the schedule's prediction. Stages sleep instead of computing, so the
// time does not depend on the number of cores. Load can only make it longer, so the shortest of a few tries
// counts. Run alone, as parallel_pipeline_clock:
//   build/test_parallel_pipeline "[clock]"
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/host_values.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "parallel/pipeline/executor.h"
#include "parallel/schedule/cost/simulate.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;

namespace {

constexpr double unit = 0.02;  // seconds of an F, I or W

class SleepingStage final : public pipeline::Stage {
 public:
  SleepingStage(int index, int stages) : index_(index), stages_(stages) {}
  int index() const override { return index_; }
  bool is_first() const override { return index_ == 0; }
  bool is_last() const override { return index_ == stages_ - 1; }
  at::Tensor empty_boundary(const data::Microbatch&) const override { return at::zeros({6, 4}); }
  at::Tensor forward(int, const data::Microbatch&, at::Tensor) override { return sleep(is_last()); }
  at::Tensor forward_only(const data::Microbatch&, at::Tensor) override { return sleep(is_last()); }
  at::Tensor logits(const data::Microbatch&, at::Tensor, const at::Tensor&) override { return {}; }
  at::Tensor backward(int, at::Tensor) override {
    sleep(true);
    return sleep(is_first());
  }
  at::Tensor backward_input(int, at::Tensor) override { return sleep(is_first()); }
  void backward_weight(int) override { sleep(true); }
  double take_loss() override { return 0; }
  void discard() override {}
  nn::ParameterStore& parameters() override { return store_; }

 private:
  static at::Tensor sleep(bool nothing) {
    std::this_thread::sleep_for(std::chrono::duration<double>(unit));
    return nothing ? at::Tensor() : at::zeros({6, 4});
  }

  int index_, stages_;
  nn::ParameterStore store_;
};

// Seconds per step on the rank that limits the pipeline.
double measured(const schedule::Schedule& s, bool post_validation) {
  using Clock = std::chrono::steady_clock;
  constexpr int settling = 1, steps = 3;
  double seconds = 0;
  comm::run_thread_ranks(s.ranks, [&](comm::Communicator& world) {
    const c10::InferenceMode inference;
    std::vector<std::unique_ptr<SleepingStage>> own;
    pipeline::WeightActions none;
    std::vector<pipeline::StageWithWeights> stages;
    for (const int stage : s.stages_of(world.rank())) {
      own.push_back(std::make_unique<SleepingStage>(stage, s.stages()));
      stages.push_back({*own.back(), none});
    }
    const std::vector<data::Microbatch> microbatches(s.microbatches);
    pipeline::Executor executor(stages, world, s);
    if (post_validation) executor.prepare_validation(s);
    comm::Exchange exchange(world);
    const std::array<double, 1> value = {1};
    const auto validate = [&] { return exchange.wait("the step").size() > 0; };
    Clock::time_point begin;
    for (int step = 0; step < settling + steps; ++step) {
      if (step == settling) begin = Clock::now();
      if (post_validation) {
        step == 0 ? executor.run(microbatches) : executor.run(microbatches, validate);
        exchange.start(value);
      } else {
        executor.run(microbatches);
        world.barrier();
      }
    }
    if (world.rank() == world.size() - 1) {
      seconds = std::chrono::duration<double>(Clock::now() - begin).count() / steps;
    }
    if (post_validation) exchange.wait("the last step");
  });
  return seconds;
}

struct Timing {
  std::string schedule;
  int ranks;
  bool post_validation;
  double predicted, shortest;
};

constexpr double tolerance = 0.03;

// The shortest time of a few tries.
Timing timing_of(const std::string& name, int ranks, bool post_validation) {
  constexpr int tries = 8;
  const auto s = schedule::lower(schedule::make_schedule({.name = name, .ranks = ranks, .microbatches = 8}));
  const double predicted = unit * (post_validation ? post_validated_step_time(s, {}) : simulate(s).step_time);
  double shortest = measured(s, post_validation);
  for (int i = 1; i < tries && shortest > predicted * (1 + tolerance); ++i)
    shortest = std::min(shortest, measured(s, post_validation));
  return {name, ranks, post_validation, predicted, shortest};
}

}  // namespace

TEST_CASE("the wall bubble of zb_h2 and zbv falls as predicted", "[clock]") {
  for (const std::string name : {"1f1b", "zb_h1", "zb_h2", "zbv"}) {
    std::vector<std::future<Timing>> timings;  // at once: the stages only sleep
    for (const int ranks : {2, 4}) {
      for (const bool post_validation : {false, true})
        timings.push_back(std::async(std::launch::async, timing_of, name, ranks, post_validation));
    }
    for (std::future<Timing>& timing : timings) {
      const Timing t = timing.get();
      CAPTURE(t.schedule, t.ranks, t.post_validation);
      CHECK(t.shortest == Approx(t.predicted).epsilon(tolerance));
    }
  }
}
