// Losses, grad norms and weights must be equal bit for bit whatever the pipeline layout.
#include "test/app/small_job.h"
#include "test/support/catch.h"

using pptrain::test::JobResult;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::TemporaryFolder;

namespace {

const std::filesystem::path data =
    std::filesystem::path(PPTRAIN_SOURCE_DIR) / "configs/data/tinyshakespeare.txt";

void check_equal(const JobResult& reference, const JobResult& other) {
  REQUIRE(other.exit_code == 0);
  REQUIRE(reference.metrics.size() >= 4);
  REQUIRE(reference.checksums.size() > 30);
  CHECK(other.metrics == reference.metrics);
  CHECK(other.checksums == reference.checksums);
}

// Every schedule x pp x m against one rank, which runs the same microbatches in turn.
void check_grid(const std::vector<std::string>& common) {
  const std::string text = small_job_text(data);
  for (const int m : {1, 2, 3, 4, 5, 6, 7, 8}) {
    std::vector<std::string> base = common;
    base.push_back("train.grad_accum_steps=" + std::to_string(m));
    const TemporaryFolder folder;
    const JobResult reference = run_small_job(text, folder.path() / "reference", base);
    for (const std::string schedule : {"gpipe", "1f1b"}) {
      for (const int pp : {1, 2, 3, 4}) {
        if (schedule == "1f1b" && m < pp) continue;
        std::vector<std::string> overrides = base;
        overrides.push_back("distributed.pp=" + std::to_string(pp));
        overrides.push_back("distributed.pp_schedule=" + schedule);
        CAPTURE(m, schedule, pp);
        check_equal(reference,
                    run_small_job(text, folder.path() / (schedule + std::to_string(pp)), overrides));
      }
    }
  }
}

}  // namespace

TEST_CASE("float32 is equal bit for bit on every layout") {
  check_grid({});
}

TEST_CASE("bfloat16 is equal bit for bit on every layout") {
  check_grid({"train.dtype=bf16"});
}

TEST_CASE("tied embeddings are equal bit for bit on every layout") {
  check_grid({"model.tie_word_embeddings=true", "train.dtype=bf16"});
}

TEST_CASE("qwen3 is equal bit for bit on every layout") {
  check_grid({"model.arch=qwen3"});
}

TEST_CASE("data-parallel replicas give equal bits across pp, and nearly those of one replica") {
  const std::string text = small_job_text(data);
  const TemporaryFolder folder;
  const std::vector<std::string> base = {"distributed.dp_replicate=2", "train.grad_accum_steps=4"};
  const JobResult reference = run_small_job(text, folder.path() / "reference", base);
  for (const int pp : {2, 3}) {
    std::vector<std::string> overrides = base;
    overrides.push_back("distributed.pp=" + std::to_string(pp));
    check_equal(reference, run_small_job(text, folder.path() / std::to_string(pp), overrides));
  }
  const JobResult single =
      run_small_job(text, folder.path() / "single", {"train.grad_accum_steps=4", "train.micro_batch_size=4"});
  REQUIRE(single.metrics.size() == reference.metrics.size());
  for (size_t i = 0; i < single.metrics.size(); ++i) {
    const auto one = nlohmann::json::parse(single.metrics[i]),
               two = nlohmann::json::parse(reference.metrics[i]);
    for (const auto& [key, value] : one.items()) {
      if (value.is_number()) CHECK(two.at(key).get<double>() == Approx(value.get<double>()).epsilon(1e-4));
    }
  }
}

TEST_CASE("uneven splits give the same bits") {
  const std::string text = small_job_text(data);
  const TemporaryFolder folder;
  const std::vector<std::string> base = {"train.grad_accum_steps=4"};
  const JobResult reference = run_small_job(text, folder.path() / "reference", base);
  for (const std::string split : {"[1,3]", "[3,1]"}) {
    std::vector<std::string> overrides = base;
    overrides.push_back("distributed.pp=2");
    overrides.push_back("distributed.pp_split=" + split);
    check_equal(reference, run_small_job(text, folder.path() / split, overrides));
  }
}
