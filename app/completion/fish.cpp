#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <span>
#include <string>

#include "app/completion/completion.h"

namespace pptrain::app {
namespace {

constexpr const char* fish_head = R"(# fish completion of pptrain, made by: pptrain completion fish
#   pptrain completion fish | source                   in this shell
#   pptrain completion fish > ~/.config/fish/completions/pptrain.fish                   in all new ones

)";

constexpr const char* fish_body = R"(
function __pptrain_in  # true in the subcommand $argv[1]; without an argument, where there is none
  set -l words (commandline -opc)
  set -l command
  if set -q words[2]; and contains -- $words[2] $__pptrain_commands
    set command $words[2]
  end
  test "$command" = "$argv[1]"
end

function __pptrain_first  # true where the first argument is written
  test (count (commandline -opc)) -eq 1
end

function __pptrain_key_value  # __pptrain_key_value KEY TEXT KIND [WORD]...: KEY=VALUE for each value there may be
  for word in $argv[4..]
    echo $argv[1]=$word
  end
  # Where words are proposed, files come once a path is begun.
  if test $argv[3] = file; and begin; not set -q argv[4]; or string match -q '*/*' -- $argv[2]; end
    for path in $argv[2]*
      test -d $path; and set path $path/
      echo $argv[1]=$path
    end
  end
end

function __pptrain_setting  # KEY=VALUE of --set
  set -l token (commandline -ct | string replace -r -- '^--set=' '')
  set -l parts (string split -m 1 -- = "$token")
  if not set -q parts[2]
    __pptrain_keys
    return
  end
  __pptrain_values $parts
end

complete -c pptrain -f
)";

std::string phrase(const std::string& help) {
  return single_quoted(help, /*for_fish=*/true);
}

// What follows an option, as arguments of `complete`.
std::string takes(const Value& value) {
  const std::string words = fmt::format("{}", fmt::join(value.words, " "));
  const std::string proposed = words.empty() ? "" : " -a " + phrase(words);
  if (value.kind == Value::Kind::setting) return " -x -k -a '(__pptrain_setting)'";
  if (value.kind == Value::Kind::text) return " -x" + proposed;
  if (!value.ending.empty()) return fmt::format(" -x -k -a '(__fish_complete_suffix {})'", value.ending);
  if (value.kind == Value::Kind::folder) return " -x -a '(__fish_complete_directories)'" + proposed;
  return " -r -F" + proposed;
}

std::string option_line(const CommandTree& command, const Argument& option) {
  std::string out =
      fmt::format("complete -c pptrain -n '__pptrain_in{}{}'", command.name.empty() ? "" : " ", command.name);
  for (const std::string& name : option.names)
    out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  if (option.takes_value) out += takes(option.value);
  return out + " -d " + phrase(option.help) + "\n";
}

std::string command_lines(const CommandTree& command) {
  std::string out;
  for (const Argument& option : command.options) out += option_line(command, option);
  if (command.positionals.empty()) return out;
  const Argument& operand = command.positionals.front();
  if (operand.value.empty()) return out;
  return out + fmt::format("complete -c pptrain -n '__pptrain_in {}'{} -d {}\n", command.name,
                           takes(operand.value), phrase(operand.help));
}

}  // namespace

std::string fish_completion(const CommandTree& program, std::span<const Argument> keys) {
  CommandTree root = program;
  root.name.clear();
  std::string commands, first, lines = command_lines(root), names, values;
  for (const CommandTree& command : program.subcommands) {
    commands += " " + command.name;
    first += fmt::format("complete -c pptrain -n __pptrain_first -a {} -d {}\n", command.name,
                         phrase(command.help));
    lines += command_lines(command);
  }
  for (const Argument& key : keys) {
    names += fmt::format("    {} {} \\\n", key.names.front() + "=", phrase(key.help));
    if (key.value.empty()) continue;
    values += fmt::format("    case {}\n      __pptrain_key_value $argv {}{}{}\n", key.names.front(),
                          key.value.kind == Value::Kind::file ? "file" : "text",
                          key.value.words.empty() ? "" : " ", fmt::join(key.value.words, " "));
  }
  names.resize(names.size() - 3);  // no line goes on
  std::string out = fish_head;
  out += fmt::format("set -g __pptrain_commands{}\n\n", commands);
  out += fmt::format(
      "function __pptrain_keys  # \"KEY=\", and behind a tab what it is\n  printf '%s\\t%s\\n' "
      "\\\n{}\nend\n\n",
      names);
  out += fmt::format(
      "function __pptrain_values  # __pptrain_values KEY TEXT\n  switch $argv[1]\n{}  end\nend\n", values);
  return out + fish_body + first + lines;
}

}  // namespace pptrain::app
