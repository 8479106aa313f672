// A resumed run equals the uninterrupted one bit for bit, also on another layout.
#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/rank/weights_source.h"
#include "app/train/trainer.h"
#include "core/base/error.h"
#include "core/fault/shutdown.h"
#include "parallel/checkpoint/checkpoint.h"
#include "test/app/small_job.h"
#include "test/support/catch.h"

using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::run_plan;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::small_plan;
using pptrain::test::start_plan;
using pptrain::test::TemporaryFolder;
using pptrain::test::with;

using Json = nlohmann::json;

namespace {

const Overrides resumed_job = {"train.steps=6", "train.grad_accum_steps=4", "checkpoint.interval=2",
                               "train.dtype=bf16", "checkpoint.keep_last_n=0"};

// Leaves a run as if it was killed after step 4: later checkpoints do not exist.
void forget_after_step_4(const std::filesystem::path& run_dir) {
  std::filesystem::remove_all(run_dir / "checkpoints/step_6");
  std::ofstream(run_dir / "checkpoints/latest") << "step_4\n";
}

// A start that gets SIGTERM at once: it makes a step, saves and ends with 3.
void stop_after_a_step(const pptrain::app::Plan& plan) {
  const pptrain::fault::Shutdown shutdown;
  std::raise(SIGTERM);
  const int code = pptrain::app::run_ranks(
      plan, [&](pptrain::app::RunContext& context) { return pptrain::app::train_to_end(context, shutdown); });
  REQUIRE(code == 3);
}

std::vector<Json> lines_of(const std::filesystem::path& metrics) {
  std::vector<Json> lines;
  std::ifstream in(metrics);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("resuming equals not stopping, on any pp and schedule") {
  for (const std::string tied : {"false", "true"}) {
    const std::string text = small_job_text();
    const TemporaryFolder folder;
    const auto common = with(resumed_job, {"model.tie_word_embeddings=" + tied});
    const JobResult whole = run_small_job(text, folder.path() / "whole", with(common, {"distributed.pp=2"}));
    REQUIRE(whole.checksums.size() > 30);
    for (const std::vector<std::string>& layout :
         std::vector<std::vector<std::string>>{{"distributed.pp=1"},
                                               {"distributed.pp=2"},
                                               {"distributed.pp=3", "distributed.pp_schedule=gpipe"},
                                               {"distributed.pp=4"}}) {
      CAPTURE(tied, layout);
      const auto run_dir = folder.path() / "resumed";
      std::filesystem::remove_all(run_dir);
      std::filesystem::copy(folder.path() / "whole", run_dir, std::filesystem::copy_options::recursive);
      forget_after_step_4(run_dir);
      const JobResult resumed =
          run_small_job(text, run_dir, with(with(common, layout), {"checkpoint.resume=auto"}));
      CHECK(resumed.exit_code == 0);
      CHECK(resumed.metrics == whole.metrics);
      CHECK(resumed.checksums == whole.checksums);
    }
  }
}

TEST_CASE("where biases of experts alone learn, a resumed run reads on where it was") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const Overrides experts =
      with(resumed_job, {"model.arch=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
                         "model.moe_intermediate_size=16", "model.router_bias_update_rate=0.01"});
  const Overrides biases = with(experts, {"optimizer.groups=[{match=\"*\", frozen=true}]"});
  const JobResult whole = run_small_job(text, folder.path() / "whole", biases);
  std::filesystem::copy(folder.path() / "whole", folder.path() / "resumed",
                        std::filesystem::copy_options::recursive);
  forget_after_step_4(folder.path() / "resumed");
  const JobResult resumed =
      run_small_job(text, folder.path() / "resumed", with(biases, {"checkpoint.resume=auto"}));
  CHECK(resumed.metrics == whole.metrics);
  CHECK(resumed.checksums == whole.checksums);

  // A run without them may get them: they are zeros at first.
  run_small_job(text, folder.path() / "later",
                with(experts, {"model.router_bias_update_rate=0", "train.steps=2"}));
  const JobResult later =
      run_small_job(text, folder.path() / "later", with(experts, {"checkpoint.resume=auto"}));
  CHECK(later.exit_code == 0);
  CHECK(later.checksums.size() == run_small_job(text, folder.path() / "all", experts).checksums.size());
}

TEST_CASE("a damaged checkpoint is passed over for the newest sound one") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run";
  const JobResult whole = run_small_job(text, run_dir, resumed_job);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run_dir / "checkpoints/step_6")) {
    if (entry.path().filename() != "model.safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x5a');
  }
  const JobResult resumed = run_small_job(text, run_dir, with(resumed_job, {"checkpoint.resume=auto"}));
  CHECK(resumed.metrics == whole.metrics);
  CHECK(resumed.checksums == whole.checksums);
  CHECK(std::filesystem::exists(run_dir / "checkpoints.1/step_6"));  // set aside, not deleted
}

