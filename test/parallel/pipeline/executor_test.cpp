// The executor against a stage with known arithmetic: every value arrives, and no more is kept than promised.
#include "parallel/pipeline/executor.h"

#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/hand_over.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "parallel/comm/wait_timeout.h"
#include "parallel/schedule/cost/measured_step.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;

namespace {

constexpr int64_t width = 4;

// F: x + 1 (the first stage starts from the microbatch's token). B: dy * 2. The last stage sums its inputs.
// Microbatch i has 4 + i % 3 tokens.
class CountingStage final : public pipeline::Stage {
 public:
  CountingStage(int index, int stages) : index_(index), stages_(stages) {}
  int index() const override { return index_; }
  bool is_first() const override { return index_ == 0; }
  bool is_last() const override { return index_ == stages_ - 1; }
  at::Tensor empty_boundary(const data::Microbatch& data) const override {
    return at::full({data.segments.tokens(), width}, std::nan(""));
  }

  at::Tensor forward(int microbatch, const data::Microbatch& data, at::Tensor input) override {
    if (microbatch == fail_at) throw Error("broken on purpose");
    if (microbatch == silent_at) silence();
    saved_.push_back({microbatch, data.segments.tokens()});
    return step_forward(data, input);
  }
  at::Tensor forward_only(const data::Microbatch& data, at::Tensor input) override {
    return step_forward(data, input);
  }
  at::Tensor logits(const data::Microbatch&, at::Tensor, const at::Tensor&) override {
    throw Error("no logits here");
  }
  at::Tensor backward(int microbatch, at::Tensor dy) override {
    at::Tensor dx = backward_input(microbatch, dy);
    backward_weight(microbatch);
    return dx;
  }
  at::Tensor backward_input(int microbatch, at::Tensor dy) override {
    const auto [forward, tokens] = saved_.front();
    if (forward != microbatch) throw Error("backward out of order");
    saved_.erase(saved_.begin());
    ++pending_;
    at::Tensor in = is_last() ? at::full({tokens, width}, 1.0) : dy;
    if (in.sizes() != at::IntArrayRef({tokens, width})) throw Error("a gradient of the wrong shape");
    gradient += in.sum().item<double>();
    return is_first() ? at::Tensor() : at::mul(in, 2);
  }
  void backward_weight(int) override { --pending_; }
  double take_loss() override { return std::exchange(loss_, 0); }
  void discard() override { saved_.clear(); }
  nn::ParameterStore& parameters() override { return store_; }

  bool has_loss() const { return loss_ > 0; }
  size_t saved_microbatches() const { return saved_.size(); }
  size_t pending_weight_gradients() const { return pending_; }

  double gradient = 0;
  ptrdiff_t most_alive = 0;  // outputs at a time
  int fail_at = -1;
  int silent_at = -1;
  std::function<void()> silence;

 private:
  at::Tensor step_forward(const data::Microbatch& data, const at::Tensor& input) {
    const int64_t tokens = data.segments.tokens();
    at::Tensor x =
        is_first() ? at::full({tokens, width}, static_cast<double>(data.tokens[0].item<int64_t>())) : input;
    if (x.sizes() != at::IntArrayRef({tokens, width})) throw Error("an input of the wrong shape");
    x = at::add(x, 1);
    made_.emplace_back(x.getIntrusivePtr());
    most_alive =
        std::max(most_alive, std::ranges::count_if(made_, [](const auto& t) { return !t.expired(); }));
    if (!is_last()) return x;
    loss_ += x.sum().item<double>();
    return {};
  }

  int index_, stages_;
  std::vector<std::pair<int, int64_t>> saved_;  // microbatch, its tokens
  size_t pending_ = 0;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> made_;
  double loss_ = 0;
  nn::ParameterStore store_;
};

class CountedReductions final : public pipeline::WeightActions {
 public:
  void reduce_grad() override { ++count; }
  int count = 0;
};

class RecordedActions final : public pipeline::WeightActions {
 public:
  void unshard(std::optional<schedule::ActionKind> next) override {
    told.push_back(next == schedule::ActionKind::forward ? "unshard for F" : "unshard");
  }
  void reshard() override { told.emplace_back("reshard"); }
  void finish() override { told.emplace_back("finish"); }
  void begin_pass(const pipeline::Pass& pass) override { passes.push_back(pass); }
  void settle() override { told.emplace_back("settle"); }
  void discard() override { told.emplace_back("discard"); }

