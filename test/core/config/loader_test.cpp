// Reading a job: syntax, defaults, overrides, resolved values, and text that is not a job.
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "core/config/document.h"
#include "test/core/config/config_test_support.h"
#include "test/support/catch.h"
#include "test/support/paths.h"

using namespace pptrain;
using namespace pptrain::config;
using namespace pptrain::config::test;
using Catch::Matchers::EndsWith;
using Catch::Matchers::StartsWith;

namespace {

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string with(const Folder& folder, const std::string& override_text, const std::string& text = "") {
  Overrides overrides = essentials(folder);
  overrides.push_back(override_text);
  return refusal(text, overrides);
}

JobConfig accepted(const Folder& folder, const std::string& override_text, const std::string& text = "") {
  Overrides overrides = essentials(folder);
  overrides.push_back(override_text);
  return parse(text, overrides);
}

}  // namespace

TEST_CASE("the defaults") {
  const Folder folder;
  const JobConfig job = parse("", essentials(folder));
  CHECK(job.optimizer.lr == 3e-4);
  CHECK(job.optimizer.betas == std::vector<double>{0.9, 0.95});
  CHECK(job.optimizer.weight_decay == 0.1);
  CHECK(job.train.grad_clip == 1.0);
  CHECK(job.lr_schedule.warmup_steps == job.train.steps / 20);
  CHECK(job.lr_schedule.min_lr_ratio == 0.1);
  CHECK(job.checkpoint.keep_last_n == 3);
  CHECK(job.metrics.log_interval == 10);
  CHECK(job.distributed.pp_schedule == "1f1b");
}

TEST_CASE("every key of a job is taken") {
  const Folder folder;
  const JobConfig job = parse(
      "[run]\ndir = 'out'\nseed = 7\n[train]\ngrad_clip = 2\ngrad_accum_steps = 3\n"
      "[distributed]\npp = 3\npp_split = [1, 2, 1]\ndp_replicate = 2\npp_schedule = '1F1B'\n"
      "[lr_schedule]\nname = 'Cosine'\n[optimizer]\nbetas = [0, 0.99]\n",
      essentials(folder));
  CHECK(job.run.dir == "out");
  CHECK(job.run.seed == 7);
  CHECK(job.train.grad_clip == 2.0);  // an integer serves as a float
  CHECK(job.distributed.pp_split.layers == std::vector<int64_t>{1, 2, 1});
  CHECK(job.distributed.pp_schedule == "1F1B");  // app/plan knows the schedules
  CHECK(job.lr_schedule.name == "cosine");
  CHECK(job.optimizer.betas == std::vector<double>{0, 0.99});
  CHECK(accepted(folder, "distributed.pp_split=even").distributed.pp_split == PipelineSplit());
  CHECK(accepted(folder, "distributed.pp_split=1|*|1").distributed.pp_split.text == "1|*|1");
}

TEST_CASE("dp folds into dp_shard") {
  const Folder folder;
  const JobConfig job = parse("[distributed]\ndp = 1\n", essentials(folder));
  CHECK(!job.distributed.dp.has_value());
  CHECK(job.distributed.dp_shard == 1);
}

TEST_CASE("who uses the job may check it and fill it in") {
  const Folder folder;
  const std::string text = "[distributed]\npp = 3\n[train]\nsteps = 0\n";
  Hooks hooks;
  hooks.finish_model = [](ModelSection& model, int64_t seq_len, const ReportConflict& report) {
    CHECK(seq_len == 16);
    report({"model.arch", "distributed.pp"}, "not this");
    model.head_dim = 12;
  };
  hooks.finish = [](JobConfig& job, const ReportConflict& report, bool sound) {
    CHECK_FALSE(sound);
    CHECK(job.model.head_dim == 12);
    report({"train.seed", "distributed.pp"}, "no");
    report({"train.steps"}, "never said: its value could not be taken");
    job.distributed.pp_stages_per_rank = 2;
  };
  try {
    parse(text, essentials(folder), hooks);
    FAIL("accepted");
  } catch (const UsageError& error) {
    CHECK_THAT(error.what(),
               contains_text("job.toml:2:6: distributed.pp: not this\njob.toml:2:6: distributed.pp: no\n"
                             "job.toml:4:9: train.steps: 0 is"));
  }
  hooks.finish_model = nullptr;
  hooks.finish = [](JobConfig& job, const auto&, bool sound) {
    job.distributed.pp_stages_per_rank = sound ? 2 : 0;
  };
  CHECK(parse("", essentials(folder), hooks).distributed.pp_stages_per_rank == 2);
}