TEST_CASE("a run whose checkpoints are all damaged is not begun anew") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run";
  run_small_job(text, run_dir, resumed_job);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run_dir / "checkpoints")) {
    if (entry.path().filename() != "model.safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x5a');
  }
  const auto resume = [&](const std::string& from) {
    start_plan(small_plan(text, run_dir,
                          with(resumed_job, {"checkpoint.resume=\"" + from + "\"", "train.steps=8"})));
  };
  using pptrain::test::contains_text;
  CHECK_THROWS_WITH(resume("auto"), contains_text("none of the checkpoints in") &&
                                        contains_text("step_2: ") && contains_text("step_6: ") &&
                                        contains_text("' is damaged"));
  CHECK_THROWS_WITH(resume((run_dir / "checkpoints/step_4").string()), contains_text("' is damaged"));
  CHECK(std::filesystem::exists(run_dir / "checkpoints/step_6"));
}

TEST_CASE("a start says which job, program and checkpoint the lines after it are of") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  run_small_job(text, folder.path() / "run",
                with(resumed_job, {"train.steps=2", "eval.interval=0", "data.val_fraction=0"}));
  run_small_job(text, folder.path() / "run",
                with(resumed_job, {"checkpoint.resume=auto", "eval.interval=0", "data.val_fraction=0"}));
  const std::vector<Json> lines = lines_of(folder.path() / "run/metrics.jsonl");
  REQUIRE(lines.size() == 8);
  CHECK(lines[0].at("start") == "new");
  CHECK(lines[0].at("layout").at("pp") == "1");
  CHECK(lines[3].at("start") == "resume");
  CHECK(lines[3].at("step") == 2);
  CHECK(lines[3].at("checkpoint") == (folder.path() / "run/checkpoints/step_2").string());
  const int64_t tokens = lines[1].at("tokens");
  for (const size_t line : {1, 2, 4, 5, 6, 7}) {
    const Json& record = lines[line];
    const int64_t step = record.at("step");
    CHECK(record.at("total_tokens") == tokens * step);
    // A step takes 8 of the text's samples. The last sample needs one token more, as its label.
    const auto text_bytes = std::filesystem::file_size(pptrain::test::shakespeare);
    const int64_t samples = (static_cast<int64_t>(text_bytes) - 1) / 16;
    CHECK(record.at("epoch").get<double>() ==
          Approx(8.0 * static_cast<double>(step) / static_cast<double>(samples)));
    CHECK(record.at("data_wait_s") >= 0);
    CHECK(record.at("data_wait_s") <= record.at("step_time_s"));
    // The run saves after steps 2 and 4. A new process has not saved before its first step.
    if (step == 5) CHECK(record.at("save_time_s") > 0);
    if (step < 5) CHECK(record.at("save_time_s") == 0);
    CHECK(record.at("time").get<std::string>().ends_with("Z"));
  }
  CHECK(std::filesystem::exists(folder.path() / "run/job.1.toml"));
}