  std::vector<std::string> told;
  std::vector<pipeline::Pass> passes;
};

// The executor's form of a stage with weights that no other rank shares.
std::vector<pipeline::StageWithWeights> alone(CountingStage& stage) {
  static pipeline::WeightActions none;
  return {{stage, none}};
}

schedule::Schedule lowered_schedule(const std::string& name, int ranks, int microbatches) {
  const schedule::ScheduleSpec spec{.name = name, .ranks = ranks, .microbatches = microbatches};
  return schedule::lower(schedule::make_schedule(spec));
}

std::vector<data::Microbatch> microbatches(int m) {
  std::vector<data::Microbatch> result;
  for (int i = 0; i < m; ++i) {
    const int32_t tokens = 4 + i % 3;
    result.push_back({.tokens = at::full({tokens}, 10 * i, at::kLong),
                      .labels = at::zeros({tokens}, at::kLong),
                      .positions = at::zeros({tokens}, at::kInt),
                      .segments = tokens::make_segments({0, 3, tokens}, at::kCPU),
                      .targets = tokens});
  }
  return result;
}

// The expected values over all microbatches and stages of a pipeline of p.
struct Expected {
  double loss = 0;  // the sum of 10 i + p in every element of microbatch i
  int64_t tokens = 0;
  double gradient(int p, int stage) const {
    return static_cast<double>(tokens * width * (int64_t{1} << (p - 1 - stage)));
  }
};

Expected expected(int p, int m) {
  Expected result;
  for (int i = 0; i < m; ++i) {
    result.tokens += 4 + i % 3;
    result.loss += static_cast<double>((4 + i % 3) * width * (10 * i + p));
  }
  return result;
}

}  // namespace

TEST_CASE("every value arrives and activations stay within the schedule's bound") {
  std::mutex mutex;  // Catch's assertions are not for several threads at once
  for (const std::string name : {"gpipe", "1f1b"}) {
    for (int p = 1; p <= 4; ++p) {
      for (const int m : {1, 2, 3, 4, 8, 13}) {
        if (name == "1f1b" && m < p) continue;
        const schedule::Schedule lowered = lowered_schedule(name, p, m);
        const schedule::Schedule forward = schedule::lower(schedule::forward_only(lowered));
        comm::run_thread_ranks(p, [&](comm::Communicator& world) {
          const c10::InferenceMode inference;
          CountingStage stage(world.rank(), p);
          CountedReductions reductions;
          pipeline::Executor train({{stage, reductions}}, world, lowered);
          pipeline::Executor evaluate({{stage, reductions}}, world, forward);
          for (int step = 0; step < 2; ++step) {
            const schedule::InFlight peak = train.run(microbatches(m));
            const double loss = stage.take_loss();
            evaluate.run(microbatches(m));
            const double again = stage.take_loss();
            const std::lock_guard lock(mutex);
            CAPTURE(name, p, m, world.rank());
            CHECK(peak.activations == (name == "gpipe" ? m : std::min(p - world.rank(), m)));
            CHECK(peak.weight_operands == 0);
            CHECK(peak.held == peak.activations);
            CHECK(peak.receive_buffers <= 4);
            CHECK(stage.saved_microbatches() == 0);
            CHECK(stage.pending_weight_gradients() == 0);
            if (!stage.is_last()) continue;
            CHECK(loss == expected(p, m).loss);
            CHECK(again == expected(p, m).loss);
          }
          const std::lock_guard lock(mutex);
          CHECK(stage.gradient == 2 * expected(p, m).gradient(p, world.rank()));
          CHECK(reductions.count == 2);
        });
      }
    }
  }
}

