// The messages of a spread head arrive in any order of taking gradients.
#include "parallel/pipeline/head_exchange.h"

#include <mutex>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "parallel/pipeline/embedding_shards.h"
#include "parallel/pipeline/tied_gradient.h"
#include "test/parallel/comm/counting_communicator.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;

namespace {

// A stage of which only the shapes of messages are asked.
class Shapes final : public pipeline::Stage {
 public:
  at::Tensor empty_boundary(const data::Microbatch&) const override { return at::full({2, 3}, 0.0); }
  at::Tensor empty_statistics(const data::Microbatch&) const override { return at::full({2, 1}, 0.0); }

  int index() const override { return 0; }
  bool is_first() const override { return true; }
  bool is_last() const override { return false; }
  at::Tensor forward(int, const data::Microbatch&, at::Tensor) override { throw Error("no passes"); }
  at::Tensor forward_only(const data::Microbatch&, at::Tensor) override { throw Error("no passes"); }
  at::Tensor logits(const data::Microbatch&, at::Tensor, const at::Tensor&) override {
    throw Error("no passes");
  }
  at::Tensor backward(int, at::Tensor) override { throw Error("no passes"); }
  at::Tensor backward_input(int, at::Tensor) override { throw Error("no passes"); }
  void backward_weight(int) override { throw Error("no passes"); }
  double take_loss() override { throw Error("no passes"); }
  void discard() override {}
  nn::ParameterStore& parameters() override { throw Error("no passes"); }
};

}  // namespace

// Sequence slices: the last one's gradient is taken first.
TEST_CASE("gradients of the head's input are those of their microbatch, taken in any order") {
  constexpr int ranks = 3, microbatches = 4, last = 1;
  const bool ahead = GENERATE(false, true);
  CAPTURE(ahead);
  std::mutex mutex;
  comm::run_thread_ranks(ranks, [&](comm::Communicator& world) {
    pipeline::HeadLinks links(world, last);
    const Shapes shapes;
    pipeline::HeadExchange exchange(links, shapes, ahead);
    const std::vector<data::Microbatch> data(microbatches);
    exchange.begin(data);
    const auto wait = [](comm::Work& work, const std::string& what) { work.wait([&] { return what; }); };
    for (int i = 0; i < microbatches; ++i) {
      if (world.rank() == last) exchange.give_h(i, at::full({2, 3}, 10.0 * i));
      const at::Tensor h = exchange.take_h(i, wait);
      exchange.give_statistics(i, h.narrow(1, 0, 1).contiguous());
      const at::Tensor statistics = exchange.take_statistics(i, wait);
      exchange.give_term(i, h.add(world.rank()));
      const std::lock_guard lock(mutex);
      CHECK(h.eq(10.0 * i).all().item<bool>());
      CHECK(statistics.eq(10.0 * i).all().item<bool>());
    }
    for (int i = microbatches - 1; i >= 0 && world.rank() == last; --i) {
      const at::Tensor sum = exchange.take_gradient(i, wait);
      const std::lock_guard lock(mutex);
      CHECK(sum.eq(30.0 * i + 0 + 1 + 2).all().item<bool>());
    }
    exchange.finish(wait);
  });
}

TEST_CASE("links of a head, of a tied weight and of an embedding in shards are set up") {
  using Pairs = std::vector<std::pair<int, int>>;
  comm::test::Sent head, tied, embedding;
  comm::test::CountingCommunicator for_head(0, 3, head), for_tied(0, 4, tied), for_embedding(2, 3, embedding);
  const pipeline::HeadLinks links(for_head, 1);
  CHECK((head.links == Pairs{{1, 0},
                             {0, 1},
                             {1, 2},
                             {2, 1},  // h and terms, then statistics
                             {0, 1},
                             {1, 2},
                             {2, 0},
                             {0, 2},
                             {1, 0},
                             {2, 1}}));
  std::vector<nn::ElementRun> parts(4);
  parts[0].length = parts[2].length = 5;
  pipeline::connect_tied(for_tied, 0, parts);
  CHECK((tied.links == Pairs{{0, 2}, {2, 0}}));
  pipeline::connect_embedding(for_embedding);
  CHECK((embedding.links == Pairs{{0, 1}, {1, 0}, {0, 2}, {2, 0}}));
}

TEST_CASE("each run of a head's exchange receives anew, and what it leaves behind is an error") {
  const bool ahead = GENERATE(false, true);
  const std::vector<data::Microbatch> data(1);
  const Shapes shapes;
  const auto wait = [](comm::Work& work, const std::string& what) { work.wait([&] { return what; }); };
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    pipeline::HeadLinks links(world, 0);
    pipeline::HeadExchange exchange(links, shapes, ahead);
    for (int run = 0; run < 2; ++run) {
      exchange.begin(data);
      if (world.rank() == 0) exchange.give_h(0, at::full({2, 3}, 10.0 * run));
      const at::Tensor h = exchange.take_h(0, wait);
      if (!h.eq(10.0 * run).all().item<bool>()) throw Error("the input of another run");
      exchange.give_statistics(0, h.narrow(1, 0, 1).contiguous());
      exchange.take_statistics(0, wait);
      exchange.give_term(0, h.clone());
      if (world.rank() == 0) exchange.take_gradient(0, wait);
      exchange.finish(wait);
    }
  });
  comm::run_thread_ranks(1, [&](comm::Communicator& world) {  // its own
    pipeline::HeadLinks links(world, 0);
    pipeline::HeadExchange exchange(links, shapes, ahead);
    exchange.begin(data);
    exchange.give_h(0, at::full({2, 3}, 1.0));
    CHECK_THROWS_WITH(exchange.finish(wait), test::contains_text("of the head behind"));
  });
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {  // another rank's
    pipeline::HeadLinks links(world, 0);
    pipeline::HeadExchange exchange(links, shapes, ahead);
    exchange.begin(data);
    if (world.rank() == 0) {
      exchange.give_h(0, at::full({2, 3}, 1.0));
      exchange.take_h(0, wait);
      exchange.finish(wait);
    } else {
      exchange.receive(schedule::forward(0, 0));
      CHECK_THROWS_WITH(exchange.finish(wait), test::contains_text("of the head behind"));
    }
    world.barrier();
  });
}