TEST_CASE("a Hugging Face directory is read by the hook; keys that it fixes must agree, others win over it") {
  const Folder folder;
  const Overrides essential = {"data.path=" + folder.data(), "train.seq_len=16", "model.hf_dir=hf"};
  Hooks hooks;
  CHECK_THAT(refusal("", essential, hooks),
             contains_text("model.hf_dir=hf: Hugging Face directories are not"));
  hooks.read_hf_config = [](const std::string& dir) {
    CHECK(dir == "hf");
    ModelSection model;
    model.hidden_size = 80;
    model.rope_theta = 5;
    return model;
  };
  CHECK(parse("", essential, hooks).model.hidden_size == 80);
  CHECK(parse("[model]\nhidden_size = 0\nrope_theta = 7\n", essential, hooks).model.hidden_size == 80);
  CHECK(parse("[model]\nrope_theta = 7\n", essential, hooks).model.rope_theta == 7);
  CHECK_THAT(refusal("[model]\nhidden_size = 96\n", essential, hooks),
             StartsWith("job.toml:2:15: model.hidden_size: 96 contradicts 80 in hf/config.json"));
  // What acts on the job's model, though not on the directory's, is the job's.
  const auto scaling =
      parse("[model.rope_scaling]\nrope_type = 'yarn'\nfactor = 4.0\noriginal_max_position_embeddings = 32\n",
            essential, hooks)
          .model.rope_scaling;
  CHECK(scaling.rope_type == RopeType::yarn);
  CHECK((scaling.factor == 4 && scaling.original_max_position_embeddings == 32));
  CHECK_THAT(refusal("[model.rope_scaling]\nfactor = 4.0\n", essential, hooks),
             contains_text("model.rope_scaling.factor: acts only with"));
  hooks.read_hf_config = [](const std::string&) {
    ModelSection model;
    model.arch = "granite";
    model.attention_multiplier = 0.015625;
    return model;
  };
  CHECK(parse("[model]\nattention_multiplier = 0\n", essential, hooks).model.attention_multiplier ==
        0.015625);
  hooks.read_hf_config = [](const std::string&) -> ModelSection { throw UsageError("unreadable"); };
  CHECK(refusal("", essential, hooks) == "--set model.hf_dir=hf: unreadable");
}

TEST_CASE("overrides win over the file and are TOML, or bare words") {
  const Folder folder;
  CHECK(accepted(folder, "train.steps=5", "[train]\nsteps = 9\n").train.steps == 5);
  CHECK(accepted(folder, " train.steps = 5 ").train.steps == 5);
  CHECK(accepted(folder, "run.dir=runs/a b").run.dir == "runs/a b");
  CHECK(accepted(folder, "run.dir=\"runs/a\"").run.dir == "runs/a");
  CHECK(accepted(folder, "run.dir=2024").run.dir == "2024");
  CHECK(accepted(folder, "run.dir=a=b").run.dir == "a=b");
  CHECK(accepted(folder, "run.dir=C:\\x").run.dir == "C:\\x");
  CHECK(accepted(folder, "data.shuffle=false").data.shuffle == false);
  CHECK(accepted(folder, "optimizer.betas=[0.8, 0.9]").optimizer.betas == std::vector<double>{0.8, 0.9});
  CHECK(accepted(folder, "checkpoint.resume=none").checkpoint.resume == "none");
  CHECK(accepted(folder, "checkpoint.resume=" + folder.path()).checkpoint.resume == folder.path());
  CHECK(accepted(folder, "model.rope_scaling.rope_type=llama3").model.rope_scaling.rope_type ==
        RopeType::llama3);
  CHECK(accepted(folder, "model.rope_scaling={rope_type='linear', factor=4}").model.rope_scaling.factor ==
        4.0);
}