TEST_CASE("the executor gives each pass of a stage what the list has next for it") {
  using schedule::ActionKind;
  constexpr int m = 3;
  const schedule::Schedule lowered =
      schedule::lower(schedule::make_schedule({.name = "zb_h1", .ranks = 1, .microbatches = m}),
                      {.gather = schedule::Gather::kept, .reduce = schedule::Reduce::microbatch});
  std::mutex mutex;
  comm::run_thread_ranks(1, [&](comm::Communicator& world) {
    const c10::InferenceMode inference;
    CountingStage stage(0, 1);
    RecordedActions weights;
    pipeline::Executor executor({{stage, weights}}, world, lowered);
    executor.run(microbatches(m));
    // The list's passes, to find for each pass the next one that reads weights.
    std::vector<ActionKind> passes;
    for (const schedule::Action& action : lowered.actions[0]) {
      if (schedule::is_compute(action.kind)) passes.push_back(action.kind);
    }
    const std::lock_guard lock(mutex);
    CHECK(weights.told == std::vector<std::string>{"unshard for F", "reshard", "finish"});
    REQUIRE(weights.passes.size() == passes.size());
    std::optional<ActionKind> next;
    for (size_t i = passes.size(); i-- > 0;) {
      CAPTURE(i);
      CHECK(weights.passes[i].kind == passes[i]);
      CHECK(weights.passes[i].next == next);
      CHECK(weights.passes[i].reduce_follows == schedule::is_weight_gradient(passes[i]));
      if (schedule::needs_weights(passes[i])) next = passes[i];
    }
  });
}

TEST_CASE("every action is timed once, and a rank is either busy or idle") {
  using Clock = pipeline::TimeMarks::Clock;
  const auto seconds = [](Clock::time_point t) {
    return std::chrono::duration<double>(t.time_since_epoch()).count();
  };
  constexpr int p = 3, m = 5;
  const schedule::Schedule lowered = lowered_schedule("1f1b", p, m);
  std::mutex mutex;
  std::vector<schedule::RankStep> ranks(p);
  comm::run_thread_ranks(p, [&](comm::Communicator& world) {
    const c10::InferenceMode inference;
    CountingStage stage(world.rank(), p);
    pipeline::Executor executor(alone(stage), world, lowered);
    executor.time_on(std::nullopt);
    executor.run(microbatches(m));
    const bool untimed = executor.times().empty();
    executor.time_on(at::kCPU);
    executor.run(microbatches(m));  // warm
    world.barrier();
    schedule::RankStep& step = ranks[world.rank()];
    step.step.start = seconds(Clock::now());
    executor.run(microbatches(m));
    step.step.end = seconds(Clock::now());
    const auto times = executor.times();
    const std::lock_guard lock(mutex);
    CHECK(untimed);
    REQUIRE(times.size() == schedule::timed_actions(lowered.actions[world.rank()]).size());
    auto last = Clock::time_point();
    for (const auto& [wait, start, end] : times) {
      CHECK(last <= wait);
      CHECK(wait <= start);
      CHECK(start <= end);
      last = end;
      step.actions.push_back({seconds(start), seconds(end)});
    }
  });
  const auto split = schedule::split_step(lowered, ranks);
  for (size_t r = 0; r < split.size(); ++r) {
    double computed = 0;
    for (const schedule::Span& span : ranks[r].actions) computed += span.end - span.start;
    const double length = ranks[r].step.end - ranks[r].step.start;
    CHECK(split[r].busy == Approx(computed).margin(1e-8));
    CHECK(split[r].busy + split[r].idle() == Approx(length).margin(1e-8));
    CHECK(split[r].wait_for_transfer <= split[r].idle() - split[r].barrier + 1e-8);
    CHECK(split[r].fill > 0);
  }
}