TEST_CASE("the same command goes on with a stopped run, whatever it began from") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  run_small_job(text, folder.path() / "parent", with(resumed_job, {"train.steps=2"}));
  for (const std::string& resume :
       {std::string("none"), (folder.path() / "parent/checkpoints/step_2").string(),
        std::string("restart")}) {
    CAPTURE(resume);
    const auto job = [&](const std::string& run_dir) {
      return small_plan(text, folder.path() / run_dir, with(resumed_job, {"checkpoint.resume=" + resume}));
    };
    const JobResult whole = run_plan(job("whole"));
    const auto run_dir = folder.path() / "run";
    std::filesystem::remove_all(run_dir);
    stop_after_a_step(job("run"));
    const JobResult resumed = start_plan(job("run"));
    CHECK(resumed.metrics == whole.metrics);
    CHECK(resumed.checksums == whole.checksums);
    CHECK_FALSE(std::filesystem::exists(folder.path() / "run/checkpoints.1"));
    const std::vector<Json> lines = lines_of(run_dir / "metrics.jsonl");
    const auto last_start = std::ranges::find_if(lines.rbegin(), lines.rend(),
                                                 [](const Json& line) { return line.contains("start"); });
    CHECK_THAT(last_start->at("checkpoint").get<std::string>(),
               pptrain::test::contains_text((run_dir / "checkpoints/step_").string()));
    CHECK(std::ranges::count_if(lines, [](const Json& line) { return line.contains("start"); }) == 2);
  }
}

TEST_CASE("what the first start began from may be gone later") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  run_small_job(text, folder.path() / "parent", with(resumed_job, {"train.steps=2"}));
  const Overrides job =
      with(resumed_job, {"checkpoint.resume=" + (folder.path() / "parent/checkpoints/step_2").string()});
  stop_after_a_step(small_plan(text, folder.path() / "run", job));
  std::filesystem::remove_all(folder.path() / "parent");
  CHECK(start_plan(small_plan(text, folder.path() / "run", job)).exit_code == 0);
  CHECK(std::filesystem::exists(folder.path() / "run/checkpoints/step_6"));
}

TEST_CASE("starting over takes its own word, and loses nothing of the run before") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run";
  run_small_job(text, run_dir, resumed_job);
  const auto start = [&](const Overrides& more) {
    return start_plan(small_plan(text, run_dir, with(resumed_job, more)));
  };
  const std::vector<Json> before = lines_of(run_dir / "metrics.jsonl");
  CHECK(start({"train.steps=2", "checkpoint.resume=none"}).exit_code == 0);  // nothing to do: it is at step 6
  CHECK(std::filesystem::exists(run_dir / "checkpoints/step_6"));
  CHECK(start({"train.steps=2", "checkpoint.resume=restart"}).exit_code == 0);
  CHECK(std::filesystem::exists(run_dir / "checkpoints.1/step_6"));
  CHECK(std::filesystem::exists(run_dir / "checkpoints/step_2"));
  CHECK_FALSE(std::filesystem::exists(run_dir / "checkpoints/step_4"));
  const std::vector<Json> aside = lines_of(run_dir / "metrics.1.jsonl");
  REQUIRE(aside.size() >= before.size());
  CHECK(std::equal(before.begin(), before.end(), aside.begin()));
  CHECK(lines_of(run_dir / "metrics.jsonl").at(0).at("start") == "new");
  // The start with nothing to do has left no job.
  CHECK(std::filesystem::exists(run_dir / "job.toml"));
  CHECK(std::filesystem::exists(run_dir / "job.1.toml"));
  CHECK_FALSE(std::filesystem::exists(run_dir / "job.2.toml"));
}

TEST_CASE("a run whose checkpoints are all damaged stops, and starts over when it is told to") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run";
  run_small_job(text, run_dir, with(resumed_job, {"train.steps=2"}));
  std::filesystem::resize_file(run_dir / "checkpoints/step_2/manifest.json", 10);
  const auto start = [&](const std::string& resume) {
    return start_plan(
        small_plan(text, run_dir, with(resumed_job, {"train.steps=2", "checkpoint.resume=" + resume})));
  };
  for (const char* resume : {"auto", "none"}) {
    CHECK_THROWS_WITH(start(resume), pptrain::test::contains_text("none of the checkpoints in"));
  }
  CHECK(std::filesystem::exists(run_dir / "checkpoints/step_2"));
  CHECK(start("restart").exit_code == 0);
  CHECK(std::filesystem::exists(run_dir / "checkpoints.1/step_2"));
}

