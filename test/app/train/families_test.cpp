// On pipelines and shards every family gives the bits of one rank. With tp, cp and ep it gives nearly the
// same numbers, or is refused.
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/resolve/load_plan.h"
#include "core/base/error.h"
#include "core/config/options.h"
#include "models/hf_config.h"
#include "models/registry.h"
#include "parallel/schedule/render/csv.h"
#include "test/app/checkpoint_elements.h"
#include "test/app/family_jobs.h"
#include "test/app/small_job.h"
#include "test/support/bounds.h"
#include "test/support/catch.h"

using namespace pptrain;
using test::Overrides;

namespace {

struct FamilyRun {
  test::JobResult result;
  std::map<std::string, std::string> elements;
};

class Family {
 public:
  explicit Family(const models::Architecture& family, const Overrides& more = {})
      : settings_(test::with(test::family_settings(family), more)) {}

  FamilyRun run(const Overrides& layout) const {
    FamilyRun made{.result = test::run_small_job(test::family_job_text(), folder_.path() / "run",
                                                 test::with(settings_, layout)),
                   .elements = test::checkpoint_elements(folder_.path() / "run")};
    REQUIRE(made.result.exit_code == 0);
    REQUIRE(made.result.metrics.size() == 3);  // two steps and the validation
    return made;
  }

 private:
  Overrides settings_;
  test::TemporaryFolder folder_;
};

void check_equal(const FamilyRun& made, const FamilyRun& expected) {
  REQUIRE(expected.elements.size() > 100);
  CHECK(made.result.metrics == expected.result.metrics);
  CHECK(made.elements == expected.elements);
}

// The same job without [model], for a job with hf_dir alone.
std::string no_model_text() {
  const std::string text = test::small_job_text();
  return text.substr(text.find("[train]"));
}

// The job with all keys, even those that do not act, as runs of older versions keep it.
std::string every_key(const config::JobConfig& job) {
  std::string text, section;
  for (const config::Option& option : config::options()) {
    const auto value = toml_value(option, job);
    if (!value) continue;
    if (option.section != section) text += fmt::format("[{}]\n", section = option.section);
    text += fmt::format("{} = {}\n", option.key, *value);
  }
  return text;
}

void check_reads_back(const app::Plan& plan) {
  const config::JobConfig saved = job_to_save(plan);
  if (plan.keeps_schedule())
    test::write_file(saved.distributed.pp_schedule, schedule::write_csv(plan.compute));
  CHECK(job_to_save(app::parse_plan(config::to_toml(saved), "resolved.toml", {})) == saved);
  CHECK(job_to_save(app::parse_plan(every_key(saved), "older.toml", {})) == saved);
  const app::Plan again = app::parse_plan(plan.given, "given.toml", {});
  CHECK(again.given == plan.given);
  CHECK(job_to_save(again) == saved);
  CHECK(fingerprint(again) == fingerprint(plan));
}

void check_close(const FamilyRun& made, const FamilyRun& expected) {
  for (size_t step = 0; step < 2; ++step) {
    const auto ours = nlohmann::json::parse(made.result.metrics[step]),
               theirs = nlohmann::json::parse(expected.result.metrics[step]);
    for (const char* key : {"loss", "grad_norm"})
      CHECK(test::relative_error(ours.at(key).get<double>(), theirs.at(key).get<double>()) <= 2e-5);
  }
}

}  // namespace

