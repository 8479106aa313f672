#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <span>
#include <string>
#include <vector>

#include "app/completion/completion.h"

namespace pptrain::app {
namespace {

// bashcompinit adds no blank after a completion (nospace) unless we do.
constexpr const char* zsh_head = R"(#compdef pptrain
# zsh completion of pptrain, made by: pptrain completion zsh
#   source <(pptrain completion zsh)                   in this shell, after compinit
#   pptrain completion zsh > DIR/_pptrain              in all new ones, where DIR is one of $fpath

autoload -Uz bashcompinit && bashcompinit

)";
constexpr const char* zsh_tail = R"(
complete -o nospace -F _pptrain pptrain
[[ $zsh_eval_context[-1] != loadautofunc ]] || _bash_complete -o nospace -F _pptrain
)";

constexpr const char* bash_head = R"(# bash completion of pptrain, made by: pptrain completion bash
#   source <(pptrain completion bash)                  in this shell
#   pptrain completion bash > ~/.local/share/bash-completion/completions/pptrain        in all new ones

)";

constexpr const char* bash_tail = R"(
complete -F _pptrain pptrain
)";

// Shell functions share the local variables of their caller. zsh runs them as sh would, and completes the end
// of PREFIX, while bash completes the last argument of compgen.
constexpr const char* body = R"(
# Fills `words` with the words up to the cursor, put together again where bash has broken them at = and :.
_pptrain_words() {
  local i word before
  words=()
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    before=
    ((i < 2)) || before=${COMP_WORDS[i - 1]}
    if [[ -z $word && ${COMP_LINE:0:$COMP_POINT} == *[[:space:]] ]]; then
      words+=("")  # a new word after a blank
    elif ((i > 1)) && [[ $word == [=:]* || $before == [=:] ]]; then
      words[${#words[@]} - 1]+=$word
    else
      words+=("$word")
    fi
  done
}

# Finds `takes`, and splits the current word into `fixed`, which stays, and `value`, which is completed.
_pptrain_place() {
  local last=$((${#words[@]} - 1)) name=
  fixed= takes= value=${words[last]}
  if [[ $value == --*=* ]]; then
    name=${value%%=*} fixed=$name= value=${value#*=}
  elif ((last > 1)) && [[ ${words[last - 1]} == -* ]]; then
    name=${words[last - 1]}
  fi
  [[ -z $name ]] || _pptrain_option "$command" "$name"
  if [[ -z $takes && $value != -* ]]; then
    _pptrain_option "$command" ""
  fi
  value=${value#[\'\"]}
  value=${value//\\/}
  if [[ $takes == setting && $value == *=* ]]; then
    fixed+=${value%%=*}=
    _pptrain_key "${value%%=*}"
    value=${value#*=}
  fi
}

_pptrain_add() {  # the lines of its input to COMPREPLY
  local line
  while IFS= read -r line; do [[ -z $line ]] || COMPREPLY+=("$line"); done
}

_pptrain_ending() {  # filenames or nospace, for bash
  [[ -n ${ZSH_VERSION-} ]] || compopt -o "$1" 2>/dev/null
}

_pptrain_end() {  # zsh has no compopt: puts a / or a blank behind COMPREPLY[i]
  case $takes in
    file* | folder* | .*) [[ ! -d ${COMPREPLY[i]} ]] || { COMPREPLY[i]+=/; return; } ;;
  esac
  [[ ${COMPREPLY[i]} == *= ]] || COMPREPLY[i]+=" "
}

_pptrain_paths() {  # _pptrain_paths KIND: KIND is file, folder, or the ending that files must have
  local IPREFIX= PREFIX=$value
  case $1 in
    file) compgen -f -- "$value" ;;
    folder) compgen -d -- "$value" ;;
    *)
      compgen -d -- "$value"
      compgen -f -X "!*$1" -- "$value"
      ;;
  esac
}

_pptrain() {
  local IFS=$' \t\n' command= fixed takes value proposed= raw i
  local -a words
  COMPREPLY=()
  _pptrain_words
  if ((${#words[@]} > 2)) && [[ " $_pptrain_commands " == *" ${words[1]} "* ]]; then
    command=${words[1]}
  fi
  _pptrain_place
  case $takes in
    "")
      _pptrain_options "$command"
      if ((${#words[@]} == 2)); then proposed="$_pptrain_commands $proposed"; fi
      ;;
    setting)
      proposed=$_pptrain_keys
      _pptrain_ending nospace
      ;;
    *) [[ $takes != *" "* ]] || proposed=${takes#* } ;;
  esac
  _pptrain_add < <(compgen -W "$proposed" -- "$value")
  case ${takes%% *} in
    "" | setting | text) ;;
    *)
      # Where words are proposed, files come once a path is begun.
      if [[ $takes != *" "* || $value == [./~]* || $value == */* ]]; then
        _pptrain_ending filenames
        _pptrain_add < <(_pptrain_paths "${takes%% *}")
      fi
      ;;
  esac
  # bash replaces only what is behind the last character at which it breaks words.
  raw=${COMP_WORDS[COMP_CWORD]}
  [[ $raw != [=:] ]] || raw=
  local whole=${words[${#words[@]} - 1]}
  local kept=${whole%"$raw"}
  for ((i = 0; i < ${#COMPREPLY[@]}; i++)); do
    [[ -z ${ZSH_VERSION-} ]] || _pptrain_end
    COMPREPLY[i]=$fixed${COMPREPLY[i]}
    COMPREPLY[i]=${COMPREPLY[i]#"$kept"}
  done
}
)";

// "text", "file", "folder", "setting" or ".toml", and the words.
std::string describe(const Value& value) {
  std::string text = "text";
  if (value.kind == Value::Kind::setting) text = "setting";
  if (value.kind == Value::Kind::folder) text = "folder";
  if (value.kind == Value::Kind::file) text = value.ending.empty() ? "file" : value.ending;
  return fmt::format("{}{}{}", text, value.words.empty() ? "" : " ", fmt::join(value.words, " "));
}

std::string case_line(const std::string& pattern, const std::string& variable, const std::string& value) {
  return fmt::format("    {}) {}={} ;;\n", pattern, variable, single_quoted(value));
}

std::string list_options(const CommandTree& command) {
  std::vector<std::string> names;
  for (const Argument& option : command.options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return case_line(single_quoted(command.name), "proposed", fmt::format("{}", fmt::join(names, " ")));
}

std::string list_values(const CommandTree& command) {
  std::string out;
  for (const Argument& option : command.options) {
    if (!option.takes_value) continue;
    for (const std::string& name : option.names)
      out += case_line(single_quoted(command.name + " " + name), "takes", describe(option.value));
  }
  if (!command.positionals.empty())
    out += case_line(single_quoted(command.name + " "), "takes", describe(command.positionals.front().value));
  return out;
}

std::string functions(const CommandTree& program, std::span<const Argument> keys) {
  CommandTree root = program;
  root.name.clear();
  std::string commands, options = list_options(root), values = list_values(root), names, key_values;
  for (const CommandTree& command : program.subcommands) {
    commands += (commands.empty() ? "" : " ") + command.name;
    options += list_options(command);
    values += list_values(command);
  }
  for (const Argument& key : keys) {
    names += (names.empty() ? "" : " ") + key.names.front() + "=";
    key_values += case_line(key.names.front(), "takes", describe(key.value));
  }
  std::string out = fmt::format("_pptrain_commands={}\n_pptrain_keys={}\n\n", single_quoted(commands),
                                single_quoted(names));
  out += "# Sets `proposed` to the options of the subcommand $1.\n";
  out += fmt::format("_pptrain_options() {{\n  case $1 in\n{}  esac\n}}\n\n", options);
  out +=
      "# Sets `takes` to what follows the option $2 of the subcommand $1, or to what its operands are: a\n"
      "# kind, and words. Unset: nothing does.\n";
  out += fmt::format("_pptrain_option() {{\n  case \"$1 $2\" in\n{}  esac\n}}\n\n", values);
  out += "# Sets `takes` to what the key $1 of a job takes.\n";
  out += fmt::format("_pptrain_key() {{\n  takes=text\n  case $1 in\n{}  esac\n}}\n", key_values);
  return out + body;
}

}  // namespace

std::string bash_completion(const CommandTree& program, std::span<const Argument> keys) {
  return bash_head + functions(program, keys) + bash_tail;
}

std::string zsh_completion(const CommandTree& program, std::span<const Argument> keys) {
  return zsh_head + functions(program, keys) + zsh_tail;
}

}  // namespace pptrain::app
