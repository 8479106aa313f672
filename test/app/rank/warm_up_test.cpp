// Tests on the CPU what only GPUs do by default: a warm-up leaves nothing behind, and overlapped weight
// gradients have the bits of immediate ones, even with exchanges in between.
#include "app/rank/warm_up.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "app/data/datasets.h"
#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "core/data/data_loader.h"
#include "parallel/pipeline/executor.h"
#include "test/app/small_job.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/late_side_stream.h"
#include "test/support/catch.h"

using namespace pptrain;
using pptrain::test::Overrides;
using pptrain::test::small_job_text;
using pptrain::test::TemporaryFolder;
using pptrain::test::with;

namespace {

// The results of two steps on every rank: masters and states by rank, file, name and place; losses and norms.
// lengths: for each rank, the lengths of its microbatches in the first step.
struct Outcome {
  std::map<std::string, at::Tensor> tensors;
  std::vector<double> values;
  size_t beside = 0;  // overlapped weight gradients
  std::map<int, std::set<int64_t>> lengths;
};

struct Way {
  bool warm_up = false;
  bool beside = false;
};

class Steps {
 public:
  Steps(app::RunContext& context, const Way& way)
      : context_(context),
        model_(context),
        executor_(model_.pipeline_stages(), context.mesh.along(mesh::Axis::pp), context.plan.schedule),
        loader_(app::training_streams(
                    app::open_data(context.job, context.model.vocab, {}, app::Wanted::training)),
                app::loader_options(context), /*shuffle=*/true, /*seed=*/0) {
    model_.initialise();
    if (way.beside) model_.overlap_weight_gradients(side_);
    if (way.warm_up) warm_up();
  }

  void run(Outcome& outcome, std::mutex& mutex) {
    int64_t next = 0;
    for (int step = 0; step < 2; ++step) {
      model_.zero_grad();
      const data::Step data = loader_.step(next);
      next += data.samples;
      executor_.run(data.microbatches);
      model_.exchange_embedding_gradients();
      const double loss = model_.global_loss();
      const double norm = model_.norm()(model_.squared_norm());
      const auto loads = model_.take_expert_loads();
      model_.apply(1e-2, 1.0 / static_cast<double>(data.targets));
      const std::lock_guard lock(mutex);
      for (const data::Microbatch& m : data.microbatches) {
        if (step == 0) outcome.lengths[context_.mesh.rank()].insert(m.segments.tokens());
      }
      if (!context_.root()) continue;
      outcome.values.insert(outcome.values.end(), {loss, static_cast<double>(data.targets), norm});
      for (const auto& [layer, rows] : loads) outcome.values.push_back(rows.sum().item<double>());
    }
    const std::lock_guard lock(mutex);
    outcome.beside += side_.ran();
    for (const checkpoint::StageContents& stage : model_.contents()) {
      for (const auto& [file, tensors] : stage.files) {
        for (size_t i = 0; i < tensors.size(); ++i) {
          outcome.tensors[fmt::format("{} {} {} {}", context_.mesh.rank(), file, tensors[i].name, i)] =
              tensors[i].tensor.clone();
        }
      }
    }
  }

 private:
  void warm_up() {
    app::warm_up(context_, model_, loader_.step(0).microbatches);
    const auto is_zero = [](const nn::Slice* slice) {
      return !slice->grad.defined() || !slice->grad.any().item<bool>();
    };
    for (const app::RankModel::RankStage& own : model_.stages()) {
      const bool nothing_left = own.stage->saved_bytes() == 0 && own.stage->pending_bytes() == 0 &&
                                std::ranges::all_of(own.stage->parameters().slices(), is_zero);
      if (!nothing_left) throw Error("a warm-up left something");
      if (own.weights->whole_groups() != 0) throw Error("a warm-up left weights gathered");
    }
    if (!model_.take_expert_loads().empty()) throw Error("a warm-up left experts' loads");
  }

