// The order in which long sums exchange their windows.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/links.h"
#include "parallel/comm/message_communicator.h"
#include "test/parallel/comm/counting_communicator.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

namespace pptrain::comm {
namespace {

// Rank 0 of two. Records each receive (r), send (s) and wait (w).
class Recorder final : public MessageCommunicator {
 public:
  explicit Recorder(std::string& events) : MessageCommunicator(std::chrono::seconds(1)), events_(events) {}

  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::unique_ptr<Work> isend(const at::Tensor& /*tensor*/, int /*destination*/) override {
    return begin('s');
  }
  std::unique_ptr<Work> irecv(at::Tensor tensor, int /*source*/) override {
    tensor.zero_();
    return begin('r');
  }
  std::unique_ptr<Communicator> subgroup(std::span<const int> /*members*/) override { return nullptr; }
  void abort(const std::string& message) override { throw Error(message); }

 private:
  struct Recorded final : Work {
    explicit Recorded(std::string& to) : events(to) {}
    bool done() override { return true; }
    void wait(const std::function<std::string()>& /*what*/) override { events += 'w'; }
    bool wait_for(std::chrono::milliseconds /*time*/) override { return true; }
    std::string& events;
  };
  std::unique_ptr<Work> begin(char event) {
    events_ += event;
    return std::make_unique<Recorded>(events_);
  }
  std::unique_ptr<Communicator> on_lane(Lane /*lane*/) const override { return nullptr; }

  std::string& events_;
};

constexpr int64_t window = most_sum_scratch(2) / 2 / sizeof(float);  // elements, for both ranks

constexpr HostBlocks alone{.ranks = 2, .block = 1};  // each rank on a host

TEST_CASE("while a window of a sum is added up, the next one travels") {
  std::string events;
  Recorder comm(events);
  SECTION("all_reduce: each window is exchanged, then gathered") {
    run_all_reduce_sum(comm, alone, at::zeros({3 * window}), wait_for_message);
    CHECK(events == "rsrswwrsrswwrswwwwrswwww");
  }
  SECTION("reduce_scatter") {
    const at::Tensor out = at::zeros({3 * window / 2});
    const std::vector<int64_t> counts(2, out.numel());
    run_reduce_scatter_sum(comm, alone, out, Parts(at::zeros({3 * window}), counts), wait_for_message);
    CHECK(events == "rsrswwrswwww");
  }
  SECTION("nothing to add up") {
    run_reduce_scatter_sum(comm, alone, at::zeros({0}), Parts(at::zeros({0}), std::vector<int64_t>{0, 0}),
                           wait_for_message);
    CHECK(events.empty());
  }
}

TEST_CASE("links are made both ways, between all ranks or between one and some") {
  using Pairs = std::vector<std::pair<int, int>>;
  test::Sent all, one;
  test::CountingCommunicator three(0, 3, all), four(0, 4, one);
  connect_all(three, 1);
  connect_with_one(four, 1, [](int rank) { return rank != 3; });
  for (Pairs* pairs : {&all.links, &one.links}) std::ranges::sort(*pairs);
  CHECK(all.links == Pairs{{0, 1}, {0, 2}, {1, 0}, {1, 2}, {2, 0}, {2, 1}});
  CHECK(one.links == Pairs{{0, 1}, {1, 0}, {1, 2}, {2, 1}});
}

}  // namespace
}  // namespace pptrain::comm