TEST_CASE("a run that is not confirmed is thrown away and begins anew") {
  std::mutex mutex;
  for (const std::string name : {"gpipe", "1f1b", "zb_h1", "zb_h2"}) {
    for (int p = 1; p <= 4; ++p) {
      for (const int m : {4, 13}) {
        const schedule::Schedule lowered = lowered_schedule(name, p, m);
        comm::run_thread_ranks(p, [&](comm::Communicator& world) {
          const c10::InferenceMode inference;
          CountingStage stage(world.rank(), p);
          RecordedActions weights;
          pipeline::Executor executor({{stage, weights}}, world, lowered);
          executor.prepare_validation(lowered);
          for (const bool confirmed : {false, true, false, false}) {
            int asked = 0;
            const double before = stage.gradient;
            executor.run(microbatches(m), [&] {
              ++asked;
              if (stage.gradient != before || stage.has_loss()) throw Error("asked too late");
              return confirmed;
            });
            const double loss = stage.take_loss();
            const std::lock_guard lock(mutex);
            CAPTURE(name, p, m, world.rank(), confirmed);
            CHECK(asked == 1);
            CHECK(std::exchange(weights.told, {}) ==
                  (confirmed ? std::vector<std::string>{"settle", "finish"}
                             : std::vector<std::string>{"settle", "discard", "finish"}));
            CHECK(stage.saved_microbatches() == 0);
            CHECK(stage.gradient - before == expected(p, m).gradient(p, world.rank()));
            if (stage.is_last()) CHECK(loss == expected(p, m).loss);
          }
        });
      }
    }
  }
}

TEST_CASE("an error names the action, and the other ranks stop") {
  const schedule::Schedule lowered = lowered_schedule("1f1b", 3, 4);
  const auto run = [&] {
    comm::run_thread_ranks(3, [&](comm::Communicator& world) {
      const c10::InferenceMode inference;
      CountingStage stage(world.rank(), 3);
      if (world.rank() == 1) stage.fail_at = 2;
      pipeline::Executor(alone(stage), world, lowered).run(microbatches(4));
    });
  };
  CHECK_THROWS_WITH(run(), test::contains_text("in F stage 1 microbatch 2: broken on purpose"));
}

// Rank 0 stops after some of its actions and is silent until rank 1 has failed; it has no timeout of its own.
TEST_CASE("a silent rank is reported in the schedule's terms") {
  const auto [sent, expected] =
      GENERATE(std::pair(0,
                         "in F stage 1 microbatch 0: rank 1 waited 0.2 s for a message "
                         "from rank 0: pipeline rank 1 waits for RECV_F stage 1 "
                         "microbatch 0"),
               std::pair(1, "pipeline rank 1 waits for RECV_F stage 1 microbatch 1"));
  CAPTURE(sent);
  const schedule::Schedule lowered = lowered_schedule("1f1b", 2, 2);
  std::deque<comm::Activity> activities(2);
  std::string first;
  bool timed_out = false;
  try {
    comm::run_thread_ranks(2, [&](comm::Communicator& world) {
      const c10::InferenceMode inference;
      CountingStage stage(world.rank(), 2);
      pipeline::Executor executor(alone(stage), world, lowered);
      executor.report_to(&activities[static_cast<size_t>(world.rank())]);
      if (world.rank() == 1) {
        world.set_timeout(std::chrono::milliseconds(200));
        executor.run(microbatches(2));
      } else {
        stage.silent_at = sent;
        stage.silence = [&] { world.barrier(); };  // ends with PeerFailure, once rank 1 has failed
        executor.run(microbatches(2));
      }
    });
  } catch (const comm::WaitTimeout& error) {
    timed_out = true;
    first = error.what();
  }
  CHECK(timed_out);
  CHECK_THAT(first, test::contains_text(expected));
}

