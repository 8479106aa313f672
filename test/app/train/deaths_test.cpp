// A rank dies at each k-th operation of its communicators: in the update, in a copy, in a save, in an
// evaluation. The next start goes on, with the bits of a run that nothing disturbed.
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "app/launch/memory_folder.h"
#include "app/launch/rank_in_world.h"
#include "app/plan/run_context.h"
#include "app/run/run_lock.h"
#include "app/train/trainer.h"
#include "core/base/error.h"
#include "core/fault/shutdown.h"
#include "parallel/checkpoint/step_folders.h"
#include "parallel/comm/liveness/activity.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/app/close_runs.h"
#include "test/support/catch.h"
#include "test/support/covering.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

// The operations of one rank, over all of its communicators and threads. At number `last` it dies, and from
// then on nothing leaves it.
struct Life {
  std::atomic<int64_t> operations = 0;
  int64_t last = 0;  // 0: it lives on

  void operation() {
    const int64_t number = ++operations;
    if (last > 0 && number >= last) throw Error("this rank dies here");
  }
};

class MortalCommunicator final : public comm::Communicator {
 public:
  MortalCommunicator(comm::Communicator& inner, Life& life) : inner_(inner), life_(life) {}
  MortalCommunicator(std::unique_ptr<comm::Communicator> own, Life& life)
      : own_(std::move(own)), inner_(*own_), life_(life) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<comm::Work> isend(const at::Tensor& tensor, int destination) override {
    return counted().isend(tensor, destination);
  }
  std::unique_ptr<comm::Work> irecv(at::Tensor tensor, int source) override {
    return counted().irecv(std::move(tensor), source);
  }
  std::unique_ptr<comm::Communicator> subgroup(std::span<const int> members) override {
    return std::make_unique<MortalCommunicator>(counted().subgroup(members), life_);
  }
  void all_reduce_sum(at::Tensor tensor) override { counted().all_reduce_sum(std::move(tensor)); }
  void broadcast(at::Tensor tensor, int root) override { counted().broadcast(std::move(tensor), root); }
  void barrier() override { counted().barrier(); }
  void all_gather(at::Tensor out, const at::Tensor& tensor) override {
    counted().all_gather(std::move(out), tensor);
  }
  void abort(const std::string& message) override { inner_.abort(message); }
  std::string failure() const override { return inner_.failure(); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }

 private:
  comm::Communicator& counted() {
    life_.operation();
    return inner_;
  }
  std::unique_ptr<comm::Work> start_all_reduce_sum(at::Tensor tensor) override {
    return counted().iall_reduce_sum(std::move(tensor));
  }
  std::unique_ptr<comm::Work> start_reduce_scatter_sum(at::Tensor out, at::Tensor tensor, comm::Counts counts,
                                                       std::span<const int> order) override {
    return counted().ireduce_scatter_sum(std::move(out), tensor, counts, order);
  }
  std::unique_ptr<comm::Work> start_all_gather(at::Tensor out, at::Tensor tensor,
                                               comm::Counts counts) override {
    return counted().iall_gather(std::move(out), tensor, counts);
  }
  std::unique_ptr<comm::Work> start_all_to_all(at::Tensor out, std::vector<int64_t> from, at::Tensor tensor,
                                               std::vector<int64_t> to) override {
    return counted().iall_to_all(std::move(out), from, tensor, to);
  }

  std::unique_ptr<comm::Communicator> own_;
  comm::Communicator& inner_;
  Life& life_;
};

// Hosts as folders, each with as many ranks as another one: one for all ranks, or several.
struct Hosts {
  fs::path folder;
  int count = 1;

  int of(int rank, int ranks) const { return rank * count / ranks; }
  fs::path memory(int host) const { return folder / fmt::format("host_{}", host); }
  void begin() const {
    for (int host = 0; host < count; ++host) fs::create_directories(memory(host));
  }
  void lose(int host) const {
    fs::remove_all(memory(host));
    fs::create_directories(memory(host));
  }
};

