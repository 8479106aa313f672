// The table of options and the texts printed from it.
#include "core/config/options.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "core/config/document.h"
#include "core/config/field.h"
#include "core/config/nearest.h"
#include "test/core/config/config_test_support.h"
#include "test/support/catch.h"
#include "test/support/paths.h"

using namespace pptrain::config;
using namespace pptrain::config::test;

namespace {

// A value that the option allows and that is not its default, as TOML.
std::string other_value(const Option& option) {
  struct Other {
    const Option& option;
    const std::string now;
    double inside() const { return option.range.max && *option.range.max <= 1 ? 0.375 : 3; }
    std::string operator()(const Access<bool>&) const { return now == "true" ? "false" : "true"; }
    std::string operator()(const Access<int64_t>&) const {
      const int64_t value = std::max<int64_t>(3, static_cast<int64_t>(option.range.min.value_or(0)));
      return fmt::to_string(fmt::to_string(value) == now ? value + 2 : value);
    }
    std::string operator()(const Access<double>&) const { return inside() == 3 ? "3.5" : "0.375"; }
    std::string operator()(const Access<std::optional<bool>>&) const { return "true"; }
    std::string operator()(const Access<std::optional<int64_t>>&) const { return "3"; }
    std::string operator()(const Access<std::optional<double>>&) const { return "3.5"; }
    std::string operator()(const Access<PipelineSplit>&) const { return "[3, 1]"; }
    std::string operator()(const Access<std::vector<double>>&) const { return "[0.25, 0.5]"; }
    std::string operator()(const Access<std::vector<int64_t>>&) const { return "[1, 1]"; }
    std::string operator()(const Access<std::vector<std::string>>&) const {
      return fmt::format("[{0}, {0}]", (*this)(Access<std::string>()));
    }
    std::string operator()(const Access<std::string>&) const {
      for (const std::string& literal : option.literals) {
        if (toml_string(literal) != now) {
          return toml_string(literal);
        }
      }
      return option.literals.empty() ? "\"a \\\"\\\\ \\u0001 é\"" : "";
    }
  };
  return std::visit(Other{option, toml_value(option, JobConfig()).value_or("")}, option.target);
}

std::string read_shipped(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("every option sets its own field and no other") {
  std::set<std::string> written;
  for (const Option& option : options()) {
    INFO(option.name());
    CHECK(written.insert(option.name()).second);
    CHECK(!option.meaning.empty());
    const std::string value = other_value(option);
    REQUIRE(!value.empty());
    const std::vector<std::string> overrides = {option.name() + "=" + value};
    const Document document = read_document("", "job.toml", overrides);
    CHECK(!document.broken.contains(option.name()));
    CHECK(document.job != JobConfig());
    CHECK(toml_value(option, document.job) == value);
    JobConfig restored = document.job;
    copy_value(option, JobConfig(), restored);
    CHECK(restored == JobConfig());
  }
}

// A struct with one more field would be larger, so a field without an option is found.
TEST_CASE("every field of the job has an option") {
  size_t bytes = table_lists().size() * sizeof(std::vector<int>);
  for (const Option& option : options()) {
    bytes += std::visit([]<class T>(const Access<T>&) { return sizeof(T); }, option.target);
  }
  // Booleans, alone or adjacent, are padded to 8 bytes. RunSection has one; ModelSection one, then two and
  // two; RopeScaling one; DataSection two, apart; TrainSection three, adjacent; OptimizerSection,
  // CheckpointSection and ProfileSection one each; ChatSection and MetricsSection two, adjacent.
  // DistributedSection has an optional one of 2 bytes.
  const size_t padding = 7 + 7 + 7 + 6 + 6 + 6 + 7 + 7 + 5 + 7 + 7 + 7 + 6 + 6;
  // Only a source in [[data.sources]] has these, not [data].
  const size_t of_sources = sizeof(DataSource::name) + sizeof(DataSource::weight);
  INFO("A field has no option in options/; or a new bool has changed the padding counted here.");
  CHECK(bytes + padding + of_sources == sizeof(JobConfig));
}

TEST_CASE("every field of a list's tables has an option, which sets it alone") {
  const std::map<std::string, size_t> sizes = {{"optimizer.groups", sizeof(OptimizerGroup)},
                                               {"data.sources", sizeof(DataSource)},
                                               {"train.grad_accum_schedule", sizeof(BatchStep)}};
  REQUIRE(table_lists().size() == sizes.size());
  for (const auto& [section, size] : sizes) {
    const TableList& list = *find_table_list(section);
    size_t bytes = 0;
    for (const Option& field : list.fields) {
      INFO(field.name());
      bytes += std::visit([]<class T>(const Access<T>&) { return sizeof(T); }, field.target);
      JobConfig job = list.fresh();
      std::visit(
          [&]<class T>(const Access<T>& access) {
            if constexpr (std::is_same_v<T, std::string>) access(job) = "x";
            if constexpr (std::is_same_v<T, std::vector<std::string>>) access(job) = {"x"};
            if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>)
              access(job) = 3.5;
            if constexpr (std::is_same_v<T, bool>) access(job) = !access(job);
            if constexpr (std::is_same_v<T, int64_t>) access(job) += 3;
          },
          field.target);
      CHECK(job != list.fresh());
      copy_value(field, list.fresh(), job);
      CHECK(job == list.fresh());
    }
    CHECK((bytes + 7) / 8 * 8 == size);  // a bool is padded
  }
}

TEST_CASE("a job written as TOML reads back as the same job") {
  const Folder folder;
  const std::string data = folder.data();
  const JobConfig plain = parse("", essentials(folder));
  CHECK(parse(to_toml(plain)) == plain);

  const std::string text = R"([run]
dir = "a \"b\" \\ \t é"
seed = 9007199254740993
device = 'cuda'
threads = 3
[model]
arch = 'qwen3'
initializer_range = 0.1
num_key_value_heads = 2
head_dim = 10
rope_theta = 1e6
rms_norm_eps = 1e-5
tie_word_embeddings = true
max_position_embeddings = 99
attention_bias = true
[model.rope_scaling]
rope_type = 'llama3'
factor = 8
low_freq_factor = 1.5
high_freq_factor = 4.25
original_max_position_embeddings = 77
[distributed]
pp = 2
dp_replicate = 3
pp_schedule = 'gpipe'
pp_split = [3, 1]
timeout_s = 0.1
start_timeout_s = 0.2
[train]
steps = 1000000000000
micro_batch_size = 2
grad_accum_steps = 5
dtype = 'fp32'
grad_clip = 0.3
max_skipped_steps = 4
[optimizer]
lr = 1.1e-30
betas = [0.1, 0.3333333333333333]
eps = 1e-10
weight_decay = 123456789.125
name = 'muon'
muon_weight_decay = 0.25
[[optimizer.groups]]
match = '*norm*'
weight_decay = 0
[[optimizer.groups]]
match = 'embedding'
lr_scale = 3
[lr_schedule]
name = 'wsd'
warmup_steps = 1
min_lr_ratio = 0.7
decay_fraction = 0.9
[checkpoint]
interval = 3
minutes = 2.5
async = false
keep_last_n = 0
resume = 'none'
[eval]
interval = 2
batches = 0
[metrics]
log_interval = 1
[data]
format = 'bin'
dtype = 'uint32'
shuffle = false
)";
  const JobConfig job = parse(text + "val_path = '" + data + "'\n", essentials(folder));
  CHECK(job.run.seed == 9007199254740993);
  CHECK(parse(to_toml(job)) == job);
  REQUIRE(job.optimizer.groups.size() == 2);
  CHECK(job.optimizer.groups[0] == OptimizerGroup{.match = "*norm*", .lr_scale = 1, .weight_decay = 0});
  CHECK(job.optimizer.groups[1] ==
        OptimizerGroup{.match = "embedding", .lr_scale = 3, .weight_decay = std::nullopt});
  const JobConfig weighted =
      parse("[distributed]\npp = 2\npp_embedding_weight = 0.5\npp_head_weight = 2\n", essentials(folder));
  CHECK(parse(to_toml(weighted)) == weighted);
}