TEST_CASE("a list on the command line needs no brackets") {
  const Folder folder;
  CHECK(accepted(folder, "distributed.pp_split=3,1").distributed.pp_split.layers ==
        std::vector<int64_t>{3, 1});
  CHECK(accepted(folder, "distributed.pp_split=3, 1").distributed.pp_split.layers ==
        std::vector<int64_t>{3, 1});
  CHECK(accepted(folder, "distributed.pp_split=Et,t|t,tL").distributed.pp_split.text == "Et,t|t,tL");
  CHECK(accepted(folder, "optimizer.betas=0.8,0.9").optimizer.betas == std::vector<double>{0.8, 0.9});
  CHECK(accepted(folder, "train.recompute=full,none").train.recompute.words ==
        std::vector<std::string>{"full", "none"});
  CHECK(accepted(folder, "run.dir=a,b").run.dir == "a,b");
}

TEST_CASE("a bad override is shown as it was given") {
  const Folder folder;
  CHECK(with(folder, "train.steps=many") ==
        "--set train.steps=many: wrong type: expected integer; found the string \"many\"");
  CHECK_THAT(with(folder, "train.stepz=5"),
             StartsWith("--set train.stepz=5: unknown key; did you mean train.steps?"));
  CHECK_THAT(with(folder, "train.dtype=fp16"),
             StartsWith("--set train.dtype=fp16: fp16 is refused: use bf16"));
  CHECK(with(folder, "train.steps") == "--set train.steps: expected section.key=value");
  CHECK(with(folder, "=5") == "--set =5: expected section.key=value");
  CHECK_THAT(with(folder, "train=5"), StartsWith("--set train=5: names a section; expected train.key=value"));
  CHECK_THAT(with(folder, "lr=5"), StartsWith("--set lr=5: unknown section; did you mean optimizer.lr?"));
  CHECK_THAT(with(folder, "run.dir=\xff"), contains_text("not UTF-8"));
  CHECK_THAT(with(folder, "distributed.tp=3"), StartsWith("--set distributed.tp=3: tp = 3 does not divide"));
  CHECK_THAT(with(folder, "data.val_path=no/file"),
             StartsWith("--set data.val_path=no/file: \"no/file\" does not exist"));
}

TEST_CASE(
    "a file's options are forgiven where an override took what they act on, and resolve to their defaults") {
  const Folder folder;
  const std::string wsd = "[lr_schedule]\nname = 'wsd'\ndecay_fraction = 0.3\n";
  CHECK(accepted(folder, "train.steps=5", wsd).lr_schedule.decay_fraction == 0.3);
  const JobConfig job = accepted(folder, "lr_schedule.name=cosine", wsd);
  CHECK(job.lr_schedule.decay_fraction == JobConfig().lr_schedule.decay_fraction);
  CHECK(parse(to_toml(job)) == job);
  Overrides both = essentials(folder);
  both.push_back("lr_schedule.name=cosine");
  both.push_back("lr_schedule.decay_fraction=0.4");
  CHECK_THAT(refusal(wsd, both), StartsWith("--set lr_schedule.decay_fraction=0.4: acts only with"));
}

