// Observers of a run (evaluation, samples, metrics, traces, checkpoints) change no bit of it, and a command
// that evaluates its weights gives the run's own result.
#include <nlohmann/json.hpp>

#include "app/data/datasets.h"
#include "app/data/token_files.h"
#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/evaluator.h"
#include "app/rank/rank_model.h"
#include "app/rank/weights_source.h"
#include "models/registry.h"
#include "parallel/checkpoint/checkpoint.h"
#include "test/app/family_jobs.h"
#include "test/support/catch.h"

using namespace pptrain;
using test::Overrides;
using test::with;

namespace {

struct WatchedJob {
  std::string name;
  Overrides settings;
};

// Every family, and RoPE whose frequencies depend on a text's length. Training's rows have the original
// length, samples are longer; documents are shorter and longer.
std::vector<WatchedJob> all_jobs() {
  std::vector<WatchedJob> jobs;
  for (const models::Architecture* family : models::architectures)
    jobs.push_back({std::string(family->name), test::family_settings(*family)});
  const Overrides heads = with(test::tiny, {"model.num_key_value_heads=2", "model.head_dim=8"});
  const Overrides documents = {"data.document_end=10", "data.packing=best_fit"};
  jobs.push_back({"longrope", with(heads, test::longrope_up_to(16))});
  jobs.push_back({"longrope, documents", with(heads, test::longrope_up_to(8), documents)});
  jobs.push_back({"dynamic", with(heads, test::dynamic_rope(12))});
  jobs.push_back({"dynamic, documents", with(heads, test::dynamic_rope(8), documents)});
  return jobs;
}

std::vector<Overrides> layouts_of(const std::string& name) {
  std::vector<Overrides> layouts = {{},
                                    {"distributed.pp=2", "distributed.pp_schedule=zbv",
                                     "distributed.dp_shard=2", "distributed.reshard_after_forward=true"}};
  if (name != "llama" && !name.ends_with("documents")) return layouts;
  layouts.push_back({"distributed.tp=2", "distributed.cp=2", "train.dtype=bf16", "train.recompute=full"});
  layouts.push_back({"distributed.pp=2", "distributed.pp_head=spread", "train.label_smoothing=0.1"});
  layouts.push_back({"distributed.pp=2", "distributed.pp_sequence_slices=2"});
  return layouts;
}

// Without observers.
std::string silent_job() {
  std::string text = test::family_job_text();
  for (const std::string line : {"val_fraction = 0.2\n", "interval = 2\nbatches = 2\n"})
    text.erase(text.find(line), line.size());
  return text;
}

const Overrides silent = {"data.val_fraction=0"};
const Overrides watchers = {fmt::format("data.val_path=\"{}\"", test::shakespeare.string()),
                            "data.val_fraction=0",
                            "eval.interval=1",
                            "eval.batches=2",
                            "eval.generate_interval=1",
                            "eval.generate_prompt=\"To be\"",
                            "eval.generate_tokens=12",
                            "metrics.log_interval=1",
                            "metrics.microbatch_losses=true",
                            "metrics.tensorboard=true",
                            "profile.trace=true",
                            "profile.first_step=1",
                            "checkpoint.interval=1",
                            "train.check_weights=true"};

// The result of `pptrain eval`.
double evaluate(const std::filesystem::path& run_dir, const Overrides& overrides) {
  const app::Plan plan = test::small_plan(silent_job(), run_dir, overrides);
  double loss = 0;
  app::run_ranks(plan, [&](app::RunContext& context) {
    const auto disk = checkpoint::disk_communicator(context.mesh.world());
    const app::TokenFiles files =
        app::make_token_files(context, *disk, app::Wanted::validation, [] { return false; });
    const auto sources = app::open_data(context.job, context.model.vocab, files, app::Wanted::validation);
    app::RankModel model(context, app::Purpose::evaluate);
    app::load_weights(context, model, "");
    const metrics::SourceLoss found = app::Evaluator(context, model, sources).run().all;
    if (context.root()) loss = found.sum / static_cast<double>(found.tokens);
    return 0;
  });
  return loss;
}

// The last step's "eval_loss", and the lines without it and without the microbatches' losses.
double take_eval_loss(std::vector<std::string>& lines) {
  double last = 0;
  std::vector<std::string> kept;
  for (const std::string& line : lines) {
    auto record = nlohmann::ordered_json::parse(line);
    if (record.contains("eval_loss")) last = record.at("eval_loss").get<double>();
    record.erase("eval_loss");
    record.erase("microbatch_losses");
    if (record.contains("loss")) kept.push_back(record.dump());
  }
  lines = kept;
  return last;
}

}  // namespace

TEST_CASE("a run that is watched has the bits of one that is not, and eval finds its losses",
          "[bystanders]") {
  const test::TemporaryFolder folder;
  const Overrides watched =
      with(watchers, {fmt::format("metrics.prometheus_file=\"{}\"", (folder.path() / "a.prom").string())});
  for (const WatchedJob& job : all_jobs()) {
    for (const Overrides& layout : layouts_of(job.name)) {
      CAPTURE(job.name, layout);
      const Overrides settings = with(job.settings, layout);
      test::JobResult plain =
          test::run_small_job(silent_job(), folder.path() / "silent", with(settings, silent));
      const auto run_dir = folder.path() / "watched";
      test::JobResult seen = test::run_small_job(silent_job(), run_dir, with(settings, watched));
      REQUIRE(plain.exit_code == 0);
      REQUIRE(seen.exit_code == 0);
      REQUIRE(plain.checksums.size() > 30);
      CHECK(seen.checksums == plain.checksums);
      take_eval_loss(plain.metrics);
      const double loss = take_eval_loss(seen.metrics);
      REQUIRE(plain.metrics.size() == 2);
      CHECK(seen.metrics == plain.metrics);
      CHECK(evaluate(run_dir, with(settings, watched)) == loss);
    }
  }
}
