#include "app/commands/command_line.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <sstream>

#include "app/commands/commands.h"
#include "app/completion/completion.h"
#include "core/base/error.h"
#include "core/config/nearest.h"
#include "core/config/options.h"

namespace pptrain::app {

namespace {

// The option meant by "train.steps", "steps" or "learning_rate"; empty if it is none.
std::string option_of(const std::string& name) {
  if (config::find_option(name)) return name;
  const size_t dot = name.rfind('.');
  const std::string section = dot == std::string::npos ? "" : name.substr(0, dot);
  const std::string key = dot == std::string::npos ? name : name.substr(dot + 1);
  if (const std::string alias = config::alias_of_key(section, key); !alias.empty()) return alias;
  const auto same = std::ranges::find(config::options(), key, &config::Option::key);
  if (same != config::options().end()) return same->name();
  return std::ranges::find(config::sections(), section) != config::sections().end() ? name : "";
}

// For "--train.steps=5", "--train.steps 5", or "train.steps=5" without --set before it.
std::optional<std::string> hint_of_key(std::span<const std::string> arguments, size_t i) {
  std::string name = arguments[i];
  const bool dashes = name.starts_with("--");
  if (dashes) name.erase(0, 2);
  const size_t equals = name.find('=');
  if (!dashes && (equals == std::string::npos || (i > 0 && arguments[i - 1] == "--set"))) return std::nullopt;
  std::string value = equals == std::string::npos ? "VALUE" : name.substr(equals + 1);
  if (equals == std::string::npos && i + 1 < arguments.size() && !arguments[i + 1].starts_with("-"))
    value = arguments[i + 1];
  const std::string option = option_of(name.substr(0, equals));
  if (option.empty()) return std::nullopt;
  return fmt::format("did you mean --set {}={}?", option, value);
}

}  // namespace

std::string argument_hint(std::span<const std::string> arguments, std::string_view refusal) {
  const bool unknown = refusal.find("not expected") != std::string_view::npos;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const bool follows = i > 0 && arguments[i - 1].starts_with("-");
    if (argument.ends_with(".toml") && !argument.starts_with("-") && !follows)
      return fmt::format("did you mean --config {}?", argument);
    if (!unknown || refusal.find(argument) == std::string_view::npos) continue;
    if (const auto hint = hint_of_key(arguments, i)) return *hint;
  }
  return "";
}

namespace {

// The option of `command` nearest to an unknown one, as a hint; "" if none is near.
std::string option_hint(const CLI::App& command, std::span<const std::string> arguments,
                        const std::string& refusal) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    if (!name.starts_with("--") || refusal.find(name) == std::string::npos) continue;
    if (std::ranges::find(names, name) != names.end()) continue;
    if (const std::string near = config::nearest(name, names); !near.empty())
      return fmt::format("did you mean {}?", near);
  }
  return "";
}

// CLI11's message, and how to write the arguments.
std::string describe_refusal(std::string text, const std::vector<std::string>& arguments,
                             const CLI::App& command) {
  if (text.ends_with('\n')) text.pop_back();
  std::string hint = option_hint(command, arguments, text);
  if (hint.empty()) hint = argument_hint(arguments, text);
  return hint.empty() ? text : text + '\n' + hint;
}

// Translates what users of other programs type: "help", "help plan", "train --config job.toml".
std::vector<std::string> in_our_words(std::vector<std::string> arguments) {
  if (arguments.empty() || (arguments.front() != "help" && arguments.front() != "train")) return arguments;
  const bool help = arguments.front() == "help";
  arguments.erase(arguments.begin());
  if (help) arguments.emplace_back("--help");
  return arguments;
}

bool names_job(const CLI::App& cli) {
  const auto names = {"--config", "--set", "--world"};
  return std::ranges::any_of(names, [&](const char* name) { return cli.get_option(name)->count() > 0; });
}

class HelpWithDefaults final : public CLI::Formatter {
 public:
  std::string make_option_desc(const CLI::Option* option) const override {
    return help_with_default(*option);
  }
};

}  // namespace

struct CommandLine::Command {
  const CLI::App* app = nullptr;
  std::function<int()> run;
  bool of_ranks = false;
};

CommandLine::CommandLine(const std::string& commit)
    : cli_(
          "pptrain trains large language models with pipeline parallelism.\n\n"
          "  pptrain --config job.toml                 train, or resume, in one process\n"
          "  mpirun -np 8 pptrain --config job.toml    the same on 8 processes\n") {
  cli_.formatter(std::make_shared<HelpWithDefaults>());  // which subcommands inherit
  cli_.set_version_flag(
      "-V,--version", [commit] { return version_text(commit); },
      "Shows what the program is built with and what this machine offers");
  cli_.require_subcommand(0, 1);
  // Every subcommand, as --help lists them.
  for (const auto add : {add_check, add_doctor, add_plan, add_resume, add_eval, add_generate, add_status,
                         add_save, add_stop, add_report, add_verify, add_diff, add_bisect, add_fork,
                         add_convert, add_tokenize, add_config, add_completion, add_train})
    add(*this);
}

CommandLine::~CommandLine() = default;

void CommandLine::add(const CLI::App* app, std::function<int()> run, bool of_ranks) {
  commands_.push_back({app, std::move(run), of_ranks});
}

const CommandLine::Command& CommandLine::chosen() const {
  const auto subcommands = cli_.get_subcommands();
  const CLI::App* app = subcommands.empty() ? &cli_ : subcommands.front();
  return *std::ranges::find(commands_, app, &Command::app);
}

int CommandLine::run(int argc, char** argv) {
  const std::vector<std::string> arguments = in_our_words({argv + 1, argv + argc});
  try {
    cli_.parse(
        std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
  } catch (const CLI::ParseError& error) {
    std::ostringstream out, text;
    const bool asked = cli_.exit(error, out, text) == 0;  // --help, --version
    fmt::print("{}", out.str());
    if (asked) return 0;
    // Most subcommands are not run by several ranks: each process prints its own refusal.
    const bool unknown =
        dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;  // CLI11 names them backwards
    const std::string what =
        unknown ? fmt::format("not expected: {}", fmt::join(cli_.remaining(/*recurse=*/true), " "))
                : text.str();
    const std::string refusal = describe_refusal(what, arguments, *chosen().app);
    if (!chosen().of_ranks) throw UsageError(refusal);
    return refuse(refusal);
  }
  if (!cli_.get_subcommands().empty() && names_job(cli_)) {
    throw UsageError(
        fmt::format("--config, --set and --world come after the subcommand: pptrain {} --config job.toml",
                    chosen().app->get_name()));
  }
  return chosen().run();
}

}  // namespace pptrain::app
