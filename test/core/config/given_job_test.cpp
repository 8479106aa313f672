// The given form of a job: its keys, its paths, and reading the written text back.
#include "core/config/given_job.h"

#include <filesystem>
#include <string>
#include <vector>

#include "core/config/options.h"
#include "test/core/config/config_test_support.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::config;
using namespace pptrain::config::test;

namespace {

namespace fs = std::filesystem;

GivenJob load(const Folder& folder, const std::string& name, const Overrides& overrides = {},
              const Hooks& hooks = {}) {
  return load_given_job(folder.path(name), overrides, hooks);
}

const std::string model =
    "[model]\nhidden_size = 8\nintermediate_size = 8\nnum_hidden_layers = 2\nnum_attention_heads = 2\n"
    "vocab_size = 256\n[train]\nseq_len = 16\n";

// The job with all keys, even those that do not act, as runs of older versions keep it.
std::string every_key(const JobConfig& job) {
  std::string text, section;
  for (const Option& option : options()) {
    const auto value = toml_value(option, job);
    if (!value) continue;
    if (option.section != section) text += "[" + (section = option.section) + "]\n";
    text += option.key + " = " + *value + "\n";
  }
  return text;
}

class InDirectory {
 public:
  explicit InDirectory(const fs::path& folder) : before_(fs::current_path()) { fs::current_path(folder); }
  ~InDirectory() { fs::current_path(before_); }
  InDirectory(const InDirectory&) = delete;
  InDirectory& operator=(const InDirectory&) = delete;

 private:
  fs::path before_;
};

}  // namespace

TEST_CASE("what was given is kept apart from what follows from it, and is the same job again") {
  const Folder folder;
  folder.write("base.toml", model + "[optimizer]\nlr = 1e-2\nweight_decay = 0\n");
  folder.write("job.toml",
               "include = 'base.toml'\n[data]\npath = 'data.txt'\n[lr_schedule]\nname = 'Cosine'\n");
  const GivenJob job = load(folder, "job.toml", {"optimizer.lr=2e-2", "train.steps=40"});
  CHECK(job.given ==
        "[model]\nhidden_size = 8\nintermediate_size = 8\nnum_hidden_layers = 2\nnum_attention_heads = 2\n"
        "vocab_size = 256\n\n[train]\nsteps = 40\nseq_len = 16\n\n[data]\npath = \"" +
            folder.data() +
            "\"\n\n[optimizer]\nlr = 0.02\nweight_decay = 0.0\n\n[lr_schedule]\nname = \"cosine\"\n");
  const GivenJob again = parse_given_job(job.given, "given.toml", {}, {});
  CHECK(again.job == job.job);
  CHECK(again.given == job.given);
  CHECK(parse_given_job(job.given, "", std::vector<std::string>{"train.steps=400"}, {})
            .job.lr_schedule.warmup_steps == 20);
  CHECK(load_given_job(folder.path("job.toml"), {}, {}, 7).job.lr_schedule.warmup_steps == 7);
}

TEST_CASE("a given job that an override changed, or that the ranks fill, reads back") {
  const Folder folder;
  const std::string data = "[data]\npath = 'data.txt'\n";
  folder.write("wsd.toml", model + data + "[lr_schedule]\nname = 'wsd'\ndecay_fraction = 0.5\n");
  const GivenJob cosine = load(folder, "wsd.toml", {"lr_schedule.name=cosine"});
  CHECK_THAT(cosine.given, !contains_text("decay_fraction"));
  CHECK(parse_given_job(cosine.given, "", {}, {}).job == cosine.job);

  folder.write("shard.toml", model + data + "[distributed]\ndp_shard = -1\nreshard_after_forward = true\n");
  const GivenJob one = load(folder, "shard.toml", {}, {.world = 1});
  CHECK_FALSE(one.job.distributed.reshard_after_forward);
  const GivenJob four = parse_given_job(one.given, "", {}, {.world = 4});
  CHECK(four.job.distributed.dp_shard == 4);
  CHECK(four.job.distributed.reshard_after_forward == true);

  folder.write("mix.toml",
               model +
                   "[[data.sources]]\nname = 'a'\npath = 'data.txt'\n"
                   "[[data.sources]]\nname = 'b'\npath = ['d*.txt']\nval_fraction = 0.5\nweight = 2\n"
                   "[[optimizer.groups]]\nmatch = 'norm'\nlr_scale = 0.5\n");
  const GivenJob mix = load(folder, "mix.toml", {"data.sources[0].weight=3"});
  CHECK(mix.job.data.sources[1].path == std::vector{folder.path("d*.txt")});
  CHECK(parse_given_job(mix.given, "", {}, {}).job == mix.job);
}

