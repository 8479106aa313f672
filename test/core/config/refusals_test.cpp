// Every refusal: its place in the file, its words, the names it proposes.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <fstream>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "core/config/nearest.h"
#include "core/config/options.h"
#include "core/config/validate.h"
#include "test/core/config/config_test_support.h"
#include "test/support/catch.h"
#include "test/support/paths.h"

using namespace pptrain::config;
using namespace pptrain::config::test;
using Catch::Matchers::StartsWith;

namespace {

struct Case {
  std::string text;
  std::string start;               // the message starts so
  std::vector<std::string> parts;  // and contains these
};

// Each case is refused with exactly one problem.
void check(const Folder& folder, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    INFO(c.text);
    const std::string message = refusal(c.text, essentials(folder));
    CHECK_THAT(message, StartsWith(c.start));
    CHECK(message.find('\n') == std::string::npos);
    for (const std::string& part : c.parts) {
      CHECK_THAT(message, contains_text(part));
    }
  }
}

}  // namespace

TEST_CASE("names that do not exist are refused with the nearest one, or with all valid ones") {
  const Folder folder;
  check(
      folder,
      {{"[train]\n  stepz = 5\n", "job.toml:2:3: train.stepz: unknown key; did you mean train.steps?", {}},
       {"[train]\ngrad_accum = 5\n",
        "job.toml:2:1: train.grad_accum: unknown key; did you mean train.grad_accum_steps?",
        {}},
       {"[train]\nquux = 5\n", "job.toml:2:1: train.quux: unknown key. The keys of [train] are: steps,", {}},
       {"[lr_schedule]\nminimum = 1\n", "job.toml:2:1: lr_schedule.minimum: unknown key. The keys of", {}},
       {"[quux]\nfoo = 1\n", "job.toml:1:2: quux: unknown section. The sections are: run,", {}},
       {"[train]\nlr = 0.1\n", "job.toml:2:1: train.lr: unknown key; did you mean optimizer.lr?", {}},
       {"[train]\npp_schedule = 'gpipe'\n",
        "job.toml:2:1: train.pp_schedule: unknown key; did you mean distributed.pp_schedule?",
        {}},
       {"[model.rope_scaling]\nfacter = 2\n",
        "job.toml:2:1: model.rope_scaling.facter: unknown key; did you mean model.rope_scaling.factor?",
        {}},
       {"[model]\nn_positions = 2\n",
        "job.toml:2:1: model.n_positions: unknown key; did you mean model.max_position_embeddings?",
        {}},
       {"[model]\ndropout = 0.1\n", "job.toml:2:1: model.dropout: unknown key. The keys of [model] are:", {}},
       {"[run]\nname = 'x'\n", "job.toml:2:1: run.name: unknown key. The keys of [run] are:", {}},
       {"\n[optimiser]\nlr = 1\n", "job.toml:2:2: optimiser: unknown section; did you mean [optimizer]?", {}},
       {"seed = 3\n", "job.toml:1:1: seed: unknown section; did you mean run.seed?", {}}});
}

TEST_CASE("the keys of a section are listed once, and only where nothing is near") {
  const Folder folder;
  const std::string message = refusal("[train]\nquux = 5\nfrob = 6\nstepz = 7\n", essentials(folder));
  const size_t first = message.find("The keys of [train] are: steps, ");
  REQUIRE(first != std::string::npos);
  CHECK(message.find("The keys of", first + 1) == std::string::npos);
  CHECK_THAT(message, contains_text("train.quux: unknown key.") && contains_text("train.frob: unknown key."));
}

TEST_CASE("what other trainers call a key is known") {
  const Folder folder;
  const std::vector<std::pair<std::string, std::string>> keys = {
      {"[optimizer]\nlearning_rate = 1", "optimizer.lr"},
      {"[train]\nlearning_rate = 1", "optimizer.lr"},
      {"[train]\nprecision = 'bf16'", "train.dtype"},
      {"[model]\nn_layers = 2", "model.num_hidden_layers"},
      {"[model]\nn-layers = 2", "model.num_hidden_layers"},
      {"[model]\ndim = 2", "model.hidden_size"},
      {"[distributed]\npp_size = 2", "distributed.pp"},
      {"[distributed]\npipeline_parallel_degree = 2", "distributed.pp"},
      {"[distributed]\ntensor_model_parallel_size = 2", "distributed.tp"},
      {"[train]\ngradient_accumulation_steps = 2", "train.grad_accum_steps"},
      {"[train]\nper_device_train_batch_size = 2", "train.micro_batch_size"},
      {"[train]\nmax_grad_norm = 2", "train.grad_clip"},
      {"[lr_schedule]\nwarmup = 2", "lr_schedule.warmup_steps"},
      {"[checkpoint]\nsteps = 2", "checkpoint.interval"},
      {"[eval]\nsteps = 2", "eval.batches"},
      {"[distributed]\ndata_parallel_shard_size = 2", "distributed.dp_shard"},
      {"[distributed]\nringattn_parallel_size = 2", "distributed.cp"},
      {"[distributed]\npp_stage_type = 'v'", "distributed.pp_schedule"},
      {"[train]\nenable_gradient_checkpointing = true", "train.recompute"},
      {"[distributed]\npipeline_module_split = 'a'", "distributed.pp_split"},
  };
  for (const auto& [text, option] : keys) {
    INFO(text);
    const std::string message = refusal(text + "\n", essentials(folder));
    CHECK_THAT(message, contains_text("unknown key; did you mean " + option + "?"));
    CHECK(message.find('\n') == std::string::npos);
  }
  check(folder,
        {{"[parallelism]\npp = 1\n",
          "job.toml:1:2: parallelism: unknown section; did you mean [distributed]?",
          {}},
         {"[training]\nsteps = 9\n", "job.toml:1:2: training: unknown section; did you mean [train]?", {}},
         {"lr = 3\n", "job.toml:1:1: lr: unknown section; did you mean optimizer.lr?", {}}});
  for (const Option& option : options()) CHECK(alias_of_key("", option.key).empty());
}