  app::RunContext& context_;
  test::LateSideStream side_;
  app::RankModel model_;
  pipeline::Executor executor_;
  data::DataLoader loader_;
};

Outcome run(const Overrides& overrides, const Way& way) {
  const TemporaryFolder folder;
  const app::Plan plan = pptrain::test::small_plan(small_job_text(), folder.path(), overrides);
  Outcome outcome;
  std::mutex mutex;
  app::run_ranks(plan, [&](app::RunContext& context) {
    Steps(context, way).run(outcome, mutex);
    return 0;
  });
  return outcome;
}

void check_same(const Outcome& expected, const Outcome& actual) {
  REQUIRE(expected.values.size() >= 6);
  CHECK(actual.values == expected.values);
  REQUIRE(expected.tensors.size() > 30);
  REQUIRE(actual.tensors.size() == expected.tensors.size());
  for (const auto& [name, tensor] : expected.tensors) {
    INFO(name);
    CHECK(pptrain::test::same_bits(actual.tensors.at(name), tensor));
  }
}

const Overrides warm_job = {"model.hidden_size=16", "model.intermediate_size=40", "train.seq_len=8",
                            "train.grad_accum_steps=4", "train.micro_batch_size=1"};
const Overrides experts = {"model.arch=qwen3_moe",        "model.num_experts=4",
                           "model.num_experts_per_tok=2", "model.moe_intermediate_size=16",
                           "model.mlp_only_layers=[2]",   "model.router_aux_loss_coef=0.1"};

}  // namespace

TEST_CASE("a warm-up changes no bit of what follows, nor do weight gradients beside", "[warm_up]") {
  const Overrides job = GENERATE(
      Overrides{}, Overrides{"distributed.pp=2", "model.tie_word_embeddings=true"},
      Overrides{"distributed.pp=2", "distributed.pp_schedule=interleaved_1f1b", "distributed.dp_shard=2",
                "distributed.reshard_after_forward=true"},
      Overrides{"distributed.pp=2", "distributed.pp_schedule=zbv"},
      Overrides{"distributed.pp=2", "train.recompute=none:1/full:2"},
      Overrides{"distributed.pp=2", "distributed.dp_shard=2", "distributed.reduce_gradients=microbatch",
                "train.recompute=full"},
      Overrides{"distributed.dp_replicate=2", "train.dtype=bf16"},
      Overrides{"distributed.pp=2", "distributed.pp_sequence_slices=2"},
      Overrides{"distributed.tp=2", "distributed.cp=2"},
      Overrides{"distributed.pp=2", "data.document_end=10", "data.lengths=exact", "data.packing=best_fit"},
      with(experts, Overrides{"distributed.dp_shard=2", "distributed.ep=2"}));
  const Overrides overrides = with(warm_job, job);
  CAPTURE(job);
  const Outcome expected = run(overrides, {});
  CHECK(expected.beside == 0);
  check_same(expected, run(overrides, {.warm_up = true}));
  const Outcome beside = run(overrides, {.warm_up = true, .beside = true});
  check_same(expected, beside);
  const bool has_none = job == Overrides{"distributed.pp=2", "distributed.pp_schedule=zbv"} ||
                        job == Overrides{"distributed.tp=2", "distributed.cp=2"};
  if (!has_none) CHECK(beside.beside > 0);
}

TEST_CASE("ranks whose documents have one length warm up as often as those whose lengths differ",
          "[warm_up]") {
  // Eight documents, one of them short: a step reads all of them, and the short one is on one of two ranks.
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "data.txt";
  {
    std::ofstream text(file);
    for (char first = 'a'; first < 'h'; ++first) text << first << "bcdefg\n";
    text << "hijk\n";
  }
  const std::string quoted = '"' + file.string() + '"';
  const Overrides documents =
      with(warm_job, {"data.path=" + quoted, "data.val_path=" + quoted, "data.val_fraction=0",
                      "data.document_end=10", "data.lengths=exact", "data.packing=none"});
  const Overrides layout =
      GENERATE(Overrides{"distributed.dp_shard=2", "distributed.reshard_after_forward=true"},
               Overrides{"distributed.dp_replicate=2"},
               with(experts, Overrides{"distributed.dp_shard=2", "distributed.ep=2"}));
  CAPTURE(layout);
  const Overrides overrides = with(documents, layout);
  const Outcome expected = run(overrides, {});
  std::set<size_t> counts;
  for (const auto& [rank, lengths] : expected.lengths) counts.insert(lengths.size());
  REQUIRE(counts == std::set<size_t>{1, 2});
  check_same(expected, run(overrides, {.warm_up = true}));
}
