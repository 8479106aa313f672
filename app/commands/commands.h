// The subcommands: each has arguments, a function that declares them as a subcommand of `cli`, whose parsing
// fills them, and one that does the work and returns the exit code: 0 done, 1 run failed, 2 bad job or
// arguments, 3 stopped after saving.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/convert/convert.h"
#include "core/config/word.h"
#include "core/metrics/log_sinks.h"

namespace CLI {
class App;
}

namespace pptrain::app {
enum class PlanFormat { text, csv, json, svg, trace };
}  // namespace pptrain::app

template <>
inline constexpr std::array pptrain::config::words<pptrain::metrics::Color> =
    std::to_array<std::string_view>({"auto", "always", "never"});
template <>
inline constexpr std::array pptrain::config::words<pptrain::app::PlanFormat> =
    std::to_array<std::string_view>({"text", "csv", "json", "svg", "trace"});

namespace pptrain::app {

struct JobArguments {
  std::string config;            // TOML file
  std::string run;               // in its place: a run's folder
  std::vector<std::string> set;  // "section.key=value"
  int64_t world = 0;             // ranks, which dp_shard = -1 fills; 0: not given
};

struct CheckArguments : JobArguments {
  bool resolved = false;
};

struct TrainArguments : JobArguments {
  config::Word<metrics::Color> color = metrics::Color::automatic;
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
  double margin = 5;     // search: % of a rank's memory that stays free
  std::string write;     // search: file for the job of the row `pick`, from 1
  size_t pick = 1;
  double price = 0;  // of a rank's hour
};

struct EvalArguments : JobArguments {
  std::string checkpoint;  // a checkpoint, a run's folder or a Hugging Face directory; "": see load_weights
  int64_t batches = -1;    // over eval.batches; -1: that
  bool json = false;
};

struct GenerateArguments : JobArguments {
  std::string checkpoint;               // as EvalArguments'
  std::vector<std::string> prompts;     // text
  std::string prompts_file;             // a prompt a line; "-": standard input
  std::vector<std::string> prompt_ids;  // "1,2,3"
  std::optional<int64_t> max_tokens;    // none: 128, or as many as the positions allow
  bool greedy = false;
  double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int64_t top_k = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop;  // texts
  std::vector<int64_t> stop_ids;
  int64_t in_flight = 32;
  bool json = false;
};

// Of status, save and stop: a run that is under way, through its folder.
struct LiveArguments {
  std::string run;  // run.dir; for status also a folder of runs
  bool json = false;
  bool watch = false;   // status: again and again
  double wait_s = 600;  // for the answer of a run
  bool no_wait = false;
};

struct VerifyArguments {
  std::string checkpoint_dir;
};

struct DiffArguments {
  std::string a, b;  // checkpoints, or folders with some
  bool state = false;
  bool json = false;
};

struct BisectArguments {
  std::string a, b;  // folders of runs
  bool json = false;
};

struct ForkArguments {
  std::string run, to;          // folders
  std::optional<int64_t> step;  // nothing: the newest
};

struct TokenizeArguments {
  std::string tokenizer;  // tokenizer.json, or its folder
  std::string out;        // PREFIX of .bin and .idx
  std::string key;        // JSONL, Parquet
  std::string prompt_key, completion_key;
  std::string separator;  // between documents, with \n, \t and \\ for what they are in C
  std::string eos;        // a token, an id or "none"; empty: what the tokenizer's folder says
  config::Word<config::BadLines> bad_lines = config::BadLines::refuse;
  bool no_special = false;
  bool overwrite = false;
  int64_t threads = 0;  // 0: as many as there are cores
  std::vector<std::string> files;
};

struct CompletionArguments {
  CLI::App* program = nullptr;  // whose commands are completed
  std::string shell;            // bash | zsh | fish
};

struct ConfigArguments {
  bool reference = false;  // which is the default
  bool schema = false;
};

struct ReportArguments {
  std::vector<std::string> runs;  // folders of runs, or files like their metrics.jsonl
  std::string output;             // file; "": report.html in the only run's folder, else in this one
};

CLI::App* add_train(CLI::App& cli, TrainArguments& arguments);  // the program without a subcommand: `cli`
CLI::App* add_resume(CLI::App& cli, TrainArguments& arguments);
CLI::App* add_check(CLI::App& cli, CheckArguments& arguments);
CLI::App* add_plan(CLI::App& cli, PlanArguments& arguments);
CLI::App* add_eval(CLI::App& cli, EvalArguments& arguments);
CLI::App* add_generate(CLI::App& cli, GenerateArguments& arguments);
CLI::App* add_verify(CLI::App& cli, VerifyArguments& arguments);
CLI::App* add_diff(CLI::App& cli, DiffArguments& arguments);
CLI::App* add_bisect(CLI::App& cli, BisectArguments& arguments);
CLI::App* add_fork(CLI::App& cli, ForkArguments& arguments);
CLI::App* add_status(CLI::App& cli, LiveArguments& arguments);
CLI::App* add_save(CLI::App& cli, LiveArguments& arguments);
CLI::App* add_stop(CLI::App& cli, LiveArguments& arguments);
CLI::App* add_report(CLI::App& cli, ReportArguments& arguments);
CLI::App* add_convert(CLI::App& cli, ConvertArguments& arguments);
CLI::App* add_tokenize(CLI::App& cli, TokenizeArguments& arguments);
CLI::App* add_config(CLI::App& cli, ConfigArguments& arguments);
CLI::App* add_completion(CLI::App& cli, CompletionArguments& arguments);

int train(const TrainArguments& arguments);
int resume(const TrainArguments& arguments);
int eval(const EvalArguments& arguments);
int generate(const GenerateArguments& arguments);
// Replaces train() where the arguments are wrong: the ranks of a launch exchange `fault`, as they do with a
// fault of the job, and one prints it. Without a launcher it is thrown as UsageError.
int refuse(const std::string& fault);
int check(const CheckArguments& arguments);
int plan(const PlanArguments& arguments);
int verify(const VerifyArguments& arguments);
// 0 equal, 1 different, 2 cannot be told.
int diff(const DiffArguments& arguments);
int bisect(const BisectArguments& arguments);
int fork(const ForkArguments& arguments);
// 0 while the run is under way; 3 finished or stopped, 4 diverged, failed or dead, 1 unknown.
int status(const LiveArguments& arguments);
// 0 done, 1 refused, failed or not answered.
int save(const LiveArguments& arguments);
int stop(const LiveArguments& arguments);
int report(const ReportArguments& arguments);
int run_convert(const ConvertArguments& arguments);
int tokenize(const TokenizeArguments& arguments);
int print_keys(const ConfigArguments& arguments);
int print_completion(const CompletionArguments& arguments);

// The script of bash, zsh or fish that completes the commands of `program`.
std::string completion_script(CLI::App& program, const std::string& shell);

// Which commit the program was built from: "1a2b3c4d5e6f", or "1a2b3c4d5e6f, with changes"; "" where the
// sources were no git checkout. Defined in a file that the build writes, and which belongs to the program
// alone: a commit compiles nothing else anew.
const char* commit();

// What --version prints: "pptrain X.Y.Z", and below it what the program is made of and what this machine
// offers it. `commit`: of the checkout that it was built from; "": of none. Makes no CUDA context, and needs
// no GPU.
std::string version_text(const std::string& commit);

}  // namespace pptrain::app
