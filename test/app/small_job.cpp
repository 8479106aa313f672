#include "test/app/small_job.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "app/launch/run_ranks.h"
#include "app/resolve/load_plan.h"
#include "app/train/trainer.h"
#include "core/fault/shutdown.h"
#include "test/support/seed.h"

namespace pptrain::test {

std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

std::string small_job_text(const fs::path& data) {
  return fmt::format(R"([model]
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 8
vocab_size = 256
[train]
steps = 3
seq_len = 16
micro_batch_size = 2
grad_clip = 0.5
dtype = "fp32"
[data]
path = "{}"
val_fraction = 0.2
[optimizer]
lr = 1e-2
[lr_schedule]
warmup_steps = 2
[eval]
interval = 2
batches = 2
[checkpoint]
interval = 0
resume = "none"
[metrics]
peak_tflops = 1
)",
                     data.string());
}

Overrides longrope_up_to(int64_t length) {
  return {"model.arch=phi3",
          fmt::format("model.max_position_embeddings={}", 4 * length),
          "model.rope_scaling.rope_type=longrope",
          "model.rope_scaling.factor=4",
          fmt::format("model.rope_scaling.original_max_position_embeddings={}", length),
          "model.rope_scaling.short_factor=[1.0, 1.05, 1.1, 1.15]",
          "model.rope_scaling.long_factor=[1.0, 3.0, 5.0, 7.0]"};
}

Overrides dynamic_rope(int64_t length) {
  return {fmt::format("model.max_position_embeddings={}", length), "model.rope_scaling.rope_type=dynamic",
          "model.rope_scaling.factor=3", "model.rope_theta=500"};
}

JobResult read_result(const fs::path& run_dir, int exit_code) {
  JobResult result{.exit_code = exit_code, .metrics = {}, .checksums = {}};
  std::ifstream lines(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.contains("start")) continue;  // the process that wrote the next lines, and the time
    nlohmann::ordered_json kept;
    for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "skipped", "eval_loss",
                            "expert_load", "expert_imbalance", "microbatch_losses"}) {
      if (record.contains(key)) kept[key] = record[key];
    }
    result.metrics.push_back(kept.dump());
  }
  std::string latest;
  std::getline(std::ifstream(run_dir / "checkpoints" / "latest"), latest);
  std::ifstream file(run_dir / "checkpoints" / latest / "manifest.json");
  if (!file) return result;
  const auto manifest = nlohmann::json::parse(file);
  // The stage of a tensor depends on the layout; its name and contents must not.
  for (const auto& stored : manifest.at("files")) {
    for (const auto& [name, tensor] : stored.at("tensors").items()) {
      result.checksums[stored.at("file").get<std::string>() + "/" + name] +=
          tensor.at("xxh3_128").get<std::string>();
    }
  }
  return result;
}

int64_t steps_over(const JobResult& result, double limit) {
  return std::ranges::count_if(result.metrics, [&](const std::string& line) {
    const auto record = nlohmann::json::parse(line);
    return record.contains("grad_norm") && record.at("grad_norm").is_number() &&
           record.at("grad_norm").get<double>() > limit;
  });
}

app::Plan small_plan(const std::string& text, const fs::path& run_dir, Overrides overrides) {
  if (chosen_seed() != 0) overrides.insert(overrides.begin(), fmt::format("run.seed={}", seed(0)));
  overrides.push_back(fmt::format("run.dir=\"{}\"", run_dir.string()));
  spdlog::set_level(spdlog::level::warn);
  return app::parse_plan(text, "small.toml", overrides);
}

JobResult start_plan(const app::Plan& plan) {
  const fault::Shutdown shutdown;
  const int code =
      app::run_ranks(plan, [&](app::RunContext& context) { return app::train_to_end(context, shutdown); });
  return read_result(plan.job.run.dir, code);
}

JobResult run_plan(const app::Plan& plan) {
  if (plan.job.checkpoint.resume != "auto") fs::remove_all(plan.job.run.dir);
  return start_plan(plan);
}

JobResult run_small_job(const std::string& text, const fs::path& run_dir, const Overrides& overrides) {
  return run_plan(small_plan(text, run_dir, overrides));
}

}  // namespace pptrain::test
