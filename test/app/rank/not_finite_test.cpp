#include "app/rank/not_finite.h"

#include <functional>
#include <limits>
#include <mutex>
#include <set>
#include <string>

#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

// The ranks' message about the gradients and weights after `spoil`. The test fails if messages differ.
std::string described(const Overrides& layout, const std::function<void(nn::Slice&)>& spoil) {
  const TemporaryFolder folder;
  const app::Plan plan = small_plan(small_job_text(), folder.path(), layout);
  std::mutex mutex;
  std::set<std::string> texts;
  app::run_ranks(plan, [&](app::RunContext& context) {
    app::RankModel model(context);
    model.initialise();
    for (const app::RankModel::RankStage& own : model.stages()) {
      for (nn::Slice* slice : own.stage->parameters().slices()) spoil(*slice);
    }
    const std::string text = describe_not_finite(context.mesh.world(), model.stages());
    const std::lock_guard lock(mutex);
    texts.insert(text);
    return 0;
  });
  REQUIRE(texts.size() == 1);
  return *texts.begin();
}

std::function<void(nn::Slice&)> gradients_of(const std::set<std::string>& names) {
  return [names](nn::Slice& slice) {
    if (names.contains(slice.spec.name))
      slice.grad.view({-1})[slice.grad.numel() - 1] = std::numeric_limits<float>::infinity();
  };
}

}  // namespace

TEST_CASE("gradients that are not finite are named in the order of layers, on every layout") {
  for (const Overrides& layout :
       {Overrides{}, Overrides{"distributed.pp=2", "train.grad_accum_steps=2"},
        Overrides{"distributed.pp=2", "train.grad_accum_steps=2", "distributed.dp_shard=2"},
        Overrides{"distributed.tp=2"},
        Overrides{"distributed.pp=2", "distributed.pp_schedule=zbv", "train.grad_accum_steps=4"}}) {
    CHECK(described(layout, [](nn::Slice&) {}) == "all gradients are finite");
    CHECK(described(layout, gradients_of({"layers.2.mlp.down.weight"})) ==
          "of the gradients, that of layers.2.mlp.down.weight alone is not finite");
    CHECK(described(layout,
                    gradients_of({"embed.weight", "layers.1.attn.k.weight", "layers.3.mlp_norm.weight"})) ==
          "gradients are not finite from layers.3.mlp_norm.weight, where the backward pass met the first, to "
          "embed.weight");
    CHECK(described(layout, gradients_of({"norm.weight", "head.weight"})) ==
          "gradients are not finite from head.weight, where the backward pass met the first, to norm.weight");
  }
}

TEST_CASE("a weight that is not finite is named too") {
  CHECK(described({"distributed.pp=2", "train.grad_accum_steps=2"}, [](nn::Slice& slice) {
          if (slice.spec.name == "layers.3.attn.o.weight")
            slice.master.view({-1})[0] = std::numeric_limits<float>::quiet_NaN();
        }) == "the weight layers.3.attn.o.weight is not finite; all gradients are finite");
}

TEST_CASE("a gradient that is not finite is found at the end of a large parameter") {
  CHECK(described({"model.vocab_size=131104"}, gradients_of({"embed.weight"})) ==
        "of the gradients, that of embed.weight alone is not finite");
}