TEST_CASE("paths to read are beside the file that gives them, else in the current directory, which is said") {
  const Folder folder;
  folder.write("parts/text/a.txt", "a text of its own");
  folder.write("parts/base.toml", model + "[data]\npath = 'text/a.txt'\nval_path = 'text/*.txt'\n");
  folder.write("jobs/job.toml",
               "include = '../parts/base.toml'\n[distributed]\npp = 2\npp_schedule = 'order.csv'\n");
  folder.write("jobs/order.csv", "");
  folder.write("here/trace.json", "");
  folder.write("here/b.txt", "another");
  const InDirectory here(folder.path("here"));
  const GivenJob job =
      load(folder, "jobs/job.toml",
           {"run.dir=out", "data.cache=cache", "data.format=jsonl", "data.tokenizer=tokenizer.json"});
  CHECK(fs::equivalent(job.job.data.path.at(0), folder.path("parts/text/a.txt")));
  CHECK(fs::path(job.job.data.val_path.at(0)).filename() == "*.txt");
  CHECK(fs::equivalent(job.job.distributed.pp_schedule, folder.path("jobs/order.csv")));
  CHECK(job.notes.empty());
  // Outputs go to the current directory; the given job keeps their full paths.
  CHECK(job.job.run.dir == "out");
  CHECK_THAT(job.given, contains_text("dir = \"" + folder.path("here/out") + '"'));
  CHECK_THAT(job.given, contains_text("cache = \"" + folder.path("here/cache") + '"'));

  folder.write("jobs/old.toml", "include = '../parts/base.toml'\n[distributed]\npp_costs = 'trace.json'\n");
  const GivenJob old = load(folder, "jobs/old.toml");
  CHECK(old.job.distributed.pp_costs == "trace.json");
  REQUIRE(old.notes.size() == 1);
  CHECK_THAT(old.notes[0],
             contains_text("distributed.pp_costs = \"trace.json\" is in the current directory; beside "));
  CHECK_THAT(old.given, contains_text("pp_costs = \"" + folder.path("here/trace.json") + '"'));

  const Overrides named = {"data.path=b.txt", "distributed.pp_costs=h100"};
  const GivenJob by_command = load(folder, "jobs/job.toml", named);
  CHECK(by_command.job.data.path == std::vector<std::string>{"b.txt"});
  CHECK(by_command.job.distributed.pp_costs == "h100");
  CHECK_THAT(by_command.given, contains_text("path = \"" + folder.path("here/b.txt") + '"'));
  folder.write("jobs/bad.toml", model + "[data]\npath = 'nowhere.txt'\n");
  CHECK_THROWS_WITH(
      load(folder, "jobs/bad.toml"),
      contains_text("\"nowhere.txt\" does not exist (a path is relative to the job's file, else to"));
}

TEST_CASE("a job with all its keys, of an older version or of check, reads back to itself") {
  const Folder folder;
  const Hooks fills = {.read_hf_config =
                           [](const std::string&) {
                             ModelSection hf = parse(model).model;
                             return hf;
                           },
                       .finish_model =
                           [](ModelSection& section, int64_t seq_len, const ReportConflict&) {
                             section.head_dim = section.num_key_value_heads = 4;  // in any arch
                             if (section.max_position_embeddings == 0)
                               section.max_position_embeddings = seq_len;
                           }};
  const std::string latent = "[model]\narch = 'deepseek_v2'\nnum_experts = 4\nnum_experts_per_tok = 1\n";
  const std::string sparse = "[model]\narch = 'qwen3_moe'\nnum_experts = 4\nnum_experts_per_tok = 1\n";
  for (const std::string& text : {std::string(), latent, sparse}) {
    CAPTURE(text);
    Overrides overrides = essentials(folder);
    if (!text.empty())
      std::erase_if(overrides, [](const std::string& o) { return o.starts_with("model.intermediate"); });
    const JobConfig job = parse(text, overrides, fills);
    CHECK(parse(to_toml(job), {}, fills) == job);
    CHECK(parse(every_key(job), {}, fills) == job);
  }
  // A given key that has nothing to act on is still refused.
  Overrides overrides = essentials(folder);
  std::erase_if(overrides, [](const std::string& o) { return o.starts_with("model.intermediate"); });
  CHECK_THAT(refusal(latent + "head_dim = 4\n", overrides, fills),
             contains_text("model.head_dim: acts only with an arch without latent attention"));
}