// One start of the job, whose rank `victim` dies at its operation `last` (0: it does not). Returns the
// operations of the victim; what the ranks' ends were does not matter.
int64_t start(const app::Plan& plan, const Hosts& hosts, int victim, int64_t last) {
  std::vector<Life> lives(static_cast<size_t>(plan.mesh.world_size()));
  lives[static_cast<size_t>(victim)].last = last;
  const fault::Shutdown shutdown;
  spdlog::set_level(spdlog::level::off);
  const auto speaks_again = c10::make_scope_exit([] { spdlog::set_level(spdlog::level::warn); });
  try {
    comm::run_thread_ranks(plan.mesh.world_size(), [&](comm::Communicator& world) {
      MortalCommunicator mortal(world, lives[static_cast<size_t>(world.rank())]);
      comm::Activity activity;
      app::run_in_world(mortal, plan,
                        [&](app::RunContext& context) {
                          context.memory = hosts.memory(hosts.of(world.rank(), world.size()));
                          return app::train_to_end(context, shutdown);
                        },
                        {.ranks_here = plan.mesh.world_size(), .activity = &activity});
    });
  } catch (const std::exception&) {
    if (last == 0) throw;
  }
  return lives[static_cast<size_t>(victim)].operations;
}

// The last start's first step names the newest checkpoint that was on disk, not a copy in memory.
void check_saved_step(const std::string& metrics, const checkpoint::StepFolders& on_disk) {
  std::istringstream lines(metrics);
  nlohmann::json first;
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.contains("start")) first = nullptr;
    if (record.contains("loss") && first.is_null()) first = record;
  }
  if (first.is_null()) return;
  const auto newest = on_disk.lower_bound(first.at("step").get<int64_t>() - 1);
  CHECK(first.value("saved_step", int64_t{0}) == (newest == on_disk.end() ? 0 : newest->first));
}

// Kills the rank at so many places of the run, evenly spread (at all of them if there are no more), each time
// in a new run. With several hosts the rank's host loses its memory too. `again`: what the next start's job
// has instead. Returns how many starts went on from a copy in memory, which depends on how soon a copy is
// complete.
int64_t sweep(const Overrides& job, int victim, int64_t deaths, int host_count = 1,
              const Overrides& again = {}) {
  const TemporaryFolder folder("/dev/shm");  // where files are synced at once
  const fs::path whole = folder.path() / "whole", run = folder.path() / "run";
  const auto plan_in = [&](const fs::path& dir, const Overrides& overrides) {
    return small_plan(small_job_text(), dir, with(with({"checkpoint.resume=auto"}, job), overrides));
  };
  const Hosts hosts{folder.path(), host_count};
  hosts.begin();
  const int64_t operations = start(plan_in(whole, {}), hosts, victim, 0);
  const JobResult expected = read_result(whole, 0);
  REQUIRE(expected.checksums.size() > 30);
  deaths = std::min(deaths, operations - 1);
  const app::Plan plan = plan_in(run, {}), next = plan_in(run, again);
  Hosts left = hosts;
  if (!again.empty()) left.count = host_count - 1;
  int64_t from_memory = 0;
  for (int64_t death = 1; death <= deaths; ++death) {
    const int64_t last = death * operations / (deaths + 1);
    CAPTURE(job, victim, last, operations);
    start(plan, hosts, victim, last);
    if (host_count > 1) hosts.lose(hosts.of(victim, plan.mesh.world_size()));
    const checkpoint::StepFolders on_disk = checkpoint::list_step_folders(run / "checkpoints");
    start(next, left, 0, 0);
    const JobResult result = read_result(run, 0);
    REQUIRE(result.checksums == expected.checksums);
    REQUIRE(result.metrics == expected.metrics);
    for (int host = 0; host < left.count; ++host) REQUIRE(fs::is_empty(hosts.memory(host)));
    const auto end = app::read_run_end(run);
    REQUIRE(end);
    CHECK(end->how == app::RunPhase::finished);
    CHECK(end->checkpoint == "step_5");
    const std::string metrics = content(run / "metrics.jsonl");
    from_memory += metrics.find(hosts.memory(0).string()) != std::string::npos;
    check_saved_step(metrics, on_disk);
    fs::remove_all(run);
  }
  return from_memory;
}

// All operations with PPTRAIN_TESTS_ALL.
int64_t often(int64_t deaths) {
  return all_wanted() ? std::numeric_limits<int64_t>::max() : deaths;
}

const Overrides copies = {"checkpoint.memory_seconds=1e-9", "checkpoint.interval=0", "train.steps=5",
                          "train.grad_accum_steps=2", "optimizer.ema_decay=0.9"};

