#include <spdlog/fmt/fmt.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/completion/shells.h"

namespace pptrain::app {
namespace {

constexpr const char* zsh_head = R"~(#compdef pptrain
# zsh completion of pptrain, made by: pptrain completion zsh
#   source <(pptrain completion zsh)                   in this shell, after compinit
#   pptrain completion zsh > DIR/_pptrain              in all new ones, where DIR is one of $fpath

# _pptrain_value KIND [WORD]...: the words, and the paths of this kind; .toml and the like: files that end so.
_pptrain_value() {
  local kind=$1 result=1
  shift
  (( ! $# )) || { compadd -- "$@" && result=0 }
  case $kind in
    file) _files && result=0 ;;
    folder) _files -/ && result=0 ;;
    .*) _files -g "*$kind(-.)" && result=0 ;;
  esac
  return result
}

)~";

constexpr const char* zsh_body = R"(
# KEY=VALUE of --set.
_pptrain_setting() {
  if [[ $PREFIX == *=* ]]; then
    local key=${PREFIX%%=*}
    compset -P 1 '*='
    _pptrain_key_value $key
  else
    _describe -t keys 'key of the job' _pptrain_keys -S =
  fi
}

_pptrain() {
  local curcontext=$curcontext command=
  if (( CURRENT > 2 )) && [[ -n ${(M)_pptrain_commands:#${words[2]}:*} ]]; then
    command=$words[2]
    shift words
    (( CURRENT-- ))
  fi
  _pptrain_arguments "$command"
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _pptrain "$@"
else
  compdef _pptrain pptrain
fi
)";

std::string escape(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// ":FILE: _pptrain_value file": what _arguments says and does at a value.
std::string action(const Argument& argument) {
  const Value& value = argument.value;
  std::string call = " ";
  if (value.kind == Value::Kind::setting) {
    call = " _pptrain_setting";
  } else if (!value.empty()) {
    std::string kind = "text";
    if (value.kind == Value::Kind::folder) kind = "folder";
    if (value.kind == Value::Kind::file) kind = value.ending.empty() ? "file" : value.ending;
    call = " _pptrain_value " + kind;
    for (const std::string& word : value.words) call += " " + word;
  }
  const std::string label = argument.label.empty() ? "value" : argument.label;
  return fmt::format(":{}:{}", escape(label, ":\\"), escape(call, ":\\"));
}

std::string option_specs(const Argument& option) {
  std::string out, all;
  for (const std::string& name : option.names) all += (all.empty() ? "" : " ") + name;
  for (const std::string& name : option.names) {
    std::string spec = option.repeats ? "*" : option.names.size() > 1 ? fmt::format("({})", all) : "";
    spec += name;
    if (option.takes_value) spec += name.starts_with("--") ? "=" : "+";
    spec += fmt::format("[{}]", escape(option.help, "[]\\"));
    if (option.takes_value) spec += action(option);
    out += fmt::format("        {} \\\n", single_quoted(spec));
  }
  return out;
}

std::string arguments_case(const CommandTree& command, bool is_program) {
  std::string out =
      fmt::format("    {})\n      _arguments -s \\\n", single_quoted(is_program ? "" : command.name));
  for (const Argument& option : command.options) out += option_specs(option);
  for (const Argument& operand : command.positionals)
    out += fmt::format("        {} \\\n", single_quoted((operand.repeats ? "*" : "") + action(operand)));
  if (is_program)
    out += fmt::format("        {} \\\n",
                       single_quoted("1:command: _describe -t commands command _pptrain_commands"));
  out.resize(out.size() - 3);  // no line goes on
  return out + "\n      ;;\n";
}

std::string key_case(const JobKey& key) {
  const Value& value = key.value;
  if (value.empty()) return "";
  std::string call = value.kind == Value::Kind::file ? "file" : "text";
  for (const std::string& word : value.words) call += " " + word;
  return fmt::format("    {}) _pptrain_value {} ;;\n", key.name, call);
}

}  // namespace

std::string zsh_completion(const CommandTree& program, std::span<const JobKey> keys) {
  std::string commands, cases = arguments_case(program, true), names, key_values;
  for (const CommandTree& command : program.subcommands) {
    commands += fmt::format("  {}\n", single_quoted(command.name + ":" + escape(command.help, "\\")));
    cases += arguments_case(command, false);
  }
  for (const JobKey& key : keys) {
    names += fmt::format("  {}\n", single_quoted(key.name + ":" + escape(key.help, "\\")));
    key_values += key_case(key);
  }
  std::string out = zsh_head;
  out += fmt::format("typeset -ga _pptrain_commands _pptrain_keys\n_pptrain_commands=(\n{})\n", commands);
  out += fmt::format("_pptrain_keys=(\n{})\n\n", names);
  out += fmt::format("_pptrain_key_value() {{  # of the key $1\n  case $1 in\n{}  esac\n}}\n\n", key_values);
  out += fmt::format("_pptrain_arguments() {{  # of the subcommand $1\n  case $1 in\n{}  esac\n}}\n", cases);
  return out + zsh_body;
}

}  // namespace pptrain::app