TEST_CASE("an executor tells what it is doing, and what it waits for") {
  const schedule::Schedule lowered = lowered_schedule("1f1b", 2, 2);
  std::deque<comm::Activity> activities(2);
  std::vector<std::string> seen;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const c10::InferenceMode inference;
    comm::Activity& mine = activities[static_cast<size_t>(world.rank())];
    mine.set(comm::ActivityKind::work, "step 17");
    CountingStage stage(world.rank(), 2);
    pipeline::Executor executor(alone(stage), world, lowered);
    executor.report_to(&mine);
    if (world.rank() == 0) {
      stage.silent_at = 1;
      stage.silence = [&] {
        seen.push_back(comm::describe(mine.state()));
        const auto waits = [](const comm::Activity::State& state) {
          return state.doing == comm::ActivityKind::wait && state.text == "RECV_F stage 1 microbatch 1";
        };
        while (!waits(activities[1].state())) std::this_thread::yield();
        seen.push_back(comm::describe(activities[1].state()));
      };
    }
    executor.run(microbatches(2));
  });
  REQUIRE(seen.size() == 2);
  CHECK_THAT(seen[0], test::contains_text("is in F stage 0 microbatch 1 for 0.0 s"));
  CHECK_THAT(seen[1], test::contains_text("waits for RECV_F stage 1 microbatch 1 for "));
  for (const comm::Activity& activity : activities) CHECK(activity.state().text == "step 17");
}

namespace {

// Passes of three parts that wait for an exchange between the parts.
class ExchangingStage final : public pipeline::Stage {
 public:
  ExchangingStage(int index, std::vector<std::string>& told) : index_(index), told_(told) {}
  int index() const override { return index_; }
  bool is_first() const override { return index_ == 0; }
  bool is_last() const override { return index_ == 1; }
  at::Tensor empty_boundary(const data::Microbatch&) const override { return at::zeros({1}); }
  at::Tensor forward(int microbatch, const data::Microbatch&, at::Tensor) override {
    return pass(fmt::format("{}F{}", index_, microbatch));
  }
  at::Tensor forward_only(const data::Microbatch&, at::Tensor) override { return {}; }
  at::Tensor logits(const data::Microbatch&, at::Tensor, const at::Tensor&) override { return {}; }
  at::Tensor backward(int microbatch, at::Tensor) override {
    return pass(fmt::format("{}B{}", index_, microbatch));
  }
  at::Tensor backward_input(int, at::Tensor) override { return {}; }
  void backward_weight(int) override {}
  double take_loss() override { return 0; }
  void discard() override {}
  nn::ParameterStore& parameters() override { return store_; }

  std::string fail_in;  // "0F1.2"

 private:
  struct Exchange final : comm::Work {
    bool done() override { return true; }
    void wait(const std::function<std::string()>&) override {}
    bool wait_for(std::chrono::milliseconds) override { return true; }
  };
  struct Farewell {
    std::vector<std::string>& told;
    std::string text;
    ~Farewell() { told.push_back(text); }
  };

  at::Tensor pass(const std::string& name) {
    const Farewell farewell{told_, name + "."};
    for (int part = 0; part < 3; ++part) {
      if (part > 0) {
        Exchange exchange;
        comm::wait_in_pass(exchange, {});
      }
      const std::string text = fmt::format("{}.{}", name, part);
      told_.push_back(text);
      if (text == fail_in) throw Error("broken on purpose");
    }
    return at::zeros({1});
  }

  int index_;
  std::vector<std::string>& told_;
  nn::ParameterStore store_;
};

// Runs one pair, stage 0's F of microbatch 1 and stage 1's B of microbatch 0, between single passes.
std::vector<std::string> run_a_pair(const std::string& fail_in, std::string& error,
                                    std::vector<pipeline::ActionTime>* times = nullptr) {
  const schedule::Schedule lowered =
      schedule::lower(schedule::parse_csv("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n"),
                      {.reduce = schedule::Reduce::none, .keep_pairs = true});
  std::vector<std::string> told;
  comm::run_thread_ranks(1, [&](comm::Communicator& world) {
    ExchangingStage first(0, told), last(1, told);
    first.fail_in = last.fail_in = fail_in;
    pipeline::WeightActions none;
    pipeline::Executor executor({{first, none}, {last, none}}, world, lowered);
    try {
      executor.run(microbatches(2));
      if (times != nullptr) *times = executor.times();
    } catch (const Error& e) {
      error = e.what();
    }
  });
  return told;
}

std::vector<std::string> of_pair(const std::vector<std::string>& told) {
  std::vector<std::string> result;
  std::ranges::copy_if(told, std::back_inserter(result), [](const std::string& text) {
    return text.starts_with("0F1") || text.starts_with("1B0");
  });
  return result;
}

}  // namespace

