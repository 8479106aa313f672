// pptrain diff and bisect
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/compare/checkpoint_difference.h"
#include "app/compare/run_difference.h"
#include "app/report/run_data.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::app {

namespace {

struct DiffArguments {
  std::string a, b;  // checkpoints, or folders with some
  bool state = false;
  bool json = false;
};

struct BisectArguments {
  std::string a, b;  // folders of runs
  bool json = false;
};

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// As diff(1): 1 means that something differs, so every failure is a 2.
template <typename Body>
int exits_as_diff(const Body& body) {
  try {
    log_to_stderr();
    return body() ? 0 : 1;
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

void print_json(const Json& json) {
  fmt::print("{}\n", one_line(json));
}

std::string describe(const StoredElement& element) {
  const std::string rank = element.rank ? fmt::format(", rank {}", *element.rank) : "";
  return fmt::format("{:.9g} ({}{})", element.value, element.file, rank);
}

std::string describe(const TensorDifference& tensor) {
  const std::string name = fmt::format("{}: {}", tensor.file, tensor.name);
  if (!tensor.mismatch.empty()) return fmt::format("{} {}\n", name, tensor.mismatch);
  return fmt::format(
      "{} {}: {} of {} elements differ\n"
      "  the first is {}: A {}, B {}\n"
      "  largest difference {:.3g}, relative {:.3g}; norms {:.9g} and {:.9g}\n",
      name, tensor.shape, tensor.differing, tensor.elements, tensor.index, describe(tensor.a),
      describe(tensor.b), tensor.largest_absolute, tensor.largest_relative, tensor.norm_a, tensor.norm_b);
}

Json to_json(const StoredElement& element) {
  Json json{{"value", element.value}, {"file", element.file}};
  if (element.rank) json["rank"] = *element.rank;
  return json;
}

Json to_json(const TensorDifference& tensor) {
  Json json{{"file", tensor.file}, {"name", tensor.name}, {"equal", tensor.is_equal()}};
  if (!tensor.mismatch.empty()) {
    json["mismatch"] = tensor.mismatch;
    return json;
  }
  json.update({{"shape", tensor.shape},
               {"elements", tensor.elements},
               {"differing", tensor.differing},
               {"norm_a", tensor.norm_a},
               {"norm_b", tensor.norm_b}});
  if (tensor.is_equal()) return json;
  json.update({{"largest_absolute", tensor.largest_absolute},
               {"largest_relative", tensor.largest_relative},
               {"index", tensor.index},
               {"a", to_json(tensor.a)},
               {"b", to_json(tensor.b)}});
  return json;
}

int64_t step_of(const fs::path& step_folder) {
  return checkpoint::read_manifest(step_folder).state.step;
}

// As JSON every tensor; as text those that differ, and their number. For two different steps only the number,
// since there differences are expected. Returns whether all are equal.
bool print_difference(const DiffArguments& arguments) {
  const fs::path a = find_checkpoint(arguments.a), b = find_checkpoint(arguments.b);
  const auto tensors = compare_checkpoints(a, b, arguments.state);
  const auto equal = static_cast<size_t>(std::ranges::count_if(tensors, &TensorDifference::is_equal));
  const int64_t step_a = step_of(a), step_b = step_of(b);
  if (arguments.json) {
    print_json({{"a", a.string()},
                {"b", b.string()},
                {"step_a", step_a},
                {"step_b", step_b},
                {"equal", equal == tensors.size()},
                {"tensors", [&] {
                   Json all = Json::array();
                   for (const TensorDifference& tensor : tensors) all.push_back(to_json(tensor));
                   return all;
                 }()}});
    return equal == tensors.size();
  }
  std::string text = fmt::format("A {}\nB {}\n", a.string(), b.string());
  if (step_a != step_b)
    text += fmt::format(
        "different steps: A is of step {}, B of step {}, so their weights differ. Give two checkpoints of "
        "one step to see which tensors differ, or ask pptrain bisect for the first step that differs; "
        "--json lists all tensors\n",
        step_a, step_b);
  for (const TensorDifference& tensor : tensors)
    if (!tensor.is_equal() && step_a == step_b) text += describe(tensor);
  text += fmt::format("{} tensors{}: {} equal, {} different", tensors.size(),
                      arguments.state ? "" : " (weights)", equal, tensors.size() - equal);
  fmt::print("{}\n", printable(text));
  return equal == tensors.size();
}

std::string describe(const StepComparison& steps) {
  if (steps.steps == 0) return "metrics      no step is recorded in both runs\n";
  const std::string range = fmt::format("metrics      steps {} to {}", steps.from, steps.to);
  if (!steps.differs) return fmt::format("{}: equal\n", range);
  std::string text = fmt::format("{}: step {} is the first that differs\n", range, *steps.differs);
  for (const FigureDifference& figure : steps.figures)
    text += fmt::format("             {}: A {}, B {}\n", figure.key, figure.a, figure.b);
  return text;
}

std::string describe(const CheckpointSearch& checkpoints) {
  if (checkpoints.common.empty()) return "checkpoints  no step has one in both runs\n";
  std::string text = fmt::format("checkpoints  of both runs: {}\n", fmt::join(checkpoints.common, ", "));
  if (checkpoints.equal) text += fmt::format("             step {} is equal\n", *checkpoints.equal);
  if (!checkpoints.differs) return text;
  return text +
         fmt::format("             step {} is the first that differs, in {} tensors; the first of them:\n{}",
                     *checkpoints.differs, checkpoints.tensors.size(), describe(checkpoints.tensors.front()));
}

// How to get the checkpoints that are missing to find the very step; "" if none is.
std::string advice(const BisectArguments& arguments, const StepComparison& steps,
                   const CheckpointSearch& checkpoints) {
  const bool known = checkpoints.equal && checkpoints.differs == *checkpoints.equal + 1;
  const bool harmless = steps.differs && checkpoints.equal >= *steps.differs && !checkpoints.differs;
  if (known || harmless || (!steps.differs && !checkpoints.differs)) return "";
  constexpr const char* every = "--set checkpoint.interval=1 --set checkpoint.keep_last_n=0";
  if (!checkpoints.equal)
    return fmt::format("No equal checkpoint lies before the difference: run both anew with {}\n", every);
  std::string text = "To see the step itself, repeat it from the equal checkpoint, then bisect the forks:\n";
  for (const std::string& given : {arguments.a, arguments.b}) {
    const fs::path run =
        fs::is_directory(given) ? fs::path(given + "/").parent_path() : fs::path(given).parent_path();
    const std::string fork = run.string() + ".fork";
    text += fmt::format("  pptrain fork {} --step {} --to {}\n  pptrain --config {} {}\n",
                        in_shell_quotes(run.string()), *checkpoints.equal, in_shell_quotes(fork),
                        in_shell_quotes(fork + "/job.toml"), every);
  }
  return text;
}

Json to_json(const StepComparison& steps) {
  Json json{{"compared", steps.steps}};
  if (!steps.differs) return json;
  json["differs"] = *steps.differs;
  for (const FigureDifference& figure : steps.figures) json["figures"][figure.key] = {figure.a, figure.b};
  return json;
}

Json to_json(const CheckpointSearch& checkpoints) {
  Json json{{"common", checkpoints.common}};
  if (checkpoints.equal) json["equal"] = *checkpoints.equal;
  if (!checkpoints.differs) return json;
  json["differs"] = *checkpoints.differs;
  for (const TensorDifference& tensor : checkpoints.tensors) json["tensors"].push_back(to_json(tensor));
  return json;
}

// Returns whether nothing differs. Throws UsageError if there is nothing to compare.
bool print_bisection(const BisectArguments& arguments) {
  const RunData a = read_run(arguments.a), b = read_run(arguments.b);
  const StepComparison steps = compare_steps(a, b);
  const CheckpointSearch checkpoints = search_checkpoints(a, b);
  if (steps.steps == 0 && checkpoints.common.empty())
    throw UsageError(fmt::format("{} and {} have no step in common", arguments.a, arguments.b));
  const bool equal = !steps.differs && !checkpoints.differs;
  const std::string found = origin(steps, checkpoints);
  if (arguments.json) {
    print_json({{"equal", equal},
                {"metrics", to_json(steps)},
                {"checkpoints", to_json(checkpoints)},
                {"origin", found}});
    return equal;
  }
  fmt::print("{}", printable(describe(steps) + describe(checkpoints) + (found.empty() ? "" : found + "\n") +
                             advice(arguments, steps, checkpoints)));
  return equal;
}

CLI::App* declare_diff(CLI::App& cli, DiffArguments& arguments) {
  CLI::App* diff = cli.add_subcommand("diff", "Compares two checkpoints tensor by tensor, bit by bit");
  const char* what = "A checkpoint of any layout, or a run's folder: its newest one";
  add_option(*diff, "A DIR", arguments.a, what)->required();
  add_option(*diff, "B DIR", arguments.b, what)->required();
  diff->add_flag("--state", arguments.state, "Also compares optimizer state");
  diff->add_flag("--json", arguments.json, "Prints one JSON object, including equal tensors");
  return diff;
}

// 0 equal, 1 different, 2 not known; so does bisect().
int diff(const DiffArguments& arguments) {
  return exits_as_diff([&] { return print_difference(arguments); });
}

CLI::App* declare_bisect(CLI::App& cli, BisectArguments& arguments) {
  CLI::App* app = cli.add_subcommand("bisect",
                                     "Finds the first step and tensor that differ between two runs that "
                                     "should be equal");
  for (const auto& [name, run] : {std::pair("A", &arguments.a), std::pair("B", &arguments.b)})
    app->add_option(name, *run, "A run's folder")->required()->option_text("RUN");
  app->add_flag("--json", arguments.json, "Prints one JSON object with all tensors that differ");
  return app;
}

int bisect(const BisectArguments& arguments) {
  return exits_as_diff([&] { return print_bisection(arguments); });
}

}  // namespace

void add_diff(CommandLine& line) {
  line.add(declare_diff, diff);
}

void add_bisect(CommandLine& line) {
  line.add(declare_bisect, bisect);
}

}  // namespace pptrain::app
