// If a job saves while it trains, the files have the same bytes as when it saves between steps.
#include <nlohmann/json.hpp>

#include "test/app/small_job.h"
#include "test/support/catch.h"

using pptrain::test::JobResult;
using pptrain::test::Overrides;
using pptrain::test::run_small_job;
using pptrain::test::small_job_text;
using pptrain::test::TemporaryFolder;
using pptrain::test::with;

namespace fs = std::filesystem;

namespace {

// The bytes of every file below `folder`, by path. Manifests are without the job, since it has the run's
// path.
std::map<std::string, std::string> files_below(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (entry.path().extension() == ".json") {
      auto manifest = nlohmann::json::parse(text);
      for (const char* key : {"job", "given"}) manifest.erase(key);
      manifest.erase("manifest_xxh3_128");
      text = manifest.dump();
    }
    files[fs::relative(entry.path(), folder)] = text;
  }
  return files;
}

int64_t count_steps(const fs::path& checkpoints) {
  int64_t steps = 0;
  for (const auto& entry : fs::directory_iterator(checkpoints))
    steps += entry.path().filename().string().starts_with("step_") ? 1 : 0;
  return steps;
}

const Overrides saved_job = {"train.steps=12",           "train.grad_accum_steps=4", "checkpoint.interval=1",
                             "checkpoint.keep_last_n=0", "train.dtype=bf16",         "eval.interval=0"};

}  // namespace

TEST_CASE("checkpoints of the background are, byte for byte, those that training waited for") {
  const std::string text = small_job_text();
  for (const Overrides& layout : std::vector<Overrides>{
           {"distributed.pp=2"},
           {"distributed.pp=1", "optimizer.name=\"muon\""},
           {"distributed.pp=2", "distributed.dp_shard=2"},
           {"distributed.pp=2", "distributed.dp_replicate=2", "model.tie_word_embeddings=true"},
           // Steps are undone and repeated while the step before is written.
           {"distributed.pp=2", "optimizer.post_validation=true", "train.grad_clip=0.05",
            "checkpoint.interval=3"}}) {
    CAPTURE(layout);
    const TemporaryFolder folder;
    const auto run = [&](const std::string& async) {
      return run_small_job(text, folder.path() / async,
                           with(with(saved_job, layout), {"checkpoint.async=" + async}));
    };
    const JobResult waited = run("false"), went_on = run("true");
    CHECK(waited.metrics == went_on.metrics);
    const auto files = files_below(folder.path() / "true/checkpoints");
    CHECK(files.size() > 12);
    CHECK(files == files_below(folder.path() / "false/checkpoints"));
  }
}

TEST_CASE("a checkpoint is saved when minutes have passed, at the same step on all ranks") {
  const std::string text = small_job_text();
  for (const std::string post_validation : {"false", "true"}) {
    CAPTURE(post_validation);
    const TemporaryFolder folder;
    const Overrides common =
        with(saved_job, {"train.steps=60", "checkpoint.interval=0", "distributed.pp=2", "train.grad_clip=0",
                         "distributed.dp_replicate=2", "optimizer.post_validation=" + post_validation});
    const JobResult plain = run_small_job(text, folder.path() / "plain", common);
    const JobResult saving =
        run_small_job(text, folder.path() / "saving", with(common, {"checkpoint.minutes=0.00005"}));
    CHECK(plain.metrics == saving.metrics);
    CHECK(plain.checksums == saving.checksums);
    CHECK(count_steps(folder.path() / "plain/checkpoints") == 1);
    CHECK(count_steps(folder.path() / "saving/checkpoints") > 5);
  }
}