TEST_CASE("a new run has nothing of a checkpoint that was found damaged while it was read") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run";
  for (const std::string pp : {"distributed.pp=1", "distributed.pp=2"}) {
    const auto job = with(resumed_job, {pp, "checkpoint.resume=restart", "optimizer.ema_decay=0.9"});
    std::filesystem::remove_all(run_dir);
    const JobResult whole = start_plan(small_plan(text, run_dir, job));
    for (const char* later : {"step_4", "step_6"})
      std::filesystem::remove_all(run_dir / "checkpoints" / later);
    std::ofstream(run_dir / "checkpoints/latest") << "step_2\n";
    for (const auto& entry : std::filesystem::recursive_directory_iterator(run_dir / "checkpoints/step_2")) {
      if (entry.path().filename() != "model.safetensors") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-5, std::ios::end);
      file.put('\x5a');
    }
    const JobResult anew = start_plan(small_plan(text, run_dir, job));
    CAPTURE(pp);
    CHECK(anew.metrics == whole.metrics);
    CHECK(anew.checksums == whole.checksums);
  }
}

TEST_CASE("the pace of an earlier start goes when a run goes on") {
  const TemporaryFolder folder;
  const auto job = with(resumed_job, {"checkpoint.resume=auto"});
  REQUIRE(run_small_job(small_job_text(), folder.path(), with(job, {"train.steps=2"})).exit_code == 0);
  pptrain::test::write_file(folder.path() / "pace.json", "{}");
  REQUIRE(run_small_job(small_job_text(), folder.path(), with(job, {"train.steps=4"})).exit_code == 0);
  CHECK_FALSE(std::filesystem::exists(folder.path() / "pace.json"));
}

TEST_CASE("a run goes on with other data only where the job says how") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run";
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"run.seed=7", "run.seed was 0, is 7"},
      {"data.val_fraction=0.4", "data.val_fraction was 0.2, is 0.4"},
      {"data.shuffle=false", "data.shuffle was true, is false"},
      {"train.seq_len=8", "train.seq_len was 16, is 8"},
      {"data.path=" + (folder.path() / "other.txt").string(), "data.path held other data"}};
  std::filesystem::copy_file(pptrain::test::shakespeare, folder.path() / "same.txt");
  std::filesystem::copy_file(pptrain::test::shakespeare, folder.path() / "other.txt");
  std::ofstream(folder.path() / "other.txt", std::ios::app) << "one line more";
  for (const auto& [change, words] : changes) {
    CAPTURE(change);
    std::filesystem::remove_all(run_dir);
    run_small_job(text, run_dir, resumed_job);
    const auto start = [&](const Overrides& more) {
      return start_plan(
          small_plan(text, run_dir,
                     with(resumed_job, Overrides{"checkpoint.resume=auto", "train.steps=7", change}, more)));
    };
    CHECK_THROWS_WITH(start({}), pptrain::test::contains_text(words));
    CHECK(start({"checkpoint.data=restart"}).exit_code == 0);
    const Json last = lines_of(run_dir / "metrics.jsonl").back();
    REQUIRE(last.at("step") == 7);
    std::ifstream manifest(run_dir / "checkpoints/step_7/manifest.json");
    CHECK(Json::parse(manifest).at("state").at("next_sample") == 8);  // the samples of one step
    // It is the run's data now.
    CHECK(start({"train.steps=8"}).exit_code == 0);
  }
  std::filesystem::remove_all(run_dir);
  run_small_job(text, run_dir, resumed_job);
  const Overrides moved = {"checkpoint.resume=auto", "train.steps=7",
                           "data.path=" + (folder.path() / "same.txt").string()};
  CHECK(start_plan(small_plan(text, run_dir, with(resumed_job, moved))).exit_code == 0);
}

TEST_CASE("a run on a folder of files goes on, unless the folder holds other ones") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run", data = folder.path() / "data";
  std::filesystem::create_directory(data);
  for (const char* name : {"a.txt", "b.txt"})
    std::filesystem::copy_file(pptrain::test::shakespeare, data / name);
  const Overrides on_folder = with(resumed_job, Overrides{"data.path=" + data.string()});
  CHECK(run_small_job(text, run_dir, on_folder).exit_code == 0);
  const auto start = [&](const std::string& steps) {
    return start_plan(small_plan(text, run_dir, with(on_folder, Overrides{"checkpoint.resume=auto", steps})))
        .exit_code;
  };
  CHECK(start("train.steps=7") == 0);
  std::ofstream(data / "c.txt") << "one file more";
  CHECK_THROWS_WITH(start("train.steps=8"), pptrain::test::contains_text("data.path held other data"));
}

