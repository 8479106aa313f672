// pptrain status, save and stop
#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/run/requests.h"
#include "app/run/run_status.h"
#include "core/base/text.h"
#include "core/fault/shutdown.h"
#include "core/metrics/log_sinks.h"

namespace pptrain::app {

namespace {

// For status, save and stop: access to a running run through its folder.
struct LiveArguments {
  std::string run;  // run.dir; for status also a folder of runs
  bool json = false;
  bool watch = false;   // status: again and again
  double wait_s = 600;  // for the answer of a run
  bool no_wait = false;
};

void add_run(CLI::App& command, LiveArguments& arguments) {
  command.add_option("RUN", arguments.run, "The run's folder: run.dir of its job")->required();
  command.add_flag("--json", arguments.json, "One JSON object per run");
}

CLI::App* add_request(CLI::App& cli, const char* name, const char* what, LiveArguments& arguments) {
  CLI::App* app = cli.add_subcommand(name, what);
  add_run(*app, arguments);
  CLI::Option* wait = add_option(*app, "--wait SECONDS", arguments.wait_s,
                                 "Seconds to wait for the answer, which comes after the step under way")
                          ->check(CLI::Range(0.0, 1e9))
                          ->capture_default_str();
  app->add_flag("--no-wait", arguments.no_wait, "Ask, and do not wait for the answer")->excludes(wait);
  return app;
}

std::string describe(const std::filesystem::path& run, const Answer& outcome) {
  std::string text = outcome.state;
  if (outcome.step > 0) text += fmt::format(" at step {}", outcome.step);
  if (!outcome.checkpoint.empty())
    text += fmt::format(": {}", (run / "checkpoints" / outcome.checkpoint).string());
  if (!outcome.message.empty()) text += fmt::format(" ({})", outcome.message);
  return printable(text);
}

std::string to_json(const std::filesystem::path& run, const Answer& outcome) {
  nlohmann::ordered_json json{{"run", run.string()}, {"state", outcome.state}};
  if (outcome.step > 0) json["step"] = outcome.step;
  if (!outcome.checkpoint.empty()) json["checkpoint"] = outcome.checkpoint;
  if (!outcome.message.empty()) json["message"] = outcome.message;
  return one_line(json);
}

int request(RequestKind kind, const LiveArguments& arguments) {
  const fault::Shutdown shutdown;  // after Ctrl-C the request is withdrawn
  const Answer outcome =
      ask(arguments.run, kind,
          {.patience = std::chrono::duration<double>(arguments.wait_s),
           .waits = !arguments.no_wait,
           .interrupted = [&] { return shutdown.requested(); },
           .progress = [](const std::string& line) { fmt::print(stderr, "{}\n", printable(line)); }});
  if (arguments.json) {
    fmt::print("{}\n", to_json(arguments.run, outcome));
  } else {
    fmt::print(outcome.done ? stdout : stderr, "{}\n",
               outcome.state == "refused" ? outcome.message : describe(arguments.run, outcome));
  }
  return outcome.done ? 0 : 1;
}

CLI::App* declare_status(CLI::App& cli, LiveArguments& arguments) {
  CLI::App* status = cli.add_subcommand("status", "State of a run, or of all runs in a folder");
  add_run(*status, arguments);
  status->add_flag("--watch", arguments.watch, "Look again every two seconds, until the run ends");
  return status;
}

CLI::App* declare_save(CLI::App& cli, LiveArguments& arguments) {
  return add_request(cli, "save", "Asks a run that is under way to save a checkpoint", arguments);
}

CLI::App* declare_stop(CLI::App& cli, LiveArguments& arguments) {
  return add_request(cli, "stop", "Asks a run that is under way to save and to end", arguments);
}

struct Look {
  std::string text;
  bool alive = false;  // the run, or one of several
  int exit_code = 0;
};

// At a run, or at a folder of runs, of which each has a line.
Look look(const LiveArguments& arguments) {
  Look all;
  const auto runs = runs_in(arguments.run);
  for (const std::filesystem::path& run : runs) {
    const RunStatus status = read_status(run);
    all.text += arguments.json ? status_json(run, status) : status_line(run, status);
    all.alive |= status.is_alive();
  }
  if (!runs.empty()) return all;
  const RunStatus status = read_status(arguments.run);
  return {.text = arguments.json ? status_json(arguments.run, status) : status_text(arguments.run, status),
          .alive = status.is_alive(),
          .exit_code = status_exit_code(status.phase)};
}

// That a terminal takes for it; each character counts as one column.
int rows(const std::string& text, int columns) {
  int rows = 0, length = 0;
  for (const char c : text) {
    if (c == '\n') {
      rows += std::max(1, (length + columns - 1) / columns);
      length = 0;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {  // the first byte of a character
      ++length;
    }
  }
  return rows;
}

// A run: 0 while it is running; 3 finished or stopped, 4 diverged, failed or dead, 1 unknown.
int status(const LiveArguments& arguments) {
  const std::optional<int> columns = arguments.json ? std::nullopt : metrics::terminal_columns();
  for (int above = 0;; std::this_thread::sleep_for(std::chrono::seconds(2))) {
    const Look seen = look(arguments);
    if (above > 0) fmt::print("\x1b[{}A\x1b[J", above);
    fmt::print("{}", seen.text);
    std::fflush(stdout);
    if (!arguments.watch || !seen.alive) return seen.exit_code;
    if (columns) above = rows(seen.text, *columns);
  }
}

// 0 done, 1 refused, failed or not answered; so does stop().
int save(const LiveArguments& arguments) {
  return request(RequestKind::save, arguments);
}

int stop(const LiveArguments& arguments) {
  return request(RequestKind::stop, arguments);
}

}  // namespace

void add_status(CommandLine& line) {
  line.add(declare_status, status);
}

void add_save(CommandLine& line) {
  line.add(declare_save, save);
}

void add_stop(CommandLine& line) {
  line.add(declare_stop, stop);
}

}  // namespace pptrain::app