TEST_CASE("the halves of a pair take turns where they wait") {
  std::string error;
  std::vector<pipeline::ActionTime> times;
  const std::vector<std::string> told = run_a_pair("", error, &times);
  CHECK(error.empty());
  CHECK(of_pair(told) ==
        std::vector<std::string>{"0F1.0", "1B0.0", "0F1.1", "1B0.1", "0F1.2", "0F1.", "1B0.2", "1B0."});
  CHECK(told.size() == 8 * 4);  // every pass once, to its end
  REQUIRE(times.size() == 8);
  for (size_t i = 0; i < times.size(); ++i) {
    CHECK(times[i].wait <= times[i].start);
    CHECK(times[i].start < times[i].end);
    if (i > 0) CHECK(times[i - 1].end <= times[i].wait);
  }
}

TEST_CASE("an error in one half of a pair names it, and ends the other half") {
  const auto [fail_in, name, ended] = GENERATE(table<std::string, std::string, std::vector<std::string>>(
      {{"0F1.0", "F stage 0 microbatch 1", {"0F1.0", "0F1."}},
       {"0F1.1", "F stage 0 microbatch 1", {"0F1.0", "1B0.0", "0F1.1", "0F1.", "1B0."}},
       {"1B0.0", "B stage 1 microbatch 0", {"0F1.0", "1B0.0", "1B0.", "0F1."}},
       {"1B0.2",
        "B stage 1 microbatch 0",
        {"0F1.0", "1B0.0", "0F1.1", "1B0.1", "0F1.2", "0F1.", "1B0.2", "1B0."}}}));
  std::string error;
  const std::vector<std::string> told = run_a_pair(fail_in, error);
  CHECK(error == "in " + name + ": broken on purpose");
  CHECK(of_pair(told) == ended);
}

TEST_CASE("stages must be the schedule's") {
  const schedule::Schedule lowered = lowered_schedule("gpipe", 1, 1);
  comm::run_thread_ranks(1, [&](comm::Communicator& world) {
    CountingStage stage(3, 5);
    CHECK_THROWS_AS(pipeline::Executor(alone(stage), world, lowered), Error);
    CountingStage right(0, 1);
    pipeline::Executor executor(alone(right), world, lowered);
    CHECK_THROWS_AS(executor.run(microbatches(2)), Error);
  });
}

TEST_CASE("a schedule for more ranks, and a validation that was not prepared, are refused") {
  comm::run_thread_ranks(1, [&](comm::Communicator& world) {
    const c10::InferenceMode inference;
    CountingStage first(0, 2), only(0, 1);
    CHECK_THROWS_WITH(pipeline::Executor(alone(first), world, lowered_schedule("gpipe", 2, 1)),
                      test::contains_text("for 2 pipeline ranks, the mesh has 1"));
    pipeline::Executor executor(alone(only), world, lowered_schedule("gpipe", 1, 1));
    CHECK_THROWS_WITH(executor.run(microbatches(1), [] { return true; }),
                      test::contains_text("not prepared"));
  });
}

TEST_CASE("a list that leaves values behind is an error") {
  const auto run = [](const schedule::Schedule& s) {
    comm::run_thread_ranks(s.ranks, [&](comm::Communicator& world) {
      const c10::InferenceMode inference;
      std::deque<CountingStage> own;
      pipeline::WeightActions none;
      std::vector<pipeline::StageWithWeights> stages;
      for (const int stage : s.stages_of(world.rank()))
        stages.push_back({own.emplace_back(stage, s.stages()), none});
      pipeline::Executor(stages, world, s).run(microbatches(1));
    });
  };
  schedule::Schedule local = schedule::parse_csv("0F0,1F0\n");
  CHECK_NOTHROW(run(local));
  local.actions[0].pop_back();
  schedule::Schedule made = schedule::parse_csv("0F0,0SEND_F0\n1RECV_F0,1F0\n"), received = made;
  made.actions[0].pop_back();
  made.actions[1].clear();
  received.actions[1].pop_back();
  schedule::Schedule activations = schedule::parse_csv("0F0,0I0,0W0\n"), operands = activations;
  activations.actions[0].resize(1);
  operands.actions[0].resize(2);
  for (const schedule::Schedule& s : {local, made, received, activations, operands})
    CHECK_THROWS_WITH(run(s), test::contains_text("left values behind"));
}