// Options of a model with experts. Each doubles something, or is left out.
struct Choice {
  const char* key;
  const char* value;
};
constexpr Choice choices[] = {{"distributed.pp", "2"},
                              {"distributed.dp_replicate", "2"},
                              {"distributed.dp_shard", "2"},
                              {"distributed.tp", "2"},
                              {"distributed.cp", "2"},
                              {"distributed.ep", "2"},
                              {"distributed.pp_schedule", "zbv"},
                              {"distributed.pp_head", "spread"},
                              {"distributed.pp_sequence_slices", "2"},
                              {"optimizer.name", "muon"},
                              {"optimizer.post_validation", "true"},
                              {"checkpoint.interval", "2"}};
enum Index : size_t { pp, dp_replicate, dp_shard, tp, cp, ep, schedule, head, slices };  // in `choices`

bool is_legal(const Combination& row) {
  const auto on = [&](Index index) { return row[index] == 1; };
  const int ranks = 1 << (on(pp) + on(dp_replicate) + on(dp_shard) + on(tp) + on(cp));
  if (ranks < 2 || ranks > 4) return false;
  if (on(ep) && !on(dp_shard) && !on(tp) && !on(cp)) return false;
  if (!on(pp) && (on(schedule) || on(head) || on(slices))) return false;
  return !(on(slices) && on(cp));
}

}  // namespace

// Every two options meet. Each job has another victim, alone or with its host.
TEST_CASE("a rank of any mesh may die, with whatever its job does") {
  const std::vector<size_t> values(std::size(choices), 2);
  const std::vector<Combination> rows = take_pairs(values, is_legal);
  REQUIRE(rows.size() > 5);
  int64_t from_memory = 0;
  int turn = 0;
  for (const Combination& row : rows) {
    Overrides job = with(copies, {"model.arch=qwen3_moe", "model.num_experts=4",
                                  "model.num_experts_per_tok=2", "model.moe_intermediate_size=16"});
    int ranks = 1;
    for (size_t i = 0; i < row.size(); ++i) {
      if (row[i] == 0) continue;
      job = with(job, {fmt::format("{}={}", choices[i].key, choices[i].value)});
      if (i < ep) ranks *= 2;
    }
    from_memory += sweep(job, (5 * turn + 1) % ranks, 9, 1 + turn % 2);
    ++turn;
  }
  CHECK(from_memory > 0);
}

TEST_CASE("a rank may die at any operation, with copies in memory") {
  CHECK(sweep(with(copies, {"distributed.pp=2"}), 0, often(120)) > 0);
  CHECK(sweep(with(copies, {"distributed.pp=2"}), 1, often(120)) > 0);
  CHECK(sweep(with(copies, {"distributed.dp_shard=2", "distributed.tp=2"}), 3, often(40)) > 0);
  CHECK(sweep(with(copies, {"distributed.pp=2", "optimizer.post_validation=true", "train.grad_clip=0.1"}), 1,
              80) > 0);
}

TEST_CASE("a rank may die at any operation, with checkpoints on disk and copies in memory") {
  const Overrides both = with(copies, {"checkpoint.interval=2", "checkpoint.keep_last_n=1"});
  CHECK(sweep(with(both, {"distributed.pp=2", "distributed.pp_schedule=zbv"}), 0, often(120)) > 0);
  CHECK(sweep(with(both, {"distributed.dp_replicate=2"}), 1, often(50)) > 0);
}

TEST_CASE("a host may die at any operation, with its memory") {
  CHECK(sweep(with(copies, {"distributed.pp=2"}), 0, often(120), 2) > 0);
  CHECK(sweep(with(copies, {"distributed.pp=2"}), 1, often(120), 2) > 0);
  CHECK(sweep(with(copies, {"distributed.pp=2", "distributed.dp_shard=2"}), 3, often(30), 2) > 0);
  CHECK(sweep(with(copies, {"distributed.dp_replicate=2", "distributed.tp=2"}), 2, often(30), 4) > 0);
}

TEST_CASE("a host may die for good: the run goes on with the hosts that are left") {
  CHECK(sweep(with(copies, {"distributed.pp=3", "train.grad_accum_steps=3"}), 2, often(40), 3,
              {"distributed.pp=2"}) > 0);
  CHECK(sweep(with(copies, {"distributed.pp=2", "distributed.dp_shard=2"}), 2, often(20), 2,
              {"distributed.pp=1"}) > 0);
}