TEST_CASE("a model with other heads of the same weights does not resume") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  run_small_job(text, folder.path() / "run", resumed_job);
  const auto start = [&](const Overrides& more) {
    return start_plan(
        small_plan(text, folder.path() / "run",
                   with(resumed_job, Overrides{"checkpoint.resume=auto", "train.steps=8"}, more)));
  };
  CHECK_THROWS_WITH(start({"model.num_attention_heads=8", "model.num_key_value_heads=4", "model.head_dim=4"}),
                    pptrain::test::contains_text(
                        "model.num_attention_heads was 4, is 8; model.num_key_value_heads was 2, is "
                        "4; model.head_dim was 8, is 4"));
  CHECK_THROWS_WITH(start({"model.rms_norm_eps=1e-5"}),
                    pptrain::test::contains_text("model.rms_norm_eps was 1e-06, is 1e-05"));
  CHECK(start({}).exit_code == 0);
}

TEST_CASE("a smaller model does not resume from a larger one's checkpoint") {
  const std::string text = small_job_text();
  const TemporaryFolder folder;
  run_small_job(text, folder.path() / "run", resumed_job);
  CHECK_THROWS_WITH(
      run_small_job(
          text, folder.path() / "run",
          with(resumed_job, {"checkpoint.resume=auto", "model.num_hidden_layers=3", "train.steps=8"})),
      pptrain::test::contains_text("another model or optimizer: model.num_hidden_layers was 4, is 3"));
}

TEST_CASE("a checkpoint without its job is refused by a model that has no place for all of it") {
  const TemporaryFolder folder;
  const auto plan = [&](const Overrides& more) {
    return small_plan(small_job_text(), folder.path() / "run", more);
  };
  pptrain::app::run_ranks(plan({}), [&](pptrain::app::RunContext& context) {
    pptrain::app::RankModel model(context);
    model.initialise();
    pptrain::checkpoint::save(context.mesh.world(), {.root = folder.path()},
                              {.seed = static_cast<uint64_t>(context.job.run.seed)}, model.contents());
    return 0;
  });
  const std::string saved = (folder.path() / "step_0").string(), layers = "model.num_hidden_layers=3";
  const auto read = [&](const Overrides& more) {
    pptrain::app::run_ranks(plan(more), [&](pptrain::app::RunContext& context) {
      pptrain::app::RankModel model(context);
      pptrain::app::load_weights(context, model, saved);
      return 0;
    });
  };
  CHECK_NOTHROW(read({}));
  CHECK_THROWS_WITH(read({layers}), pptrain::test::contains_text("the checkpoint holds"));
  CHECK_THROWS_WITH(start_plan(plan({layers, "checkpoint.resume=" + saved})),
                    pptrain::test::contains_text("the checkpoint holds"));
}

TEST_CASE("a run that was killed behind its last checkpoint is finished by the next start") {
  const TemporaryFolder folder;
  const auto run_dir = folder.path() / "run", end = run_dir / "end.json";
  run_small_job(small_job_text(), run_dir, with(resumed_job, {"train.steps=2"}));
  REQUIRE(std::filesystem::remove(end));
  const auto start = [&](const std::string& steps) {
    return start_plan(
               small_plan(small_job_text(), run_dir, with(resumed_job, {"checkpoint.resume=auto", steps})))
        .exit_code;
  };
  CHECK(start("train.steps=1") == 0);
  CHECK_FALSE(std::filesystem::exists(end));  // the run is beyond this job's end
  CHECK(start("train.steps=2") == 0);
  const Json told = Json::parse(pptrain::test::content(end));
  CHECK(told.at("how") == "finished");
  CHECK(told.at("step") == 2);
  CHECK(told.at("checkpoint") == "step_2");
}