TEST_CASE("an override of dp or dp_shard counts in the place of either") {
  const Folder folder;
  const std::string dp = "[distributed]\ndp = 2\n", dp_shard = "[distributed]\ndp_shard = 2\n";
  CHECK(accepted(folder, "distributed.dp_shard=3", dp).distributed.dp_shard == 3);
  CHECK(accepted(folder, "distributed.dp=3", dp_shard).distributed.dp_shard == 3);
  CHECK(accepted(folder, "distributed={dp_shard=3}", dp).distributed.dp_shard == 3);
  CHECK(accepted(folder, "distributed.dp_shard=3", dp_shard).distributed.dp_shard == 3);
  CHECK(accepted(folder, "distributed.pp=1", dp).distributed.dp_shard == 2);
  Overrides both = essentials(folder);
  both.insert(both.end(), {"distributed.dp=2", "distributed.dp_shard=3"});
  CHECK_THAT(refusal("", both), contains_text("dp is short for dp_shard: give one of the two"));
}

TEST_CASE("text that is not TOML is refused with its place") {
  CHECK_THAT(refusal("[run]\nseed = = 3\n"), StartsWith("job.toml:2:8: not valid TOML: "));
  CHECK_THAT(refusal("[run]\ndir = runs/bad  # here\n"),
             StartsWith("job.toml:2:7: a string needs quotes: dir = \"runs/bad\""));
  CHECK_THAT(refusal("[train]\nsteps = 5\ndtype=fp32\n"),
             StartsWith("job.toml:3:7: a string needs quotes: dtype = \"fp32\""));
  CHECK_THAT(refusal("[train]\nsteps = 5x\n"), StartsWith("job.toml:2:10: not valid TOML: "));
  CHECK_THAT(refusal("[run]\nseed = 1\nseed = 2\n"), StartsWith("job.toml:3:8: not valid TOML: "));
  CHECK_THAT(refusal("[run\n"), StartsWith("job.toml:1:5: not valid TOML: "));
}

TEST_CASE("what other languages write without quotes is answered in TOML") {
  const auto answer = [](const std::string& text) { return refusal("[data]\n" + text + "\n"); };
  CHECK(answer("shuffle = True") == "job.toml:2:11: TOML writes true in lower case: shuffle = true");
  CHECK(answer("shuffle = False # why") == "job.toml:2:11: TOML writes false in lower case: shuffle = false");
  CHECK(answer("shuffle = yes") == "job.toml:2:11: TOML writes true in lower case: shuffle = true");
  CHECK(answer("shuffle = on") == "job.toml:2:11: TOML writes true in lower case: shuffle = true");
  CHECK(answer("tokenizer = None") ==
        "job.toml:2:13: TOML has no None: leave tokenizer out, and its default counts");
  CHECK(answer("seed = null") == "job.toml:2:8: TOML has no null: leave seed out, and its default counts");
  CHECK(answer("recompute = None") == "job.toml:2:13: a string needs quotes: recompute = \"none\"");
  CHECK(answer("path = on/true") == "job.toml:2:8: a string needs quotes: path = \"on/true\"");
  // The proposed values are accepted.
  const Folder folder;
  CHECK_FALSE(parse("[data]\nshuffle = false\n", essentials(folder)).data.shuffle);
  CHECK(refusal("[data]\nshuffle = 'True'\n", essentials(folder)) ==
        "job.toml:2:11: data.shuffle: wrong type: expected true or false; found the string \"True\"; did you "
        "mean true?");
  CHECK_THAT(with(folder, "data.shuffle=True"), EndsWith("; did you mean true?"));
}

TEST_CASE("a string without its closing quote is named") {
  CHECK(refusal("[run]\ndir = \"runs/a\nseed = 1\n") == "job.toml:2:7: this string has no closing \"");
  CHECK(refusal("[run]\ndir = 'runs/a\nseed = 1\n") == "job.toml:2:7: this string has no closing '");
  CHECK(refusal("[run]\ndir = \"runs/a  # it's here") == "job.toml:2:7: this string has no closing \"");
  CHECK(refusal("[model]\nlayer_types = [\"a\", \"b]\n") == "job.toml:2:21: this string has no closing \"");
  // Closed strings are not named, nor are quotes in comments or inside other quotes.
  CHECK_THAT(refusal("[run]\ndir = \"it's \\\"a\\\"\" x  # don't\n"), contains_text("not valid TOML"));
}

