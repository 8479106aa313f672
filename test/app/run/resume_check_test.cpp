// The keys that may differ between a job and the job that saved its checkpoint.
#include "app/run/start_choice.h"

#include <functional>

#include "core/base/error.h"
#include "test/support/catch.h"

using pptrain::config::ChangedData;
using namespace pptrain;
using namespace pptrain::app;
using pptrain::test::contains_text;

namespace {

config::JobConfig plain_job() {
  config::JobConfig job;
  job.model.num_attention_heads = 8;
  job.model.head_dim = 64;
  job.train.seq_len = 128;
  job.train.micro_batch_size = 2;
  job.data.path = {"/here/data.bin"};
  return job;
}

SavedRun saved_by(const config::JobConfig& job) {
  return {.folder = "runs/x/checkpoints/step_40",
          .step = 40,
          .next_sample = 320,
          .seed = job.run.seed,
          .job = job,
          .data = "aaaa",
          .base = {}};
}

using Change = std::function<void(config::JobConfig&)>;

config::JobConfig changed(const Change& change) {
  config::JobConfig job = plain_job();
  change(job);
  return job;
}

}  // namespace

TEST_CASE("a job that is the same goes on without a word") {
  const ResumeTerms terms = check_resume(saved_by(plain_job()), plain_job(), "aaaa");
  CHECK(terms.remarks.empty());
  CHECK_FALSE(terms.new_data);
  CHECK(terms.next_sample == 320);
}

TEST_CASE("what changes the model is refused, with both values") {
  const std::vector<std::pair<Change, const char*>> cases = {
      {[](auto& job) { job.model.num_attention_heads = 16; }, "model.num_attention_heads was 8, is 16"},
      {[](auto& job) { job.model.head_dim = 32; }, "model.head_dim was 64, is 32"},
      {[](auto& job) { job.model.rope_theta = 5e5; }, "model.rope_theta was 10000.0, is 500000.0"},
      {[](auto& job) { job.model.rope_scaling.rope_type = config::RopeType::linear; },
       "model.rope_scaling.rope_type was \"default\", is \"linear\""},
      {[](auto& job) { job.model.rope_scaling.factor = 8; }, "model.rope_scaling.factor was 1.0, is 8.0"},
      {[](auto& job) { job.model.rms_norm_eps = 1e-5; }, "model.rms_norm_eps was 1e-06, is 1e-05"},
      {[](auto& job) { job.model.arch = "qwen3"; }, "model.arch was \"llama\", is \"qwen3\""},
      {[](auto& job) { job.model.tie_word_embeddings = true; },
       "model.tie_word_embeddings was false, is true"},
      {[](auto& job) { job.model.num_experts_per_tok = 2; }, "model.num_experts_per_tok was 0, is 2"},
      {[](auto& job) { job.optimizer.name = "muon"; }, "optimizer.name was \"adamw\", is \"muon\""},
  };
  for (const auto& [change, words] : cases) {
    for (const auto data : {ChangedData::same, ChangedData::go_on, ChangedData::restart}) {
      config::JobConfig job = changed(change);
      job.checkpoint.data = data;
      CHECK_THROWS_AS(check_resume(saved_by(plain_job()), job, "aaaa"), UsageError);
      CHECK_THROWS_WITH(check_resume(saved_by(plain_job()), job, "aaaa"),
                        contains_text(words) && contains_text("step_40 is of another model or optimizer"));
    }
  }
}

TEST_CASE("experts may get a bias on their choice, and lose none") {
  const auto with_rate = [](const char* arch, double rate) {
    return changed([&](auto& job) {
      job.model.arch = arch;
      job.model.router_bias_update_rate = rate;
    });
  };
  const auto check = [&](const char* arch, double before, double now) {
    return check_resume(saved_by(with_rate(arch, before)), with_rate(arch, now), "aaaa").remarks.size();
  };
  CHECK(check("qwen3_moe", 0, 0.001) == 1);
  CHECK(check("qwen3_moe", 0.01, 0.001) == 1);
  CHECK(check("deepseek_v3", 0.01, 0) == 1);  // it has one in any case
  CHECK_THROWS_WITH(check("qwen3_moe", 0.01, 0), contains_text("would lose its bias"));
}

TEST_CASE("of weights alone the model counts, and all else begins anew") {
  SavedRun saved = saved_by(plain_job());
  saved.weights_alone = true;
  const config::JobConfig other = changed([](auto& job) {
    job.optimizer.name = "muon";
    job.run.seed = 7;
    job.train.seq_len = 256;
    job.data.path = {"/there/data.bin"};
  });
  const ResumeTerms terms = check_resume(saved, other, "bbbb");
  CHECK(terms.new_data);
  CHECK(terms.next_sample == 0);
  REQUIRE(terms.remarks.size() == 1);
  CHECK_THAT(terms.remarks[0], contains_text("step_40 holds weights alone"));
  const config::JobConfig model = changed([](auto& job) { job.model.rope_theta = 5e5; });
  CHECK_THROWS_AS(check_resume(saved, model, "aaaa"), UsageError);
}