TEST_CASE("what has been sent is freed during the step") {
  const schedule::Schedule lowered = lowered_schedule("1f1b", 2, 13);
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const c10::InferenceMode inference;
    CountingStage stage(world.rank(), 2);
    pipeline::Executor(alone(stage), world, lowered).run(microbatches(13));
    if (world.rank() == 0) CHECK(stage.most_alive <= 3);  // before the F of i + 2, the B of i has come
  });
}

TEST_CASE("the halves of a pair last as long as their turns, one after the other") {
  using Clock = pipeline::TimeMarks::Clock;
  constexpr std::chrono::milliseconds turn(3);
  const auto work = [&] { std::this_thread::sleep_for(turn); };
  pipeline::ActionTimes times;
  times.reset();
  const auto begin = Clock::now();
  times.begin(), times.starts(), work();
  times.begin(), times.starts(), work();
  times.goes_on(0), work(), times.ends();
  times.goes_on(1), work(), work(), times.ends();
  work();  // of no action
  times.begin(), times.starts(), times.ends();
  const auto all = Clock::now() - begin;
  const auto read = times.read();
  REQUIRE(read.size() == 3);
  const auto length = [&](size_t i) { return read[i].end - read[i].start; };
  CHECK(length(0) >= 2 * turn);
  CHECK(length(1) >= 3 * turn);
  CHECK(length(0) + length(1) + length(2) <= all - turn);
  CHECK((read[1].wait == read[0].end && read[1].start == read[0].end));
  CHECK(read[2].wait >= read[1].end);
}

TEST_CASE("a run holds what its list says, W's operands and posted receives too") {
  std::mutex mutex;
  for (const std::string name : {"gpipe", "1f1b", "zb_h1", "zb_h2"}) {
    const schedule::Schedule lowered = lowered_schedule(name, 3, 8);
    const std::vector<schedule::InFlight> expected = schedule::in_flight(lowered);
    comm::run_thread_ranks(3, [&](comm::Communicator& world) {
      const c10::InferenceMode inference;
      CountingStage stage(world.rank(), 3);
      pipeline::Executor executor(alone(stage), world, lowered);
      for (int step = 0; step < 2; ++step) {
        const schedule::InFlight peak = executor.run(microbatches(8));
        const schedule::InFlight& own = expected[static_cast<size_t>(world.rank())];
        const std::lock_guard lock(mutex);
        CAPTURE(name, world.rank(), step);
        CHECK(peak.activations == own.activations);
        CHECK(peak.weight_operands == own.weight_operands);
        CHECK(peak.held == own.held);
        CHECK(peak.receive_buffers == own.receive_buffers);
      }
    });
  }
}

TEST_CASE("a pass behind a RESHARD is not the stage's next one") {
  const schedule::Schedule lowered =
      schedule::lower(schedule::parse_csv("0F0,1F0,1B0,0B0\n"),
                      {.gather = schedule::Gather::streamed, .reduce = schedule::Reduce::none});
  comm::run_thread_ranks(1, [&](comm::Communicator& world) {
    const c10::InferenceMode inference;
    CountingStage first(0, 2), last(1, 2);
    RecordedActions of_first, of_last;
    pipeline::Executor executor({{first, of_first}, {last, of_last}}, world, lowered);
    executor.run(microbatches(1));
    CHECK(of_first.told ==
          std::vector<std::string>{"unshard for F", "reshard", "unshard", "reshard", "finish"});
    REQUIRE((of_first.passes.size() == 2 && of_last.passes.size() == 2));
    CHECK(!of_first.passes[0].next.has_value());
    CHECK((of_last.passes[0].next == schedule::ActionKind::backward));
  });
}
