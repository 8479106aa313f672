#include "app/completion/completion.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <sstream>
#include <string>
#include <string_view>

namespace pptrain::app {
namespace {

// `text` as roff prints it: no character of it is a command.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool begins_line = out.empty() || out.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

// Lines that begin with a blank stand as they are, the others are filled into paragraphs.
std::string paragraphs(const std::string& text) {
  std::string out;
  std::istringstream lines(text);
  bool is_example = false;
  for (std::string line; std::getline(lines, line);) {
    const bool begins_example = line.starts_with(' ');
    if (begins_example != is_example && !line.empty()) {
      out += begins_example ? ".nf\n" : ".fi\n";
      is_example = begins_example;
    }
    out += line.empty() ? ".PP\n" : escaped(line) + '\n';
  }
  return out + (is_example ? ".fi\n" : "");
}

// "-o, --output FILE" of an option, "RUN..." of a positional.
std::string heading(const CLI::Option& option) {
  if (option.get_positional()) {
    const bool repeats = option.get_items_expected_max() > 1;
    return fmt::format("\\fI{}\\fR{}", escaped(option.get_name(true)), repeats ? "..." : "");
  }
  std::string names;
  const auto add = [&](const std::string& name) {
    names += fmt::format("{}\\fB{}\\fR", names.empty() ? "" : ", ", escaped(name));
  };
  for (const std::string& name : option.get_snames()) add("-" + name);
  for (const std::string& name : option.get_lnames()) add("--" + name);
  if (option.get_items_expected_max() == 0) return names;
  const std::string label = option.get_option_text().empty() ? "WORD" : option.get_option_text();
  return fmt::format("{} \\fI{}\\fR", names, escaped(label));
}

std::string options_of(const CLI::App& command) {
  std::string out;
  for (const CLI::Option* option : command.get_options()) {
    out += fmt::format(".TP\n{}\n{}\n", heading(*option), escaped(help_with_default(*option)));
  }
  return out;
}

std::string synopsis(const CLI::App& command) {
  std::string out =
      command.get_name().empty() ? "\\fBpptrain\\fR" : fmt::format("\\fBpptrain {}\\fR", command.get_name());
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_required())
      out += " " + heading(*option);
    else if (option->get_positional())
      out += " [" + heading(*option) + "]";
  }
  return out + " [\\fIOPTION\\fR]...";
}

constexpr const char* man_end = R"(.SH EXIT STATUS
.TP
.B 0
Done.
.TP
.B 1
The run failed.
.TP
.B 2
The job or the arguments are wrong; nothing was started.
.TP
.B 3
A signal stopped the run after it had saved.
.PP
.B pptrain check
exits with 4 where the job is good, but would not start on this machine.
.B pptrain status
exits with 0 while the run is under way, 3 when it has finished or stopped, 4 when it has diverged, failed or been killed.
.SH FILES
A job is a TOML file.
.B pptrain config
prints every key of it with type, default, range and meaning; jobs to start from are installed in
.IR PREFIX/share/pptrain/configs .
.SH ENVIRONMENT
.TP
.B NO_COLOR
Turns colours off.
.TP
.B PPTRAIN_SECRET
The same random text (16 bytes or more) on all ranks of a launch: ranks that meet over TCP prove with it that they belong together.
)";

}  // namespace

std::string help_with_default(const CLI::Option& option) {
  const std::string value = option.get_default_str();
  if (value.empty()) return option.get_description();
  return fmt::format("{} (default: {})", option.get_description(), value);
}

std::string man_page(const CLI::App& cli, const std::string& version) {
  std::string out = fmt::format(".TH PPTRAIN 1 \"\" \"{}\" \"User Commands\"\n", escaped(version));
  out += ".SH NAME\npptrain \\- trains large language models with pipeline parallelism\n.SH SYNOPSIS\n";
  out += synopsis(cli) + '\n';
  const auto commands = cli.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : commands) out += ".br\n" + synopsis(*command) + '\n';
  out += ".SH DESCRIPTION\n" + paragraphs(cli.get_description()) + ".SH OPTIONS\n" + options_of(cli);
  out += ".SH COMMANDS\n";
  for (const CLI::App* command : commands) {
    out += fmt::format(".SS {}\n{}{}", synopsis(*command), paragraphs(command->get_description()),
                       options_of(*command));
    if (!command->get_footer().empty()) out += ".PP\n" + paragraphs(command->get_footer());
  }
  return out + man_end;
}

}  // namespace pptrain::app
