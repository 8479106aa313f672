// Products of sizes are checked before they are computed.
#include "core/config/validate.h"

#include <cstdint>
#include <string>

#include "core/base/checked.h"
#include "test/core/config/config_test_support.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::config::test;
using Catch::Matchers::StartsWith;

TEST_CASE("a checked number remembers that it left 64 bits") {
  const int64_t large = int64_t{1} << 62;
  CHECK(Checked(large).fits());
  CHECK((Checked(large) + (large - 1)).value() == INT64_MAX);
  CHECK(!(Checked(large) * 2).fits());
  CHECK(!(Checked(large) + large).fits());
  CHECK(!(Checked(large) * 4 * 0).fits());
  CHECK(!(Checked(0) + Checked(large) * 2).fits());
  CHECK((Checked(3) * 5 + 1).value() == 16);
  CHECK((Checked(3) * 5).fits(15));
  CHECK(!(Checked(3) * 5).fits(14));
}

TEST_CASE("sizes whose product does not fit are refused at the keys that are multiplied") {
  const Folder folder;
  const auto refused = [&](const std::string& text) { return refusal(text, essentials(folder)); };
  // 2^24 three times.
  CHECK_THAT(
      refusal("[train]\nseq_len = 16777216\nmicro_batch_size = 16777216\ngrad_accum_steps = 16777216\n",
              {"data.path=" + folder.data(), "model.hidden_size=64", "model.intermediate_size=128",
               "model.vocab_size=256", "model.num_hidden_layers=4", "model.num_attention_heads=4"}),
      StartsWith(
          "job.toml:3:20: train.micro_batch_size: micro_batch_size = 16777216 x seq_len = 16777216 are "
          "more than 2147483647, the most tokens that a microbatch can have"));
  CHECK_THAT(
      refused("[distributed]\npp = 1048576\ntp = 4096\n"),
      StartsWith("job.toml:2:6: distributed.pp: pp = 1048576 x tp = 4096 are more than 2147483647, the most "
                 "ranks that a job can have"));
  CHECK_THAT(refused("[distributed]\npp = 1048576\ndp_replicate = 1048576\ncp = 1048576\ntp = 1048576\n"
                     "dp_shard = 1048576\n"),
             contains_text("the most ranks that a job can have"));
  CHECK_THAT(refused("[distributed]\npp = 1048576\ndp_replicate = 1048576\ncp = 1048576\ntp = 1048576\n"
                     "dp_shard = -1\n"),
             contains_text("the most ranks that a job can have"));
  CHECK_THAT(
      refused("[distributed]\npp = 1024\n[train]\ngrad_accum_steps = 16777216\n"),
      StartsWith(
          "job.toml:4:20: train.grad_accum_steps: grad_accum_steps = 16777216 x pp = 1024 are more than "
          "67108864, the most forward passes that a schedule can list"));
  CHECK_THAT(refused("[distributed]\ndp_replicate = 1048576\n[train]\ngrad_accum_steps = 16777216\n"
                     "micro_batch_size = 67108\n"),
             contains_text("the most tokens that a step can have"));
}

TEST_CASE("models that are too large to be counted are refused") {
  const Folder folder;
  const auto refused = [&](const std::string& model, const std::string& train = "seq_len = 16\n") {
    return refusal("[data]\npath = '" + folder.data() + "'\n[train]\n" + train + "[model]\n" + model);
  };
  const std::string sizes =
      "intermediate_size = 16777216\nnum_attention_heads = 65536\nvocab_size = 268435456\n";
  CHECK_THAT(
      refused("hidden_size = 16777216\nnum_hidden_layers = 65536\nhead_dim = 65536\n" + sizes),
      StartsWith("job.toml:6:15: model.hidden_size: num_hidden_layers = 65536, hidden_size = 16777216, ") &&
          contains_text("are more than 1125899906842624 parameters, the most that a model can have"));
  const std::string small =
      "hidden_size = 64\nintermediate_size = 64\nnum_attention_heads = 4\nvocab_size = 256\n";
  CHECK_THAT(refused(small + "num_hidden_layers = 65536\narch = 'qwen3_moe'\nnum_experts = 4096\n"
                             "num_experts_per_tok = 4\nmoe_intermediate_size = 8\n"),
             contains_text(
                 "model.num_experts: num_hidden_layers = 65536 of num_experts = 4096 are more than 16777216 "
                 "tensors"));
  CHECK_THAT(
      refused("hidden_size = 1048576\nintermediate_size = 1048576\nnum_attention_heads = 4096\n"
              "vocab_size = 256\nnum_hidden_layers = 96\nhead_dim = 256\n",
              "seq_len = 16777216\nmicro_batch_size = 127\n"),
      StartsWith("job.toml:5:20: train.micro_batch_size: a microbatch of micro_batch_size = 127 x seq_len = "
                 "16777216 tokens, with num_hidden_layers = 96, "));
  // The largest real job: 405B on a million tokens.
  CHECK(
      refused(
          "hidden_size = 16384\nintermediate_size = 53248\nnum_attention_heads = 128\nnum_key_value_heads = "
          "8\n"
          "vocab_size = 128256\nnum_hidden_layers = 126\n",
          "seq_len = 1048576\nmicro_batch_size = 4\ngrad_accum_steps = 4096\n[distributed]\npp = 16\ntp = 8\n"
          "cp = 16\ndp_shard = 128\n") == "");
}