TEST_CASE("what changes the order of the data is refused, unless the job says what is meant") {
  const std::vector<std::pair<Change, const char*>> cases = {
      {[](auto& job) { job.run.seed = 7; }, "run.seed was 0, is 7"},
      {[](auto& job) { job.train.seq_len = 256; }, "train.seq_len was 128, is 256"},
      {[](auto& job) { job.data.val_fraction = 0.1; }, "data.val_fraction was 0.0, is 0.1"},
      {[](auto& job) { job.data.shuffle = false; }, "data.shuffle was true, is false"},
      {[](auto& job) { job.data.document_end = 3; }, "data.document_end was -1, is 3"},
      {[](auto& job) { job.data.packing = config::Packing::none; },
       "data.packing was \"sequential\", is \"none\""},
      {[](auto& job) { job.data.lengths = config::Lengths::exact; },
       "data.lengths was \"fixed\", is \"exact\""},
      {[](auto& job) { job.data.pad_to_multiple_of = 64; }, "data.pad_to_multiple_of was 128, is 64"},
      {[](auto& job) { job.data.format = config::DataFormat::bin; }, "data.format was \"text\", is \"bin\""},
  };
  for (const auto& [change, words] : cases) {
    config::JobConfig job = changed(change);
    CHECK_THROWS_AS(check_resume(saved_by(plain_job()), job, "aaaa"), UsageError);
    CHECK_THROWS_WITH(check_resume(saved_by(plain_job()), job, "aaaa"),
                      contains_text(words) && contains_text("checkpoint.data = \"continue\"") &&
                          contains_text("sample 320"));
    for (const auto& [meant, sample] :
         {std::pair(ChangedData::go_on, 320), std::pair(ChangedData::restart, 0)}) {
      job.checkpoint.data = meant;
      const ResumeTerms terms = check_resume(saved_by(plain_job()), job, "aaaa");
      CHECK(terms.new_data);
      CHECK(terms.next_sample == sample);
      REQUIRE(terms.remarks.size() == 1);
      CHECK_THAT(terms.remarks[0], contains_text(words));
    }
  }
}

TEST_CASE("data are what a file holds, not where it lies") {
  const config::JobConfig moved = changed([](auto& job) { job.data.path = {"/there/data.bin"}; });
  const ResumeTerms terms = check_resume(saved_by(plain_job()), moved, "aaaa");
  CHECK_FALSE(terms.new_data);
  REQUIRE(terms.remarks.size() == 1);
  CHECK_THAT(terms.remarks[0], contains_text("data.path was \"/here/data.bin\", is \"/there/data.bin\""));
  CHECK_THROWS_WITH(check_resume(saved_by(plain_job()), plain_job(), "bbbb"),
                    contains_text("data.path held other data (fingerprint aaaa, is bbbb)"));
  // A checkpoint without a fingerprint: the path is all there is.
  SavedRun old = saved_by(plain_job());
  old.data.clear();
  CHECK_THROWS_WITH(check_resume(old, moved, "aaaa"), contains_text("data.path was"));
  CHECK(check_resume(old, plain_job(), "bbbb").remarks.empty());
}

TEST_CASE("the rest is one line that says what differs") {
  const config::JobConfig job = changed([](auto& j) {
    j.optimizer.lr = 1e-4;
    j.train.steps = 2000;
    j.distributed.pp = 4;
    j.train.micro_batch_size = 8;
    j.run.dir = "runs/y";
    j.metrics.log_interval = 1;
  });
  const ResumeTerms terms = check_resume(saved_by(plain_job()), job, "aaaa");
  CHECK_FALSE(terms.new_data);
  REQUIRE(terms.remarks.size() == 1);
  CHECK_THAT(
      terms.remarks[0],
      contains_text(
          "step_40 goes on with changed settings: distributed.pp was 1, is 4; train.steps was 1000, is 2000; "
          "train.micro_batch_size was 2, is 8; optimizer.lr was 0.0003, is "
          "0.0001; a step took 2 samples, takes 8; learning rate of step 41: "));
  // The same samples a step, divided otherwise.
  const config::JobConfig cut = changed([](auto& j) {
    j.train.micro_batch_size = 1;
    j.train.grad_accum_steps = 2;
  });
  CHECK_THAT(check_resume(saved_by(plain_job()), cut, "aaaa").remarks.at(0), !contains_text("samples"));
}

TEST_CASE("a checkpoint that does not say which job saved it is compared by its seed") {
  SavedRun saved = saved_by(plain_job());
  saved.job.reset();
  CHECK_THAT(check_resume(saved, plain_job(), "aaaa").remarks.at(0),
             contains_text("only the seed was compared"));
  saved.seed = 3;
  CHECK_THROWS_WITH(check_resume(saved, plain_job(), "aaaa"), contains_text("run.seed was 3, is 0"));
}

TEST_CASE("a start on another processor is told that bits change") {
  SavedRun saved = saved_by(plain_job());
  saved.machine = machine(config::Device::cpu);
  CHECK(check_resume(saved, plain_job(), "aaaa").remarks.empty());
  saved.machine = "another instruction set";
  const std::vector<std::string> remarks = check_resume(saved, plain_job(), "aaaa").remarks;
  REQUIRE(remarks.size() == 1);
  CHECK_THAT(remarks.front(), contains_text("computed with another instruction set, this start has " +
                                            machine(config::Device::cpu)));
}