// For every family, on one rank and on a pipeline or mesh, with its sizes from the job or from a Hugging Face
// directory.
TEST_CASE("every family's job reads back to itself, in full and as it was given", "[families]") {
  const test::TemporaryFolder folder;
  const std::array layouts = {
      Overrides{"distributed.pp=2", "distributed.pp_schedule=zbv"},
      Overrides{"distributed.pp=2", "distributed.pp_schedule=auto", "distributed.dp_replicate=2"},
      Overrides{"distributed.pp=2", "distributed.pp_split=cost", "distributed.dp_shard=2"}};
  size_t turn = 0;
  for (const models::Architecture* family : models::architectures) {
    CAPTURE(family->name);
    const Overrides settings = test::family_settings(*family);
    config::ModelSection model = app::parse_plan(test::family_job_text(), "small.toml", settings).job.model;
    models::finish_model(model, 16, [](auto, const std::string&) {});  // DeepSeek's config.json says more
    const auto hf = folder.path() / std::string(family->name);
    test::write_file(hf / "config.json", models::hf_config(model, at::kFloat, {}).dump());
    const Overrides by_hf = {fmt::format("model.hf_dir={}", hf.string()), "train.grad_accum_steps=4"};
    for (const Overrides& layout : {Overrides{}, layouts[turn++ % layouts.size()]}) {
      CAPTURE(layout);
      const Overrides here = test::with(layout, {"run.dir=" + folder.path().string()});
      check_reads_back(app::parse_plan(test::family_job_text(), "small.toml", test::with(settings, here)));
      check_reads_back(app::parse_plan(no_model_text(), "small.toml", test::with(by_hf, here)));
    }
  }
}

TEST_CASE("every family gives the bits of one rank under any pipeline and over shards", "[families]") {
  for (const models::Architecture* architecture : models::architectures) {
    CAPTURE(architecture->name);
    const Family family(*architecture);
    const FamilyRun one = family.run({});
    check_equal(family.run({"distributed.pp=2", "distributed.pp_schedule=zb_h1"}), one);
    check_equal(family.run({"distributed.pp=2", "distributed.pp_schedule=zbv", "train.recompute=full"}), one);
    const FamilyRun replicas = family.run({"distributed.dp_replicate=2"});
    check_equal(family.run({"distributed.dp_shard=2", "distributed.reshard_after_forward=true"}), replicas);
    check_equal(family.run({"distributed.pp=2", "distributed.pp_schedule=interleaved_1f1b",
                            "distributed.dp_shard=2"}),
                replicas);
  }
}

// Widths are multiples of 16. Experts stay in bfloat16.
TEST_CASE("every family gives the bits of one rank in FP8", "[families]") {
  for (const models::Architecture* architecture : models::architectures) {
    CAPTURE(architecture->name);
    Overrides job = {"train.dtype=bf16", "train.fp8=rowwise", "model.intermediate_size=32"};
    if (architecture->decoder.latent_attention) {
      job = test::with(job, {"model.kv_lora_rank=16", "model.qk_rope_head_dim=16", "model.v_head_dim=4"});
      if (architecture->decoder.sigmoid_router) job.emplace_back("model.q_lora_rank=16");
    }
    const Family family(*architecture, job);
    const FamilyRun one = family.run({});
    CHECK(one.result.metrics != family.run({"train.fp8=off"}).result.metrics);
    check_equal(family.run({"distributed.pp=2", "distributed.pp_schedule=zbv"}), one);
  }
}

TEST_CASE("every family trains alike on ranks that share out heads, rows or experts, or is refused",
          "[families]") {
  int different = 0;  // whose sums the kind of cp changes
  for (const models::Architecture* architecture : models::architectures) {
    CAPTURE(architecture->name);
    const Family family(*architecture);
    const FamilyRun one = family.run({});
    if (architecture->decoder.qk_norm == nn::QkNorm::whole) {
      CHECK_THROWS_AS(family.run({"distributed.tp=2"}), UsageError);
    } else {
      check_close(family.run({"distributed.tp=2", "distributed.pp=2", "distributed.pp_schedule=zbv"}), one);
    }
    const FamilyRun ring = family.run({"distributed.cp=2", "distributed.cp_kind=ring"}),
                    ulysses = family.run({"distributed.cp=2", "distributed.cp_kind=ulysses"});
    check_close(ring, one);
    check_close(ulysses, one);
    different += ring.result.metrics != ulysses.result.metrics;
    if (architecture->sparse) check_close(family.run({"distributed.cp=2", "distributed.ep=2"}), one);
  }
  CHECK(different > 0);
}
