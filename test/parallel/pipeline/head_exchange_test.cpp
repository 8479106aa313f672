// The messages of a spread head arrive in any order of taking gradients.
#include "parallel/pipeline/head_exchange.h"

#include <ATen/ops/full.h>

#include <mutex>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/support/catch.h"

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
