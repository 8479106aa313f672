// The subcommands: each has arguments, a function that declares them as a subcommand of `cli`, whose parsing
// fills them, and one that does the work and returns the exit code: 0 done, 1 run failed, 2 bad job or
// arguments, 3 stopped after saving.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/word.h"

namespace CLI {
class App;
}

namespace pptrain::app {
enum class PlanFormat { text, csv, json, svg, trace };
}  // namespace pptrain::app

template <>
inline constexpr std::array pptrain::config::words<pptrain::app::PlanFormat> =
    std::to_array<std::string_view>({"text", "csv", "json", "svg", "trace"});

namespace pptrain::app {

struct JobArguments {
  std::string config;            // TOML file
  std::vector<std::string> set;  // "section.key=value"
  int64_t world = 0;             // ranks, which dp_shard = -1 fills; 0: not said
};

struct TrainArguments : JobArguments {
  std::string color = "auto";  // auto | always | never
};

struct PlanArguments : JobArguments {
  config::Word<PlanFormat> format = PlanFormat::text;
  bool actions = false;  // json: every action with its times too
  std::string output;    // file; empty: standard output
  // "measured", "modelled", a device's name or a trace, over distributed.pp_costs; empty: measured on a CPU
  std::string costs;
  std::string compare;   // a trace to put beside the prediction
  bool search = false;   // rank all layouts of the job; with `world`, of all meshes of so many ranks
  bool all = false;      // search: all rows
  double memory_gb = 0;  // search: GB a rank, over distributed.pp_memory_gb
};

struct EvalArguments : JobArguments {
  std::string checkpoint;  // a checkpoint, a run's folder or a Hugging Face directory; "": see load_weights
  int64_t batches = -1;    // over eval.batches; -1: that
  bool json = false;
};

struct GenerateArguments : JobArguments {
  std::string checkpoint;               // as EvalArguments'
  std::vector<std::string> prompts;     // text
  std::string prompts_file;             // a prompt a line
  std::vector<std::string> prompt_ids;  // "1,2,3"
  int64_t max_tokens = 128;
  bool greedy = false;
  double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int64_t top_k = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop;  // texts
  std::vector<int64_t> stop_ids;
  int64_t in_flight = 32;
  bool json = false;
};

struct VerifyArguments {
  std::string checkpoint_dir;
};

struct ConfigArguments {
  bool reference = false;  // which is the default
  bool schema = false;
};

struct ReportArguments {
  std::vector<std::string> runs;  // folders of runs, or files like their metrics.jsonl
  std::string output = "report.html";
};

CLI::App* add_train(CLI::App& cli, TrainArguments& arguments);  // the program without a subcommand: `cli`
CLI::App* add_check(CLI::App& cli, JobArguments& arguments);
CLI::App* add_plan(CLI::App& cli, PlanArguments& arguments);
CLI::App* add_eval(CLI::App& cli, EvalArguments& arguments);
CLI::App* add_generate(CLI::App& cli, GenerateArguments& arguments);
CLI::App* add_verify(CLI::App& cli, VerifyArguments& arguments);
CLI::App* add_report(CLI::App& cli, ReportArguments& arguments);
CLI::App* add_config(CLI::App& cli, ConfigArguments& arguments);

int train(const TrainArguments& arguments);
int eval(const EvalArguments& arguments);
int generate(const GenerateArguments& arguments);
// In place of train() where the arguments are wrong: `fault` is told to the other ranks of the launch, as a
// fault of the job would be, and said once. Without a launcher it is thrown as UsageError.
int refuse(const std::string& fault);
int check(const JobArguments& arguments);
int plan(const PlanArguments& arguments);
int verify(const VerifyArguments& arguments);
int report(const ReportArguments& arguments);
int print_keys(const ConfigArguments& arguments);

}  // namespace pptrain::app