TEST_CASE("a command's own overrides are not the user's") {
  const Folder folder;
  Overrides overrides = essentials(folder);
  overrides.push_back(by_command("eval.interval=1"));
  CHECK(refusal("", overrides) ==
        "job.toml: data.val_fraction: there is no validation data: give data.val_fraction or data.val_path");
  overrides.emplace_back("data.val_fraction=0.1");
  CHECK(parse("", overrides).eval.interval == 1);
  // A key is accepted if it would act without the command's change.
  overrides.push_back(by_command("eval.interval=0"));
  CHECK(parse("[eval]\ninterval = 3\nbatches = 2\n", overrides).eval.interval == 0);
}

TEST_CASE("a job is read from a file; one that cannot be read is an error") {
  const Folder folder;
  const std::string path = folder.write("my.toml", "[run]\nseed = 'x'\n");
  CHECK_THROWS_WITH(load_job(path, essentials(folder)), StartsWith(path + ":2:8: run.seed: wrong type"));
  CHECK_THROWS_AS(load_job(path, essentials(folder)), UsageError);
  folder.write("my.toml", "[run]\nseed = 4\n");
  CHECK(load_job(path, essentials(folder)).run.seed == 4);
  CHECK_THROWS_WITH(load_job(folder.path("none.toml"), {}),
                    contains_text("none.toml: cannot be read: No such file"));
  CHECK_THROWS_AS(load_job(folder.path("none.toml"), {}), UsageError);
  CHECK_THROWS_WITH(load_job(folder.path(), {}), contains_text("is a directory"));
}

