// pptrain: the command line, and the one place that catches.
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "app/commands/argument_hint.h"
#include "app/commands/commands.h"
#include "app/commands/tokenize.h"
#include "core/base/error.h"
#include "core/base/heap.h"
#include "core/io/mapped_region.h"
#include "core/kernels/out_of_memory.h"

namespace {

using pptrain::app::EvalArguments;
using pptrain::app::GenerateArguments;
using pptrain::app::JobArguments;
using pptrain::app::PlanArguments;
using pptrain::app::ReportArguments;
using pptrain::app::TrainArguments;

void add_world(CLI::App& command, JobArguments& arguments) {
  command
      .add_option("--world", arguments.world,
                  "Ranks of the job, which distributed.dp_shard = -1 fills; a launcher says it too")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
}

void add_job_options(CLI::App& command, JobArguments& arguments) {
  command.add_option("--config", arguments.config, "The job, a TOML file")
      ->required()
      ->option_text("JOB.toml");
  command.add_option("--set", arguments.set, "Overrides a key of the job: section.key=value (repeatable)")
      ->option_text("KEY=VALUE")
      ->expected(1)
      ->take_all();
  add_world(command, arguments);
}

void add_checkpoint(CLI::App& command, std::string& checkpoint) {
  command
      .add_option("--checkpoint", checkpoint,
                  "Weights: a checkpoint, a run's folder or a Hugging Face directory; default: the newest "
                  "checkpoint in run.dir, else model.hf_dir with model.init = \"hf\"")
      ->option_text("DIR");
}

CLI::App* add_eval(CLI::App& cli, EvalArguments& arguments) {
  CLI::App* eval = cli.add_subcommand("eval", "Loss of a model on the job's validation data, forward only");
  add_job_options(*eval, arguments);
  add_checkpoint(*eval, arguments.checkpoint);
  eval->add_option("--batches", arguments.batches,
                   "Batches, each of as many samples as a training step, over eval.batches; 0: all")
      ->option_text("N")
      ->check(CLI::NonNegativeNumber);
  eval->add_flag("--json", arguments.json, "One object of JSON");
  return eval;
}

void add_sampling(CLI::App& generate, GenerateArguments& a) {
  generate.add_option("--max-tokens", a.max_tokens, "Tokens to generate, of each prompt")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  generate.add_flag("--greedy", a.greedy, "Always the most probable token; as --temperature 0");
  generate.add_option("--temperature", a.temperature, "Divides the logits; 0: greedy")->option_text("X");
  generate.add_option("--top-k", a.top_k, "Only the k most probable tokens; 0: all")->option_text("K");
  generate
      .add_option("--top-p", a.top_p, "Only the most probable tokens that together have this probability")
      ->option_text("P");
  generate
      .add_option("--min-p", a.min_p, "Only tokens of at least this fraction of the best one's probability")
      ->option_text("P");
  generate
      .add_option("--repetition-penalty", a.repetition_penalty,
                  "Above 1: tokens that the sequence has already become less probable")
      ->option_text("X");
  generate
      .add_option("--seed", a.seed,
                  "Of the random numbers, which depend on it, the prompt's number and the place alone")
      ->option_text("N");
}

CLI::App* add_generate(CLI::App& cli, GenerateArguments& a) {
  CLI::App* generate = cli.add_subcommand("generate", "Text that goes on from prompts, through the pipeline");
  add_job_options(*generate, a);
  add_checkpoint(*generate, a.checkpoint);
  generate->add_option("--prompt", a.prompts, "A text to go on from (repeatable)")
      ->option_text("TEXT")
      ->expected(1)
      ->take_all();
  generate->add_option("--prompts", a.prompts_file, "A file of prompts, one a line")->option_text("FILE");
  generate->add_option("--prompt-ids", a.prompt_ids, "A prompt as token ids: 1,2,3 (repeatable)")
      ->option_text("IDS")
      ->expected(1)
      ->take_all();
  add_sampling(*generate, a);
  generate->add_option("--stop", a.stop, "A text that ends the output, and is no part of it (repeatable)")
      ->option_text("TEXT")
      ->expected(1)
      ->take_all();
  generate
      ->add_option("--stop-id", a.stop_ids,
                   "A token that ends the output (repeatable), beside data.document_end")
      ->option_text("ID")
      ->expected(1)
      ->take_all();
  generate->add_option("--in-flight", a.in_flight, "Prompts at a time; more go in waves. Bounds memory")
      ->option_text("N")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  generate->add_flag("--json", a.json, "An object of JSON a prompt, when all are done");
  return generate;
}

CLI::App* add_report(CLI::App& cli, ReportArguments& arguments) {
  CLI::App* report = cli.add_subcommand("report", "Runs as one page of HTML: curves, schedule, what differs");
  report
      ->add_option("RUN", arguments.runs,
                   "A run's folder, or a file like its metrics.jsonl; several are compared")
      ->required();
  report->add_option("-o,--output", arguments.output, "The page")->option_text("FILE")->capture_default_str();
  return report;
}

// What CLI11 says, and how it is written.
std::string describe_refusal(std::string text, int argc, char** argv) {
  if (text.ends_with('\n')) text.pop_back();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string hint = pptrain::app::argument_hint(arguments, text);
  return hint.empty() ? text : text + '\n' + hint;
}

bool is_given(const JobArguments& arguments) {
  return !arguments.config.empty() || !arguments.set.empty() || arguments.world > 0;
}

int run(int argc, char** argv) {
  CLI::App cli{
      "pptrain trains large language models with pipeline parallelism.\n\n"
      "  pptrain --config job.toml                 train, or resume, in one process\n"
      "  mpirun -np 8 pptrain --config job.toml    the same on 8 processes\n"};
  cli.set_version_flag("--version", std::string("pptrain ") + PPTRAIN_VERSION);
  cli.require_subcommand(0, 1);

  TrainArguments train_arguments;
  cli.add_option("--config", train_arguments.config, "The job, a TOML file")->option_text("JOB.toml");
  cli.add_option("--set", train_arguments.set, "Overrides a key of the job: section.key=value (repeatable)")
      ->option_text("KEY=VALUE")
      ->expected(1)
      ->take_all();

  add_world(cli, train_arguments);
  cli.add_option("--color", train_arguments.color,
                 "auto, always or never; auto: on a terminal, unless NO_COLOR is set")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->option_text("WHEN");

  JobArguments check_arguments;
  CLI::App* check = cli.add_subcommand(
      "check", "Validate a job and print it resolved, with parameters and bytes per stage");
  add_job_options(*check, check_arguments);

  PlanArguments plan_arguments;
  CLI::App* plan =
      cli.add_subcommand("plan", "Predict a job's step: timeline, bubble, time and memory of each rank");
  add_job_options(*plan, plan_arguments);
  CLI::Option* format =
      plan->add_option("--format", plan_arguments.format, "text, csv, json, svg, or trace (for Perfetto)")
          ->check(CLI::IsMember({"text", "csv", "json", "svg", "trace"}))
          ->capture_default_str();
  plan->add_flag("--actions", plan_arguments.actions,
                 "With --format json: also every action, with its times");
  plan->add_option("-o,--output", plan_arguments.output, "Write to FILE instead of standard output")
      ->option_text("FILE");

  CLI::Option* device = plan->add_option("--device", plan_arguments.costs,
                                         "Costs of a modelled device: cpu, a100, h100, h200, b200")
                            ->option_text("NAME");
  CLI::Option* profile =
      plan->add_option("--profile", plan_arguments.costs, "Costs measured by a run: its trace.json")
          ->option_text("TRACE")
          ->excludes(device);
  plan->add_option("--costs", plan_arguments.costs,
                   "measured: a second or two of passes on this machine, the default for a job on CPUs; "
                   "modelled: of the job's device, without looking at this machine; or as --device or "
                   "--profile")
      ->option_text("WHICH")
      ->excludes(device)
      ->excludes(profile);
  CLI::Option* search = plan->add_flag("--search", plan_arguments.search,
                                       "Rank schedules x stages per rank x microbatches x splits of the job; "
                                       "with --world N whole meshes of N ranks");
  plan->add_flag("--all", plan_arguments.all, "With --search: every row, not only the first ten");
  plan->add_option("--memory-gb", plan_arguments.memory_gb,
                   "With --search: GB (1e9 bytes) that a rank may take, over distributed.pp_memory_gb")
      ->option_text("GB")
      ->check(CLI::PositiveNumber);
  plan->add_option("--compare", plan_arguments.compare, "Put the prediction beside the trace of a run")
      ->option_text("TRACE")
      ->excludes(search)
      ->excludes(format);

  EvalArguments eval_arguments;
  CLI::App* eval = add_eval(cli, eval_arguments);
  GenerateArguments generate_arguments;
  CLI::App* generate = add_generate(cli, generate_arguments);

  std::string checkpoint_dir;
  CLI::App* verify = cli.add_subcommand("verify", "Check every byte of a checkpoint");
  verify->add_option("DIR", checkpoint_dir, "A step folder, or a folder of them")->required();

  ReportArguments report_arguments;
  CLI::App* report = add_report(cli, report_arguments);

  pptrain::app::TokenizeArguments tokenize_arguments;
  CLI::App* tokenize = pptrain::app::add_tokenize(cli, tokenize_arguments);

  bool reference = false, schema = false;
  CLI::App* config = cli.add_subcommand("config", "Describe every key of a job file");
  CLI::Option* as_toml = config->add_flag("--reference", reference, "As commented TOML (the default)");
  config->add_flag("--schema", schema, "As JSON schema")->excludes(as_toml);

  try {
    cli.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, text;
    const bool asked = cli.exit(error, out, text) == 0;  // --help, --version
    fmt::print("{}", out.str());
    if (asked) return 0;
    // Most subcommands are no work of several ranks: whoever runs one speaks for itself.
    const std::string refusal = describe_refusal(text.str(), argc, argv);
    const auto chosen = cli.get_subcommands();
    const bool of_ranks = chosen.empty() || chosen.front() == eval || chosen.front() == generate;
    if (!of_ranks) throw pptrain::UsageError(refusal);
    return pptrain::app::refuse(refusal);
  }
  if (!cli.get_subcommands().empty() && is_given(train_arguments)) {
    throw pptrain::UsageError(
        fmt::format("--config, --set and --world come after the subcommand: pptrain {} "
                    "--config job.toml",
                    cli.get_subcommands().front()->get_name()));
  }
  if (*check) return pptrain::app::check(check_arguments);
  if (*plan) return pptrain::app::plan(plan_arguments);
  if (*eval) return pptrain::app::eval(eval_arguments);
  if (*generate) return pptrain::app::generate(generate_arguments);
  if (*verify) return pptrain::app::verify(checkpoint_dir);
  if (*report) return pptrain::app::report(report_arguments);
  if (*tokenize) return pptrain::app::tokenize(tokenize_arguments);
  if (*config) return schema ? pptrain::app::print_schema() : pptrain::app::print_reference();
  if (train_arguments.config.empty())
    return pptrain::app::refuse("--config is required: pptrain --config job.toml (see --help)");
  return pptrain::app::train(train_arguments);
}

}  // namespace

int main(int argc, char** argv) {
  spdlog::set_pattern("%v");
  pptrain::io::report_file_faults();
  pptrain::keep_freed_memory();
  try {
    return run(argc, argv);
  } catch (const pptrain::UsageError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "pptrain: {}\n", pptrain::kernels::plain_message(error));
    return 1;
  }
}
