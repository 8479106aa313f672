// A bit that flips in weights or optimizer state between steps is found before any rank uses it.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

const Overrides two_ranks = {"distributed.pp=2", "train.grad_accum_steps=2", "train.check_weights=true"};

void flip_lowest_bit(const at::Tensor& tensor) {
  *static_cast<uint8_t*>(tensor.mutable_data_ptr()) ^= 1;
}

// Runs `steps` on every rank; returns the message that the run ends with.
std::string ended_with(const Overrides& settings,
                       const std::function<void(app::RunContext&, app::RankModel&)>& steps) {
  const TemporaryFolder folder;
  const app::Plan plan = small_plan(small_job_text(), folder.path(), settings);
  try {
    app::run_ranks(plan, [&](app::RunContext& context) {
      app::RankModel model(context);
      model.initialise();
      steps(context, model);
      return 0;
    });
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// The tensor with this name in this file of pipeline rank 1's stage; undefined on other ranks.
at::Tensor find(const app::RankModel& model, const std::string& file, const std::string& name) {
  for (const checkpoint::StageContents& stage : model.contents()) {
    const auto found = stage.files.find(file);
    if (found == stage.files.end()) continue;
    for (const auto& tensor : found->second) {
      if (tensor.name == name) return tensor.tensor;
    }
  }
  return {};
}

}  // namespace

TEST_CASE("steps, a step back and a save find nothing where nothing changed", "[check_weights]") {
  CHECK(ended_with(with(two_ranks, {"optimizer.post_validation=true", "distributed.dp_shard=2"}),
                   [](app::RunContext&, app::RankModel& model) {
                     model.keep_previous();
                     model.check_weights();
                     model.apply(1e-3, 1.0);
                     model.check_weights();
                     model.undo();
                     model.apply(1e-3, 0.5);
                     model.apply(1e-3, 0.5);
                     model.check_weights();
                   }) == "");
}

TEST_CASE("a flipped bit ends the run with its parameter's name, at the next step or save",
          "[check_weights]") {
  using Next = std::function<void(app::RankModel&)>;
  const std::vector<Next> nexts = {[](app::RankModel& model) { model.apply(1e-3, 1.0); },
                                   [](app::RankModel& model) { model.check_weights(); }};
  for (const auto& [file, shown] :
       {std::pair("model", "layers.2.mlp.up.weight changed"),
        std::pair("adamw.exp_avg_sq", "adamw.exp_avg_sq of layers.2.mlp.up.weight changed")}) {
    for (const char* layout : {"distributed.dp_shard=1", "distributed.dp_shard=2"}) {
      for (const Next& next : nexts) {
        const std::string told =
            ended_with(with(two_ranks, {layout}), [&](app::RunContext&, app::RankModel& model) {
              model.apply(1e-3, 1.0);
              const at::Tensor tensor = find(model, file, "layers.2.mlp.up.weight");
              if (tensor.defined()) flip_lowest_bit(tensor);
              next(model);
            });
        CHECK_THAT(told, contains_text(shown) && contains_text("between optimizer steps 1 and 2") &&
                             contains_text("pipeline rank 1"));
      }
    }
  }
}

TEST_CASE("check_weights = false looks at nothing", "[check_weights]") {
  CHECK(
      ended_with(with(two_ranks, {"train.check_weights=false"}), [](app::RunContext&, app::RankModel& model) {
        const at::Tensor tensor = find(model, "model", "layers.2.mlp.up.weight");
        if (tensor.defined()) flip_lowest_bit(tensor);
        model.check_weights();
      }) == "");
}