TEST_CASE("a job may include another, whose keys give way") {
  const Folder folder;
  const auto load = [&](const std::string& name, const Overrides& overrides = {}) {
    return load_job(folder.path(name), overrides);
  };
  folder.write("base.toml",
               "[model]\nhidden_size = 64\nintermediate_size = 128\nvocab_size = 256\nnum_hidden_layers = 4\n"
               "num_attention_heads = 4\n[train]\nseq_len = 16\nsteps = 5\n[distributed]\ndp = 2\n"
               "[[data.sources]]\nname = 'a'\npath = '" +
                   folder.data() + "'\n");
  folder.write("jobs/middle.toml",
               "include = '../base.toml'\n[train]\nsteps = 6\n[distributed]\ndp_shard = 4\n");
  folder.write("jobs/job.toml", "include = 'middle.toml'\n[train]\nsteps = 7\n");
  CHECK(load("base.toml").train.steps == 5);
  CHECK(load("jobs/middle.toml").train.steps == 6);
  const JobConfig job = load("jobs/job.toml");
  CHECK(job.train.steps == 7);
  CHECK(job.train.seq_len == 16);
  CHECK(job.distributed.dp_shard == 4);
  CHECK(job.data.sources.size() == 1);
  CHECK(load("jobs/job.toml", {"train.steps=8"}).train.steps == 8);

  const auto message = [&](const std::string& name) {
    try {
      load(name);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  folder.write("absent.toml", "include = 'nowhere.toml'\n");
  CHECK_THAT(message("absent.toml"), contains_text("nowhere.toml: cannot be read") &&
                                         contains_text("absent.toml:1:11: include: is read for it"));
  folder.write("one.toml", "include = 'two.toml'\n");
  folder.write("two.toml", "include = 'one.toml'\n");
  CHECK_THAT(message("one.toml"), contains_text("the files include each other"));
  folder.write("number.toml", "include = 3\n");
  CHECK_THAT(message("number.toml"),
             contains_text("expected a job file, include = \"base.toml\"; found the integer 3"));
  // The message names the file of the mistake.
  folder.write("wrong.toml", "[train]\nstepz = 5\n");
  folder.write("user.toml", "include = 'wrong.toml'\n[train]\nsteps = 0\n");
  CHECK_THAT(message("user.toml"), contains_text("wrong.toml:2:1: train.stepz") &&
                                       contains_text("user.toml:3:9: train.steps: 0 is out"));
}

TEST_CASE("a key that the including file leaves without effect is no fault, as under --set") {
  const Folder folder;
  folder.write("base.toml",
               "[model]\nhidden_size = 64\nintermediate_size = 128\nvocab_size = 256\nnum_hidden_layers = 4\n"
               "num_attention_heads = 4\n[train]\nseq_len = 16\nsteps = 5\n"
               "[data]\npath = '" +
                   folder.data() + "'\n[lr_schedule]\nname = 'wsd'\ndecay_fraction = 0.3\n");
  const std::string cosine = "[lr_schedule]\nname = 'cosine'\n";
  folder.write("cosine.toml", "include = 'base.toml'\n" + cosine);
  CHECK_NOTHROW(load_job(folder.path("cosine.toml"), {}));
  folder.write("again.toml", "include = 'cosine.toml'\n[train]\nsteps = 6\n");
  CHECK_NOTHROW(load_job(folder.path("again.toml"), {}));
  // But not what the file says itself, and not what it says of the included one's choice.
  folder.write("both.toml", "include = 'base.toml'\n" + cosine + "decay_fraction = 0.4\n");
  CHECK_THROWS_WITH(load_job(folder.path("both.toml"), {}), contains_text("decay_fraction: acts only with"));
  folder.write("behind.toml", "include = 'cosine.toml'\n[lr_schedule]\ndecay_fraction = 0.4\n");
  CHECK_THROWS_WITH(load_job(folder.path("behind.toml"), {}),
                    contains_text("decay_fraction: acts only with"));
}

TEST_CASE("an element of a mixture is overridden by its place") {
  const Folder folder;
  const std::string mixture = "[[data.sources]]\nname = 'a'\npath = '" + folder.data() +
                              "'\n[[data.sources]]\nname = 'b'\npath = '" + folder.data() + "'\n";
  const auto weights = [&](const std::string& override_text) {
    Overrides overrides = essentials(folder);
    std::erase_if(overrides, [](const std::string& text) { return text.starts_with("data.path"); });
    overrides.push_back(override_text);
    std::vector<double> result;
    for (const auto& source : parse(mixture, overrides).data.sources) result.push_back(source.weight);
    return result;
  };
  CHECK(weights("data.sources.1.weight=3") == std::vector<double>{1, 3});
  CHECK(weights("data.sources[1].weight=3") == std::vector<double>{1, 3});
}

TEST_CASE("cut and garbled jobs are accepted or refused, never worse") {
  const std::string reference = read(pptrain::test::source_dir().string() + "/configs/reference.toml");
  REQUIRE(reference.size() > 1000);
  int refused = 0;
  const auto attempt = [&](const std::string& text, const Overrides& overrides = {}) {
    const std::string message = refusal(text, overrides);  // anything but a UsageError ends the test
    refused += message.empty() ? 0 : 1;
    if (overrides.empty()) {
      CHECK(message.rfind("job.toml", 0) == 0);  // at least data.path is missing
    }
  };
  for (size_t length = 0; length < reference.size(); length += 37) {
    attempt(reference.substr(0, length));
  }
  std::mt19937 random(1);
  const std::string odd = "[]{}=\"'.,#\n\\-_0e\xff\xc3\x01z";
  for (int i = 0; i < 300; ++i) {
    std::string text = reference;
    for (int change = 0; change < 4; ++change) {
      const size_t at = random() % text.size();
      const char c = odd[random() % odd.size()];
      switch (random() % 3) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.insert(at, 1 + random() % 3, c);
          break;
        default:
          text.erase(at, 1 + random() % 20);
      }
    }
    attempt(text);
    attempt("", {text.substr(random() % text.size(), random() % 40)});
  }
  CHECK(refused > 800);
  attempt(std::string(100000, '['));
  attempt("a = " + std::string(100000, '['));
  attempt("[run]\n" + std::string(200000, 'k') + " = 1\n");
}