// docs/coming_from.md and the proposals for keys of other trainers must agree: one table serves both.
TEST_CASE("a key of another trainer is answered as docs/coming_from.md says") {
  const Folder folder;
  std::ifstream page(pptrain::test::source_dir().string() + "/docs/coming_from.md");
  const std::regex quoted("`([^`]+)`");
  const auto words = [&](const std::string& cell) {
    std::vector<std::string> found;
    for (std::sregex_iterator i(cell.begin(), cell.end(), quoted), end; i != end; ++i)
      found.push_back(i->str(1));
    return found;
  };
  int compared = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `") && !line.starts_with("| --")) continue;
    const size_t second = line.find(" | "), third = line.find(" | ", second + 3);
    const std::vector<std::string> theirs = words(line.substr(0, second)),
                                   ours = words(line.substr(second, third - second));
    for (size_t i = 0; i < theirs.size(); ++i) {
      std::string name = theirs[i];
      if (name.starts_with("--")) name.erase(0, 2);
      const size_t dot = name.find('.');
      const std::string section = dot == name.npos ? "" : name.substr(0, dot);
      const std::string key = dot == name.npos ? name : name.substr(dot + 1);
      const bool one_for_one = theirs.size() == ours.size();
      const std::string expected = one_for_one ? ours[i] : ours.front();
      INFO(theirs[i] << " is " << expected);
      if (find_option(name)) {
        CHECK(name == expected);
      } else {
        const std::string text =
            section.empty() ? fmt::format("{} = 1\n", key) : fmt::format("[{}]\n{} = 1\n", section, key);
        const std::string message = refusal(text, essentials(folder));
        // If the key is the same, the message names only the section.
        const bool same_key = !section.empty() && expected.substr(expected.find('.') + 1) == key;
        CHECK_THAT(message, contains_text(same_key ? "did you mean [" + expected.substr(0, expected.find('.'))
                                                   : "did you mean " + expected + "?"));
      }
      ++compared;
    }
  }
  CHECK(compared > 60);
}

TEST_CASE("words are taken in any case of letters") {
  const Folder folder;
  const JobConfig job = parse(
      "[optimizer]\nname = 'AdamW'\n[train]\ndtype = 'BF16'\nrecompute = 'Cheap:2/FULL:2'\n[data]\nformat = "
      "'Text'\n[lr_schedule]\nname = 'WSD'\nwarmup_steps = 'Auto'\n[model]\narch = 'LLaMA'\n",
      essentials(folder));
  CHECK(job.optimizer.name == "adamw");
  CHECK(job.train.dtype == Dtype::bf16);
  CHECK(job.train.recompute.words == std::vector<std::string>{"cheap:2/full:2"});
  CHECK(job.data.format == DataFormat::text);
  CHECK(job.lr_schedule.name == "wsd");
  CHECK(job.model.arch == "llama");
}

TEST_CASE("every alias stands for something that is there") {
  // The proposed names must be accepted, since a table of names goes stale unnoticed.
  for (const char* key : {"learning_rate", "max_steps", "dim", "pp_size", "gbs", "wd", "save_steps", "top_k",
                          "eval_iters", "log_freq", "fsdp", "cp_comm_type", "peak_flops", "dataset"}) {
    INFO(key);
    CHECK(find_option(alias_of_key("train", key)));
  }
  for (const Option& option : options()) {
    for (const char* value : {"gpu", "bfloat16", "float32", "adam", "cos", "txt", "u16", "p2p", "llama3"}) {
      const std::string alias = alias_of_value(option.name(), value);
      if (!alias.empty()) CHECK(std::ranges::find(option.literals, alias) != option.literals.end());
    }
  }
}

TEST_CASE("one mistake is one message: what stands under a misspelt name is not missing") {
  const Folder folder;
  const auto lines = [](const std::string& message) { return std::ranges::count(message, '\n') + 1; };
  const std::string rest =
      "[data]\npath = '" + folder.data() +
      "'\n[model]\nhidden_size = 64\nintermediate_size = 128\nvocab_size = 256\nnum_hidden_layers = 4\n"
      "num_attention_heads = 4\n";
  // A misspelt section: all its keys are read and checked.
  std::string message = refusal("[trian]\nseq_len = 16\nsteps = 3\n" + rest);
  CHECK_THAT(message, StartsWith("job.toml:1:2: trian: unknown section; did you mean [train]?"));
  CHECK(lines(message) == 1);
  message = refusal("[training]\nseq_len = 16\nsteps = 0\n" + rest);
  CHECK_THAT(message, contains_text("\njob.toml:3:9: train.steps: 0 is out of range"));
  CHECK(lines(message) == 2);
  // By the section's keys if its name is no hint.
  message = refusal("[quux]\nseq_len = 16\nsteps = 3\n" + rest);
  CHECK_THAT(message, StartsWith("job.toml:1:2: quux: unknown section; did you mean [train]?"));
  CHECK(lines(message) == 1);
  // A required key under another name; on the command line too.
  message = refusal("[train]\nseq_length = 16\n" + rest);
  CHECK_THAT(message, StartsWith("job.toml:2:1: train.seq_length: unknown key; did you mean train.seq_len?"));
  CHECK(lines(message) == 1);
  message = refusal(rest, {"train.seq_length=16"});
  CHECK_THAT(message, StartsWith("--set train.seq_length=16: unknown key; did you mean train.seq_len?"));
  CHECK(lines(message) == 1);
  message = refusal(rest, {"training.seq_len=16"});
  CHECK_THAT(message,
             StartsWith("--set training.seq_len=16: training: unknown section; did you mean [train]?"));
  CHECK(lines(message) == 1);
  message = refusal("[[optimizer.groups]]\npattern = '*'\nmacth = '*'\n", essentials(folder));
  CHECK(lines(message) == 2);  // two unknown keys, and no missing one
}

TEST_CASE("a wrong type says what was expected and what was found") {
  const Folder folder;
  check(
      folder,
      {{"[train]\nsteps = \"ten\"\n",
        "job.toml:2:9: train.steps: wrong type: expected integer; found the string \"ten\"",
        {}},
       {"[train]\nsteps = 4.0\n",
        "job.toml:2:9: train.steps: wrong type: expected integer; found the float 4",
        {}},
       {"[optimizer]\nlr = true\n", "job.toml:2:6: optimizer.lr: wrong type: expected float; found true", {}},
       {"[data]\nshuffle = 1\n",
        "job.toml:2:11: data.shuffle: wrong type: expected true or false; found the integer 1",
        {}},
       {"[run]\ndir = 2024-01-01\n",
        "job.toml:2:7: run.dir: wrong type: expected string; found a date or time",
        {}},
       {"[optimizer]\nbetas = 0.9\n",
        "job.toml:2:9: optimizer.betas: wrong type: expected list of 2 floats;",
        {}},
       {"[optimizer]\nbetas = [0.9, 'x']\n", "job.toml:2:15: optimizer.betas: wrong type:", {}},
       {"[distributed]\ndp_replicate = [1]\n",
        "job.toml:2:16: distributed.dp_replicate: wrong type:",
        {"found a list"}},
       {"[distributed]\npp_split = 1.5\n",
        "job.toml:2:12: distributed.pp_split: wrong type:",
        {"string or list of integers", "1.5"}},
       {"train = 5\n", "job.toml:1:9: train: expected a section, [train]; found the integer 5", {}},
       {"[model]\nrope_scaling = 2\n", "job.toml:2:16: model.rope_scaling: expected a section", {}},
       {"[[run]]\nseed = 1\n", "job.toml:1:1: run: expected a section, [run]; found a list", {}}});
}

TEST_CASE("values outside their literals or range are refused with what is allowed") {
  const Folder folder;
  check(
      folder,
      {{"[train]\ndtype = 'bfloat16'\n",
        "job.toml:2:9: train.dtype: \"bfloat16\" is not a valid value; did you mean \"bf16\"?",
        {"Valid: bf16, fp32"}},
       {"[train]\ndtype = 'fp16'\n", "job.toml:2:9: train.dtype: fp16 is refused: use bf16", {"bf16, fp32"}},
       {"[train]\ndtype = 'Float16'\n", "job.toml:2:9: train.dtype: fp16 is refused: use bf16", {}},
       {"[train]\ndtype = 'fp8'\n", "job.toml:2:9: train.dtype: FP8 has a key of its own: set train.fp8", {}},
       {"[train]\nmixed_precision = 'fp8'\n",
        "job.toml:2:1: train.mixed_precision: unknown key; did you mean train.dtype? FP8 has a key of its "
        "own",
        {}},
       {"[train]\nfloat8_recipe_name = 'rowwise'\n",
        "job.toml:2:1: train.float8_recipe_name: unknown key; did you mean train.fp8?",
        {}},
       {"[float8]\nenable_fsdp_float8_all_gather = true\n",
        "job.toml:1:2: float8: unknown section; did you mean train.fp8?",
        {}},
       {"[quantize.linear.float8]\nfilter_fqns = ['output']\n",
        "job.toml:1:2: quantize: unknown section; did you mean train.fp8?",
        {}},
       {"[model]\nconverters = ['float8']\n",
        "job.toml:2:1: model.converters: unknown key; did you mean train.fp8?",
        {}},
       {"[train]\nfp8 = 'rowwise_with_gw_hp'\n", "job.toml:2:7: train.fp8:", {"did you mean \"rowwise\"?"}},
       {"[train]\nfp8 = 'delayed'\n", "job.toml:2:7: train.fp8: scales from earlier steps are refused", {}},
       {"[train]\nfp8 = 'tensorwise'\n", "job.toml:2:7: train.fp8:", {"Use rowwise"}},
       {"[train]\nfp8 = 'mxfp8'\n", "job.toml:2:7: train.fp8: MXFP8 is refused: use rowwise", {}},
       {"[run]\ndevice = 'gpu'\n",
        "job.toml:2:10: run.device: \"gpu\" is not a valid value; did you mean \"cuda\"? Valid: cpu, cuda",
        {}},
       {"[model]\narch = 'falcon'\n",
        "job.toml:2:8: model.arch: \"falcon\" is not a valid value. Valid: llama, qwen3,",
        {}},
       {"[distributed]\npp_split = '3,1'\n",
        "job.toml:2:12: distributed.pp_split: \"3,1\" is one string: write a list, [3, 1]",
        {}},
       {"[optimizer]\nname = 'adam'\n", "job.toml:2:8: optimizer.name:", {"did you mean \"adamw\"?"}},
       {"[model]\narch = 'lama'\n", "job.toml:2:8: model.arch:", {"did you mean \"llama\"?", "llama, qwen3"}},
       {"[lr_schedule]\nname = 'cos'\n",
        "job.toml:2:8: lr_schedule.name: \"cos\" is not a valid value; did you mean \"cosine\"?",
        {"cosine, linear, wsd, constant"}},
       {"[train]\nsteps = 0\n", "job.toml:2:9: train.steps: 0 is out of range; allowed: 1 <= x", {}},
       {"[optimizer]\nlr = -1\n", "job.toml:2:6: optimizer.lr: -1 is out of range; allowed: >= 0", {}},
       {"[optimizer]\nlr = nan\n", "job.toml:2:6: optimizer.lr: nan is out of range", {}},
       {"[train]\ngrad_clip = inf\n", "job.toml:2:13: train.grad_clip: inf is out of range", {}},
       {"[optimizer]\nbetas = [0.9, 1.0]\n",
        "job.toml:2:15: optimizer.betas: 1 is out of range; allowed: 0 <= x < 1",
        {}},
       {"[optimizer]\nbetas = [0.9]\n",
        "job.toml:2:9: optimizer.betas: a list of 1; expected a list of 2 floats",
        {}},
       {"[optimizer]\nbetas = [0.9, 0.9, 0.9]\n", "job.toml:2:9: optimizer.betas: a list of 3;", {}},
       {"[data]\nval_fraction = 1.0\n",
        "job.toml:2:16: data.val_fraction: 1 is out of range; allowed: 0 <= x < 1",
        {}},
       {"[data]\nval_fraction = -0.1\n", "job.toml:2:16: data.val_fraction: -0.1 is out of range", {}},
       {"[distributed]\ndp_shard = -2\n", "job.toml:2:12: distributed.dp_shard: -2 is out of range", {}},
       {"[distributed]\ndp_shard = 0\n", "job.toml:2:12: distributed.dp_shard: 0 is out of range", {}},
       {"[distributed]\ndp = -2\n", "job.toml:2:6: distributed.dp: -2 is out of range", {}},
       {"[distributed]\npp = 1\npp_split = [4, 0]\n",
        "job.toml:3:16: distributed.pp_split: 0 is out of range",
        {"1 <= x"}},
       {"[distributed]\npp_split = []\n", "job.toml:2:12: distributed.pp_split: an empty list", {}},
       {"[run]\ndir = \"a\\u0000b\"\n", "job.toml:2:7: run.dir: holds a NUL character", {}},
       {"[run]\ndir = ''\n", "job.toml:2:7: run.dir: is empty", {}},
       {"[model]\nhidden_size = 9223372036854775807\n",
        "job.toml:2:15: model.hidden_size:",
        {"out of range"}}});
}

// The sizes come from essentials(), as overrides. A case that needs another size adds a later override.
TEST_CASE("contradictions between keys are laid at the key to change") {
  const Folder folder;
  const std::string path = "path = '" + folder.data() + "'\n";  // data.path, in a file
  const std::string base =
      "[data]\n" + path + "[train]\nseq_len = 16\n[model]\nhidden_size = 64\nintermediate_size = 128\n" +
      "vocab_size = 256\nnum_hidden_layers = 4\nnum_attention_heads = 4\n";  // 10 lines; [model] is open
  REQUIRE(refusal(base) == "");
  CHECK(refusal(base + "[distributed]\ncp = 8\n") == "");
  CHECK(refusal(base + "[distributed]\ncp = 4\ncp_kind = 'ulysses'\n") == "");
  const std::vector<Case> cases = {
      {"init = 'hf'\n", "job.toml:11:8: model.init: init = \"hf\" needs model.hf_dir", {}},
      {"rope_scaling = {factor = 2.0}\n",
       "job.toml:11:26: model.rope_scaling.factor: acts only with",
       {"model.rope_scaling.rope_type = linear or llama3", "\"default\""}},
      {"rope_scaling = {rope_type = 'linear', low_freq_factor = 2.0}\n",
       "job.toml:11:57: model.rope_scaling.low_freq_factor: acts only with",
       {}},
      {"[distributed]\ndp = 1\ndp_shard = 1\n",
       "job.toml:12:6: distributed.dp: dp is short for dp_shard",
       {}},
      {"[distributed]\ndp_shard = -1\n",
       "job.toml:12:12: distributed.dp_shard: -1 is what the other axes leave of the ranks launched",
       {"--world N"}},
      {"[distributed]\ncp = 3\n",
       "job.toml:12:6: distributed.cp: seq_len = 16 is not divisible by 2 * cp = 6: cp_kind = \"ring\" cuts "
       "each row into as many equal pieces",
       {}},
      {"[distributed]\ncp = 8\ncp_kind = 'ulysses'\n",
       "job.toml:12:6: distributed.cp: cp_kind = \"ulysses\" shares out heads, but num_attention_heads / tp "
       "= 4 "
       "is not divisible by cp = 8: take another cp, or cp_kind = \"ring\"",
       {}},
      {"[distributed]\nep = 2\n",
       "job.toml:12:6: distributed.ep: ep = 2 shares out experts, but this model has none",
       {}},
      {"arch = 'qwen3_moe'\nnum_experts = 6\nmlp_only_layers = [0]\n[distributed]\nep = 4\n",
       "job.toml:15:6: distributed.ep: num_experts = 6 is not divisible by ep = 4",
       {}},
      {"num_experts = 6\n",
       "job.toml:11:15: model.num_experts: acts only with model.arch = qwen3_moe or mixtral",
       {"\"llama\""}},
      {"[lr_schedule]\ndecay_fraction = 0.2\n",
       "job.toml:12:18: lr_schedule.decay_fraction: acts only with lr_schedule.name = wsd",
       {"\"cosine\""}},
      {"[eval]\ninterval = 5\n",
       "job.toml:12:12: eval.interval: interval = 5 validates, but there is no validation data",
       {"data.val_fraction or data.val_path"}},
      {"[checkpoint]\nresume = '/nowhere/step_3'\n",
       "job.toml:12:10: checkpoint.resume: \"/nowhere/step_3\" does not exist",
       {"auto, none, restart"}},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    const std::string message = refusal(base + c.text);
    CHECK_THAT(message, StartsWith(c.start));
    CHECK(message.find('\n') == std::string::npos);
    for (const std::string& part : c.parts) {
      CHECK_THAT(message, contains_text(part));
    }
  }
}

TEST_CASE("what is required and missing is named, at its section or for the file") {
  const Folder folder;
  const std::string message = refusal("[run]\nseed = 1\n[model]\n[train]\n");
  CHECK_THAT(message, StartsWith("job.toml:4:1: train.seq_len: is required."));
  CHECK_THAT(message, contains_text("\njob.toml: data.path: is required."));
  CHECK_THAT(refusal("[data]\npath = ''\n"),
             contains_text("job.toml:2:8: data.path: is required, and may not be empty"));
}

TEST_CASE("text needs a vocabulary of all bytes") {
  const Folder folder;
  CHECK_THAT(
      refusal("[data]\npath = '" + folder.data() + "'\n[train]\nseq_len = 16\n[model]\nvocab_size = 255\n"),
      StartsWith("job.toml:6:14: model.vocab_size: vocab_size = 255, but data.format = \"text\""));
}

TEST_CASE("files that must exist") {
  const Folder folder;
  const Overrides rest = {"train.seq_len=16",     "model.hidden_size=64",      "model.intermediate_size=128",
                          "model.vocab_size=256", "model.num_hidden_layers=4", "model.num_attention_heads=4"};
  const std::string good = "[data]\npath = '" + folder.data() + "'\n";
  REQUIRE(refusal(good, rest) == "");
  CHECK_THAT(
      refusal("[data]\npath = 'no/such.txt'\n", rest),
      StartsWith(
          "job.toml:2:8: data.path: \"no/such.txt\" does not exist (a path is relative to the job's file"));
  // The folder has a text file, and no .bin.
  CHECK(refusal("[data]\npath = '" + folder.path() + "'\n", rest).empty());
  CHECK(refusal(good + "val_path = '" + folder.path() + "'\n[eval]\ninterval = 1\n", rest).empty());
  CHECK_THAT(refusal("[data]\npath = '" + folder.path() + "'\nformat = 'bin'\n", rest),
             contains_text("is a folder without *.bin files"));
  CHECK_THAT(refusal(good + "val_path = 'no/val.txt'\n", rest),
             StartsWith("job.toml:3:12: data.val_path: \"no/val.txt\""));
  CHECK_THAT(
      refusal(good + "val_path = '" + folder.data() + "'\nval_fraction = 0.1\n[eval]\ninterval = 1\n", rest),
      StartsWith("job.toml:4:16: data.val_fraction: val_fraction and val_path both name"));
  CHECK_THAT(refusal(good + "[data.x]\n", rest), StartsWith("job.toml:3:"));
}

TEST_CASE("a window to trace needs a trace, and steps") {
  const Folder folder;
  CHECK_THAT(refusal("[profile]\nsteps = 2\n", essentials(folder)),
             StartsWith("job.toml:2:9: profile.steps: acts only with profile.trace = true"));
  CHECK_THAT(
      refusal("[profile]\ntrace = true\nfirst_step = 8\n[train]\nsteps = 7\n", essentials(folder)),
      StartsWith("job.toml:3:14: profile.first_step: the first step to trace is 8, but the run has 7"));
}

TEST_CASE("a file for Prometheus has a name that node_exporter reads, and the server's key names its key") {
  const Folder folder;
  check(folder, {{"[metrics]\nprometheus_file = 'a.txt'\n",
                  "job.toml:2:19: metrics.prometheus_file: \"a.txt\" does not end in .prom",
                  {"node_exporter"}},
                 {"[metrics]\nprometheus = '127.0.0.1:9464'\n",
                  "job.toml:2:1: metrics.prometheus: unknown key",
                  {"metrics.prometheus_file"}}});
  CHECK(refusal("[metrics]\nprometheus_file = 'a.prom'\n", essentials(folder)).empty());
}

TEST_CASE("a data.dtype has nothing to act on unless the file is headerless") {
  const Folder folder;
  CHECK_THAT(refusal("[data]\nformat = 'llmc'\ndtype = 'uint32'\n", essentials(folder)),
             StartsWith("job.toml:3:9: data.dtype: acts only with data.format = bin"));
  CHECK(parse("[data]\nformat = 'bin'\ndtype = 'uint32'\n", essentials(folder)).data.dtype ==
        TokenType::uint32);
}

TEST_CASE("sources: what each must say, and what is said of them in the wrong place") {
  const Folder folder;
  const Overrides rest = {"train.seq_len=16",     "model.hidden_size=64",      "model.intermediate_size=128",
                          "model.vocab_size=256", "model.num_hidden_layers=4", "model.num_attention_heads=4"};
  const std::string path = "path = '" + folder.data() + "'\n";
  const std::string a = "[[data.sources]]\nname = 'a'\n" + path;  // 3 lines
  REQUIRE(refusal(a, rest) == "");
  REQUIRE(refusal(a + "[[data.sources]]\nname = 'b'\npath = ['" + folder.path() + "', '" + folder.data() +
                      "']\nweight = 0.5\n",
                  rest) == "");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[data]\n" + path + a, "job.toml:2:8: data.path: with [[data.sources]], path is said of each source"},
      {"[data]\nval_fraction = 0.1\n" + a, "job.toml:2:16: data.val_fraction: with [[data.sources]]"},
      {"[[data.sources]]\n" + path, "data.sources[0].name: is required"},
      {"[[data.sources]]\nname = 'a'\n", "data.sources[0].path: is required"},
      {a + a, "job.toml:5:8: data.sources[1].name: two sources are called \"a\""},
      {"[[data.sources]]\nname = 'a b'\n" + path, "data.sources[0].name: \"a b\" is no name"},
      {a + "weight = 0\n", "job.toml:4:10: data.sources[0].weight: 0 is out of range"},
      {a + "format = 'csv'\n", "data.sources[0].format: \"csv\" is not a valid value"},
      {a + "dtype = 'uint32'\n",
       "job.toml:4:9: data.sources[0].dtype: acts only with format = bin, which is \"text\""},
      {a + "prompt_key = 'p'\n", "data.sources[0].prompt_key: acts only with format = jsonl or parquet"},
      {a + "document_separator = 'x'\n", "data.sources[0].document_separator: acts only with a tokenizer"},
      {a + "val_fraction = 0.1\nval_path = '" + folder.data() + "'\n",
       "job.toml:4:16: data.sources[0].val_fraction: val_fraction and val_path both name"},
      {"[[data.sources]]\nname = 'a'\npath = ['no/such.txt']\n",
       "job.toml:3:8: data.sources[0].path: \"no/such.txt\" does not exist"},
      {a + "text_kye = 'x'\n", "unknown key; did you mean data.sources.text_key?"},
      {a + "[eval]\ninterval = 1\n",
       "eval.interval: interval = 1 validates, but there is no validation data"},
      {"[data]\ncache = 'x'\n" + a, "job.toml:2:9: data.cache: acts only where a tokenizer makes tokens"},
      {"[data]\npacking = 'best_fit'\n" + a, "data.packing: acts only with known documents"},
      {"[data]\nsources = []\n", "data.sources: is empty"},
      {a + "messages_key = 'm'\n", "data.sources[0].messages_key: acts only with format = jsonl or parquet"},
      {a + "format = 'jsonl'\nlabels_key = 'l'\n", "labels_key goes with tokens_key"},
      {a + "format = 'jsonl'\ntokens_key = 'l'\nmessages_key = 'm'\n",
       "data.sources[0].messages_key: messages_key and tokens_key exclude each other"},
      {a + "format = 'random'\n", "data.sources[0].path: format = \"random\" takes no path"},
      {"[data]\ndocument_end = 3\n[[data.sources]]\nname = 'a'\nformat = 'random'\n",
       "random tokens have no documents"},
  };
  for (const auto& [text, words] : cases) CHECK_THAT(refusal(text, rest), contains_text(words));
  // The resolved job is a valid job.
  const JobConfig job = parse(a + "val_fraction = 0.5\n", rest);
  CHECK(job.data.sources.at(0).val_fraction == 0.5);
  CHECK(parse(to_toml(job), {}) == job);
  // The short form of one source.
  const std::string jsonl = "[data]\n" + path + "format = 'jsonl'\n";
  CHECK_THAT(refusal(jsonl, rest), contains_text("there is no tokenizer: give data.tokenizer"));
  CHECK(refusal(jsonl + "tokenizer = 'x'\npacking = 'best_fit'\n", rest) == "");
  CHECK_THAT(refusal(jsonl + "tokenizer = 'x'\nprompt_key = 'p'\n", rest),
             contains_text("data.prompt_key: prompt_key and completion_key go together"));
  CHECK_THAT(refusal("[data]\n" + path +
                         "[metrics]\nmicrobatch_losses = true\n[optimizer]\npost_validation = true\n",
                     rest),
             contains_text("metrics.microbatch_losses: microbatch_losses waits for each step's losses"));
  CHECK(refusal(jsonl + "tokens_key = 'ids'\n", rest) == "");  // no tokenizer is needed
  const std::string chats = jsonl + "tokenizer = 'x'\nmessages_key = 'm'\n";
  CHECK_THAT(refusal(chats, rest), contains_text("data.messages_key: conversations need a template"));
  CHECK(refusal(chats + "[data.chat]\ntemplate = 'gemma'\n", rest) == "");
  CHECK(refusal(chats + "[data.chat]\nuser_prefix = 'U: '\n", rest) == "");
  CHECK_THAT(refusal(chats + "[data.chat]\ntemplate = 'gemma'\ntrim = true\n", rest),
             contains_text("data.chat.trim: acts only with conversations"));
  CHECK_THAT(refusal(jsonl + "tokenizer = 'x'\n[data.chat]\ntemplate = 'gemma'\n", rest),
             contains_text("data.chat.template: acts only with conversations"));
  CHECK(parse(to_toml(parse("[data]\nformat = 'random'\n", rest)), {}).data.path.empty());
  CHECK_THAT(refusal("[data]\n", rest), contains_text("data.path: is required"));
  CHECK_THAT(refusal("[data]\nformat = 'random'\nval_fraction = 0.1\n", rest),
             contains_text("takes no val_fraction"));
  CHECK_THAT(refusal("[data]\n" + path + "text_key = 'x'\n", rest),
             contains_text("data.text_key: acts only with data.format = jsonl or parquet"));
}

TEST_CASE("all errors of a file come at once, in its order, overrides last") {
  const Folder folder;
  Overrides overrides = essentials(folder);
  overrides.push_back("train.steps=-5");
  overrides.push_back("trian.steps=5");
  const std::string message = refusal(
      "[train]\nzteps = 1\ndtype = 'fp16'\n[distributed]\npp = 4\ntp = 0\ncp = 'x'\n[optimizer]\nbetas = "
      "[0.9, 2]\n",
      overrides);
  std::vector<std::string> starts;
  for (size_t begin = 0; begin < message.size();) {
    const size_t end = std::min(message.find('\n', begin), message.size());
    starts.push_back(message.substr(begin, message.find(": ", begin) - begin));
    begin = end + 1;
  }
  CHECK(starts == std::vector<std::string>{"job.toml:2:1", "job.toml:3:9", "job.toml:6:6", "job.toml:7:6",
                                           "job.toml:9:15", "--set train.steps=-5", "--set trian.steps=5"});
  CHECK_THAT(message, contains_text("--set trian.steps=5: trian: unknown section; did you mean [train]?"));
}

TEST_CASE("tensor-parallel ranks must be able to share out heads, inner width, vocabulary and rows") {
  const Folder folder;
  const auto refused = [&](std::vector<std::string> changes) {
    Overrides overrides = essentials(folder);
    for (std::string& change : changes) overrides.push_back(std::move(change));
    return refusal("[distributed]\ntp = 4\n", overrides);
  };
  const std::string start = "job.toml:2:6: distributed.tp: tp = 4 ";
  CHECK(refused({}) == "");
  CHECK(refused({"model.num_key_value_heads=2"}) == "");
  CHECK(refused({"model.num_key_value_heads=1"}) == "");
  CHECK_THAT(refused({"model.num_attention_heads=6", "model.head_dim=8"}),
             StartsWith(start + "does not divide num_attention_heads = 6"));
  CHECK(refused({"model.num_attention_heads=12", "model.head_dim=8", "model.num_key_value_heads=6"}) ==
        start + "neither divides num_key_value_heads = 6 nor is a multiple of it");
  CHECK(refused({"model.intermediate_size=126"}) == start + "does not divide intermediate_size = 126");
  CHECK(refused({"train.seq_len=3"}) == start + "is more than the 3 tokens of a rank's microbatch");
  // Experts are not sharded. mixtral's width is the experts'; qwen3_moe's is for dense layers, if it has any.
  CHECK(refused({"model.arch=mixtral", "model.num_experts=4", "model.num_experts_per_tok=2",
                 "model.intermediate_size=126"}) == "");
  CHECK(refused({"model.arch=qwen3_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
                 "model.moe_intermediate_size=50", "model.mlp_only_layers=[1]",
                 "model.intermediate_size=126"}) == start + "does not divide intermediate_size = 126");
  CHECK(refused({"model.arch=qwen2_moe", "model.num_experts=4", "model.num_experts_per_tok=2",
                 "model.moe_intermediate_size=50", "model.shared_expert_intermediate_size=30",
                 "model.mlp_only_layers=[1]"}) ==
        start + "does not divide shared_expert_intermediate_size = 30");
  CHECK_THAT(refused({"model.arch=olmo2"}), StartsWith(start + "cannot share out olmo2's norms"));
}

TEST_CASE("a value that could not be taken starts no contradiction of its own") {
  const Folder folder;
  const std::string message =
      refusal("[distributed]\npp = 2\n[train]\ngrad_accum_steps = 'two'\n", essentials(folder));
  CHECK_THAT(message, StartsWith("job.toml:4:20: train.grad_accum_steps: wrong type"));
  CHECK(message.find('\n') == std::string::npos);
}

TEST_CASE("what is wrong in a list of tables is found at its place") {
  const Folder folder;
  check(folder,
        {{"[[optimizer.groups]]\nmatsch = '*'\nmatch = '*'\n",
          "job.toml:2:1: optimizer.groups.matsch: unknown key; did you mean optimizer.groups.match?",
          {}},
         {"[[optimizer.groups]]\nquux = '*'\nmatch = '*'\n",
          "job.toml:2:1: optimizer.groups.quux: unknown key. The keys of [[optimizer.groups]] are: match, ",
          {"lr_scale, weight_decay"}},
         {"[[optimizer.groups]]\nmatch = '*'\n[[optimizer.groups]]\nlr_scale = 2\n",
          "job.toml:3:1: optimizer.groups[1].match: is required.",
          {"Pattern for names"}},
         {"[[optimizer.groups]]\nmatch = ''\n",
          "job.toml:2:9: optimizer.groups[0].match: is required, and may not be empty",
          {}},
         {"[[optimizer.groups]]\nmatch = '*'\nweight_decay = -1\n",
          "job.toml:3:16: optimizer.groups[0].weight_decay: -1 is out of range; allowed: >= 0",
          {}},
         {"[optimizer]\ngroups = 3\n",
          "job.toml:2:10: optimizer.groups: wrong type: expected a list of tables, "
          "[[optimizer.groups]]; found the "
          "integer 3",
          {}},
         {"[optimizer]\ngroups = ['*']\n",
          "job.toml:2:10: optimizer.groups: wrong type: expected a list of tables",
          {"found a list of something else"}},
         {"[optimizer]\ngroop = 3\n",
          "job.toml:2:1: optimizer.groop: unknown key; did you mean optimizer.groups?",
          {}}});
}

TEST_CASE("an override gives all of a list of tables, or one key of one of them") {
  const Folder folder;
  const auto with = [&](const std::string& text) {
    Overrides overrides = essentials(folder);
    overrides.push_back(text);
    return overrides;
  };
  const std::string file = "[[optimizer.groups]]\nmatch = 'a'\n[[optimizer.groups]]\nmatch = 'b'\n";
  const auto job = parse(file, with("optimizer.groups=[{match='c', lr_scale=2}]"));
  REQUIRE(job.optimizer.groups.size() == 1);
  CHECK(job.optimizer.groups[0].match == "c");
  CHECK(parse(file, with("optimizer.groups=[]")).optimizer.groups.empty());
  CHECK_THAT(
      refusal(file, with("optimizer.groups.match=c")),
      StartsWith("--set optimizer.groups.match=c: optimizer.groups is a list of tables: give all of it"));
  const auto second = parse(file, with("optimizer.groups[1].lr_scale=0.5"));
  REQUIRE(second.optimizer.groups.size() == 2);
  CHECK(second.optimizer.groups[0] == parse(file, essentials(folder)).optimizer.groups[0]);
  CHECK(second.optimizer.groups[1].match == "b");
  CHECK(second.optimizer.groups[1].lr_scale == 0.5);
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"optimizer.groups[2].match=c",
            "optimizer.groups has 2 elements, optimizer.groups[0] to optimizer.groups[1]"},
           {"data.sources[0].weight=2", "the job has no [[data.sources]]"},
           {"optimizer.groups[0].lr_skale=2", "unknown key; did you mean optimizer.groups.lr_scale?"},
           {"optimizer.groups[0].lr_scale=-2", "-2 is out of range"},
           {"optimizer.groups[0]=2", "names a table; expected optimizer.groups[0].key=value"},
           {"optimizer.groups[x].match=2", "unknown section"}})
    CHECK_THAT(refusal(file, with(text)), contains_text("--set " + text) && contains_text(words));
}

TEST_CASE("what only one optimizer has is refused with another") {
  const Folder folder;
  check(folder, {{"[optimizer]\nmuon_momentum = 0.9\n",
                  "job.toml:2:17: optimizer.muon_momentum: acts only with optimizer.name = muon",
                  {"\"adamw\""}},
                 {"[optimizer]\nname = 'lion'\neps = 1e-7\n",
                  "job.toml:3:7: optimizer.eps: acts only with optimizer.name = adamw or muon",
                  {"\"lion\""}},
                 {"[optimizer]\nname = 'sgd'\n",
                  "job.toml:2:8: optimizer.name: \"sgd\" is not a valid value",
                  {"adamw, muon, lion"}}});
}

// One line for each option that acts only on some jobs: a job on which it does not act, and one on which it
// does.
TEST_CASE("a key that does nothing on this job is refused; what says what is done anyway is not") {
  const Folder folder;
  struct Idle {
    std::string text;     // sets the option on a job on which it does nothing
    std::string start;    // of the refusal
    Overrides elsewhere;  // with these it acts
  };
  const std::vector<Idle> cases = {
      {"[distributed]\ncp_kind = 'ulysses'\n",
       "job.toml:2:11: distributed.cp_kind: acts only with distributed.cp > 1, which is 1 here: remove it, "
       "or",
       {"distributed.cp=2"}},
      {"[distributed]\nreshard_after_forward = true\n",
       "job.toml:2:25: distributed.reshard_after_forward: acts only with ranks that share weights: dp_shard "
       "or "
       "cp > 1, or with experts tp > ep; here dp_shard = 1, cp = 1, tp = 1, ep = 1",
       {"distributed.dp_shard=2"}},
      {"[distributed]\nreduce_gradients = 'microbatch'\n",
       "job.toml:2:20: distributed.reduce_gradients: acts only with several ranks to a stage: dp_replicate, "
       "dp_shard, cp or tp > 1; here dp_replicate = 1",
       {"distributed.dp=2"}},
      {"[distributed]\npp_memory_gb = 4\n",
       "job.toml:2:16: distributed.pp_memory_gb: acts only with distributed.pp_schedule = auto or search, "
       "which is "
       "\"1f1b\" here",
       {"distributed.pp_schedule=auto"}},
      {"[distributed]\npp_head_weight = 2\n",
       "job.toml:2:18: distributed.pp_head_weight: acts only with an even split of several stages; here",
       {"distributed.pp=2"}},
      {"[distributed]\npp = 2\npp_split = [3, 1]\npp_embedding_weight = 2\n",
       "job.toml:4:23: distributed.pp_embedding_weight: acts only with an even split of several stages; here "
       "pp_split = [3, 1], pp = 2",
       {"distributed.pp_split=even"}},
      {"[distributed]\nhost_link_gbps = 2\n",
       "job.toml:2:18: distributed.host_link_gbps: acts only with several hosts",
       {"distributed.ranks_per_host=2"}},
      {"[eval]\nbatches = 3\n",
       "job.toml:2:11: eval.batches: acts only with validation data; here val_fraction = 0.0: remove it",
       {"data.val_fraction=0.5"}},
      {"[model]\ninit = 'hf'\ninitializer_range = 0.5\n",
       "job.toml:2:8: model.init: init = \"hf\" needs model.hf_dir",
       {"model.init=random"}},
      {"[run]\nseed = 5\n[model]\ninit = 'hf'\n[data]\nshuffle = false\n",
       "job.toml:2:8: run.seed: acts only with model.init = random, lora.rank > 0, data.shuffle = true, "
       "data.format = random or eval.generate_interval > 0; here init = \"hf\", rank = 0, shuffle = false",
       {"model.init=random"}},
      {"[distributed]\nhost_latency_us = 2\n",
       "job.toml:2:19: distributed.host_latency_us: acts only with several hosts",
       {"distributed.ranks_per_host=2"}},
      {"[distributed]\npp_head = 'spread'\n",
       "job.toml:2:11: distributed.pp_head: acts only with distributed.pp > 1, which is 1 here",
       {"distributed.pp=2"}},
  };
  for (const Idle& c : cases) {
    INFO(c.text);
    CHECK_THAT(refusal(c.text, essentials(folder)), StartsWith(c.start));
    Overrides overrides = essentials(folder);
    overrides.insert(overrides.end(), c.elsewhere.begin(), c.elsewhere.end());
    CHECK(refusal(c.text, overrides).empty());
  }
  CHECK_THAT(refusal(cases[8].text, essentials(folder)),
             contains_text("\njob.toml:3:21: model.initializer_range: acts only with model.init = random"));
  const auto accepted = [&](const std::string& text, const Overrides& more = {}) {
    Overrides overrides = essentials(folder);
    overrides.insert(overrides.end(), more.begin(), more.end());
    return refusal(text, overrides).empty();
  };
  CHECK(accepted(
      "[distributed]\ncp_kind = 'ring'\nreshard_after_forward = false\nreduce_gradients = 'step'\n"));
  CHECK(accepted("[eval]\nbatches = 10\n"));
  // Users try a job for several ranks on one rank; and -1 may give one.
  CHECK(accepted("[distributed]\ncp = 2\ncp_kind = 'ulysses'\n", {"distributed.cp=1"}));
  CHECK_FALSE(accepted("[distributed]\ncp = 2\n", {"distributed.cp=1", "distributed.cp_kind=ulysses"}));
  Hooks hooks;
  hooks.world = 1;
  const JobConfig job =
      parse("[distributed]\ndp_shard = -1\nreshard_after_forward = true\n", essentials(folder), hooks);
  CHECK(job.distributed.dp_shard == 1);
  CHECK_FALSE(job.distributed.reshard_after_forward.has_value());  // the resolved job has only keys that act
}

TEST_CASE("a run that ends in its warm-up is told so") {
  const Folder folder;
  const auto said = [&](const std::string& text) { return warnings(parse(text, essentials(folder))); };
  CHECK(said("[train]\nsteps = 5\n[lr_schedule]\nwarmup_steps = 5\n").empty());
  const auto warning = said("[train]\nsteps = 5\n[lr_schedule]\nwarmup_steps = 20\n");
  REQUIRE(warning.size() == 1);
  CHECK_THAT(warning[0],
             contains_text("warmup_steps = 20 is more than train.steps = 5") && contains_text("25.0 %"));
}