TEST_CASE("configs/reference.toml is what the table of options says") {
  const std::string path = pptrain::test::source_dir().string() + "/configs/reference.toml";
  INFO("To regenerate it: pptrain config --reference > configs/reference.toml");
  CHECK(read_shipped(path) == reference_toml());
}

TEST_CASE("configs/schema.json is what the table of options says") {
  const std::string path = pptrain::test::source_dir().string() + "/configs/schema.json";
  INFO("To regenerate it: pptrain config --schema > configs/schema.json");
  CHECK(read_shipped(path) == json_schema());
}

TEST_CASE("the reference has every key with its default") {
  const Folder folder;
  const JobConfig job = parse(reference_toml(), essentials(folder));
  CHECK(job == parse("", essentials(folder)));
  for (const Option& option : options()) {
    INFO(option.name());
    CHECK(reference_toml().find("\n" + option.key + " = ") +
              reference_toml().find("\n# " + option.key + " = ") !=
          2 * std::string::npos);
  }
  CHECK_THAT(reference_toml(), contains_text("\n# [[optimizer.groups]]\n"));
  CHECK_THAT(reference_toml(), contains_text("\n# match = \"...\"\n"));
}

TEST_CASE("the schema has every option, and the defaults satisfy it") {
  const nlohmann::json schema = nlohmann::json::parse(json_schema());
  CHECK(schema.at("$schema") == "http://json-schema.org/draft-07/schema#");
  CHECK(schema.at("additionalProperties") == false);
  CHECK(schema.at("required") == nlohmann::json{"train", "data"});
  for (const Option& option : options()) {
    INFO(option.name());
    std::string section = option.section;  // "data.chat" lies in "data"
    if (const size_t dot = section.find('.'); dot != std::string::npos)
      section.replace(dot, 1, "/properties/");
    const std::string pointer = "/properties/" + section + "/properties/" + option.key;
    const nlohmann::json& entry = schema.at(nlohmann::json::json_pointer(pointer));
    CHECK(!entry.at("description").get<std::string>().empty());
    CHECK(entry.contains("default") == (!option.is_required && toml_value(option, JobConfig()).has_value()));
    if (entry.contains("default") && entry.contains("minimum") && entry.at("type") != "array") {
      CHECK(entry.at("default") >= entry.at("minimum"));
    }
  }
  const auto& train = schema.at("properties").at("train");
  CHECK(train.at("required") == nlohmann::json{"seq_len"});
  CHECK(train.at("properties").at("dtype").at("anyOf").at(0).at("enum") == nlohmann::json{"bf16", "fp32"});
  const auto& betas = schema.at("properties").at("optimizer").at("properties").at("betas");
  CHECK(betas.at("minItems") == 2);
  CHECK(betas.at("maxItems") == 2);
  CHECK(betas.at("items").at("exclusiveMaximum") == 1.0);
  const auto& groups = schema.at("properties").at("optimizer").at("properties").at("groups");
  CHECK(groups.at("type") == "array");
  CHECK(groups.at("items").at("required") == nlohmann::json{"match"});
  CHECK(groups.at("items").at("additionalProperties") == false);
  CHECK(groups.at("items").at("properties").at("lr_scale").at("default") == 1.0);
  const auto& split = schema.at("properties").at("distributed").at("properties").at("pp_split");
  CHECK(split.at("oneOf").at(0).at("anyOf").at(0).at("enum") == nlohmann::json{"even", "cost"});
  CHECK(split.at("oneOf").at(0).at("anyOf").at(1) == nlohmann::json{{"type", "string"}});
  CHECK(split.at("oneOf").at(1).at("items").at("maximum") == 65536);
  CHECK(split.at("default") == "even");
}

TEST_CASE("edit distance counts swaps of neighbours as one") {
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("steps", "steps") == 0);
  CHECK(edit_distance("STEPS", "steps") == 0);
  CHECK(edit_distance("setps", "steps") == 1);
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("bfloat16", "bf16") == 4);
  const std::vector<std::string> names = {"alpha", "beta"};
  CHECK(nearest("betta", names) == "beta");
  CHECK(nearest("x", {}) == "");
  CHECK(nearest("gemma", names) == "");
  CHECK(nearest("gemma", std::vector<std::string>{"llama"}) == "");
  CHECK(nearest("warmup", std::vector<std::string>{"steps", "warmup_steps"}) == "warmup_steps");
}
