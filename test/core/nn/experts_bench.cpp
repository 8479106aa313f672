// The cost of a sparse layer compared with a dense one with the same operations. Run by name:
// test_core_nn "[.bench]".
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>

#include "core/base/host_memory.h"
#include "core/nn/experts.h"
#include "core/nn/feed_forward.h"
#include "test/core/nn/expert_layer.h"
#include "test/support/catch.h"
#include "test/support/thread_seconds.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

constexpr int64_t kHidden = 2048, kIntermediate = 768, kExperts = 64, kChosen = 8;

struct Times {
  double forward = 1e9, backward = 1e9;
  double both() const { return forward + backward; }
};

// The best of several turns, in this thread's time if it is the only one; also the layer's own times.
void take_turn(nn::FeedForward& layer, const Tensor& x, const Tensor& dy, Times& best) {
  const c10::InferenceMode inference;
  const nn::TokenInfo tokens = tokens_of(x.size(0), x.size(0));
  std::unique_ptr<nn::FeedForward::Saved> saved;
  best.forward = std::min(best.forward, test::thread_seconds([&] {
                            saved = layer.activate(x, tokens);
                            layer.project(*saved);
                          }));
  best.backward = std::min(best.backward, test::thread_seconds([&] {
                             nn::WeightGradQueue queue(nn::WeightGradQueue::Mode::immediate);
                             layer.backward_input(*saved, dy, tokens, queue);
                           }));
}

}  // namespace

TEST_CASE("64 experts, 8 for each token, against a dense layer of the same operations", "[.bench]") {
  const char* const threads = std::getenv("PPTRAIN_BENCH_THREADS");
  at::set_num_threads(threads == nullptr ? 1 : std::atoi(threads));
  at::manual_seed(1);
  keep_freed_memory();  // as pptrain does
  nn::ParameterGroup group, dense_group, experts{"experts", /*of_experts=*/true};
  nn::Experts sparse(group, experts, "mlp",
                     {.hidden = kHidden,
                      .experts = kExperts,
                      .chosen = kChosen,
                      .intermediate = kIntermediate,
                      .normalise = true,
                      .balance_loss = 0.001});
  nn::Mlp dense(dense_group, "mlp", kHidden, kIntermediate * kChosen, nn::Activation::silu, /*gated=*/true,
                false, 0.02, 0.02);
  for (nn::ParameterGroup* g : {&group, &experts, &dense_group}) {
    g->materialise(at::kCPU, at::kBFloat16);
    g->initialise(1);
  }
  for (const int64_t tokens : {int64_t{4096}, int64_t{512}}) {
    const Tensor x = random({tokens, kHidden}, at::kBFloat16), dy = random({tokens, kHidden}, at::kBFloat16);
    Times of_sparse, of_dense;
    for (int turn = 0; turn < 5; ++turn) {
      take_turn(dense, x, dy, of_dense);
      take_turn(sparse, x, dy, of_sparse);
    }
    fmt::print(
        "{} tokens: sparse {:.0f} + {:.0f} ms, dense {:.0f} + {:.0f} ms (forward + backward), ratio {:.2f}\n",
        tokens, of_sparse.forward * 1e3, of_sparse.backward * 1e3, of_dense.forward * 1e3,
        of_dense.backward * 1e3, of_sparse.both() / of_dense.both());
  }
}
