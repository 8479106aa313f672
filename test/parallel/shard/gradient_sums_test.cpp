// The order in which the steps of sums begin, on communicators that only record calls.
#include "parallel/shard/gradient_sums.h"

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;

namespace {

using Log = std::vector<std::string>;

struct Transport {
  bool waits_block = false;    // as on a CPU; on NCCL a wait orders streams
  std::function<bool()> done;  // whether the work in question has ended
  Log log = {};                // the operations that were begun
  int waits = 0;
};

class RecordedWork final : public comm::Work {
 public:
  explicit RecordedWork(Transport& transport) : transport_(transport) {}
  bool done() override { return transport_.done(); }
  void wait(const std::function<std::string()>& /*what*/) override { ++transport_.waits; }
  bool wait_for(std::chrono::milliseconds /*time*/) override {
    return !transport_.waits_block || transport_.done();
  }

 private:
  Transport& transport_;
};

// Rank 0 of `size`.
class RecordingCommunicator final : public comm::Communicator {
 public:
  RecordingCommunicator(std::string name, int size, Transport& transport)
      : name_(std::move(name)), size_(size), transport_(transport) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::unique_ptr<comm::Work> isend(const at::Tensor&, int) override { return begin("send"); }
  std::unique_ptr<comm::Work> irecv(at::Tensor, int) override { return begin("receive"); }
  std::unique_ptr<Communicator> subgroup(std::span<const int>) override { throw Error("no subgroups"); }
  void all_reduce_sum(at::Tensor) override {}
  void broadcast(at::Tensor, int) override {}
  void barrier() override {}
  void all_gather(at::Tensor, const at::Tensor&) override {}
  void abort(const std::string& message) override { throw Error(message); }
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  std::unique_ptr<comm::Work> begin(const std::string& what) {
    transport_.log.push_back(name_ + " " + what);
    return std::make_unique<RecordedWork>(transport_);
  }
  std::unique_ptr<comm::Work> start_all_reduce_sum(at::Tensor) override { return begin("all-reduce"); }
  std::unique_ptr<comm::Work> start_reduce_scatter_sum(at::Tensor, at::Tensor, comm::Counts,
                                                       std::span<const int>) override {
    return begin("reduce-scatter");
  }
  std::unique_ptr<comm::Work> start_all_gather(at::Tensor, at::Tensor, comm::Counts) override {
    return begin("all-gather");
  }
  std::unique_ptr<comm::Work> start_all_to_all(at::Tensor, std::vector<int64_t>, at::Tensor,
                                               std::vector<int64_t>) override {
    return begin("all-to-all");
  }

  std::string name_;
  int size_;
  Transport& transport_;
};

// A rank in a group with two shards, two replicas of each, and tensor parallelism.
struct Rank {
  explicit Rank(Transport& transport)
      : shards("shards", 2, transport),
        replicas("replicas", 2, transport),
        sum("sum", 4, transport),
        tp("tp", 2, transport),
        group("layers.0") {
    group.add({{.name = "q", .shape = {60, 50}}});
    group.add({{.name = "norm", .shape = {1500}, .role = nn::Role::norm, .copies = nn::Copies::tp}});
    group.materialise(at::kCPU, at::kFloat, true, {.index = 0, .count = 2});
    exchange = std::make_unique<shard::GroupExchange>(
        group, shard::ShardRanks{.shards = shards, .replicas = replicas, .sum = sum, .tp_copies = &tp});
    REQUIRE(group.buffers().size() == 2);
    norm = group.buffers()[0]->copies == nn::Copies::tp ? 0 : 1;
  }
  RecordingCommunicator shards, replicas, sum, tp;
  nn::ParameterGroup group;
  std::unique_ptr<shard::GroupExchange> exchange;
  size_t norm = 0;
};

// The operations of a step: two sums, and the rank's other messages between them.
Log run(Transport& transport) {
  Rank rank(transport);
  shard::GradientSums sums;
  int finished = 0;
  sums.begin(*rank.exchange, rank.norm, [&] { ++finished; });
  rank.tp.irecv(at::Tensor(), 1);
  sums.advance();
  sums.begin(*rank.exchange, 1 - rank.norm, [&] { ++finished; });
  rank.shards.isend(at::Tensor(), 1);
  sums.advance();
  rank.shards.irecv(at::Tensor(), 1);
  sums.finish([] { return "a test"; });
  CHECK(finished == 2);
  CHECK(sums.empty());
  return transport.log;
}

}  // namespace

TEST_CASE("where waits order streams, collectives begin in the program's order, whatever is done when") {
  const Log expected{"tp all-reduce",      "sum reduce-scatter",  "replicas all-gather", "tp receive",
                     "sum reduce-scatter", "replicas all-gather", "shards send",         "shards receive"};
  Transport never{.done = [] { return false; }}, at_once{.done = [] { return true; }};
  CHECK(run(never) == expected);
  CHECK(run(at_once) == expected);
  for (const unsigned seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    std::mt19937 random(seed);
    Transport at_times{.done = [&] { return random() % 3 == 0; }};
    CHECK(run(at_times) == expected);
  }
}

TEST_CASE("where waits block, no sum is waited for before the end, and each communicator has one order") {
  Transport transport{.waits_block = true, .done = [] { return false; }};
  Rank rank(transport);
  shard::GradientSums sums;
  sums.begin(*rank.exchange, rank.norm, [] {});
  sums.begin(*rank.exchange, 1 - rank.norm, [] {});
  sums.advance();
  // The second sum needs no step over tp, but does not pass the first one on `sum`.
  CHECK(transport.log == Log{"tp all-reduce"});
  CHECK(transport.waits == 0);
  sums.finish([] { return "a test"; });
  CHECK(transport.log == Log{"tp all-reduce", "sum reduce-scatter", "sum reduce-scatter",
                             "replicas all-gather", "replicas all-gather"});
}
