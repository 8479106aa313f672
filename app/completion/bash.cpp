#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <span>
#include <string>
#include <vector>

#include "app/completion/shells.h"

namespace pptrain::app {
namespace {

constexpr const char* bash_head = R"(# bash completion of pptrain, made by: pptrain completion bash
#   source <(pptrain completion bash)                  in this shell
#   pptrain completion bash > ~/.local/share/bash-completion/completions/pptrain        in all new ones

)";

// Shell functions share the local variables of their caller.
constexpr const char* bash_body = R"(
# Fills `words` with the words up to the cursor, put together again where bash has broken them at = and :.
_pptrain_words() {
  local i word before
  words=()
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    before=
    ((i < 2)) || before=${COMP_WORDS[i - 1]}
    if [[ -z $word && ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]]; then
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

_pptrain_paths() {  # _pptrain_paths KIND: KIND is file, folder, or the ending that files must have
  compopt -o filenames 2>/dev/null
  case $1 in
    file) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$value") ;;
    folder) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$value") ;;
    *) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$value"; compgen -f -X "!*$1" -- "$value") ;;
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
      compopt -o nospace 2>/dev/null
      ;;
    *) [[ $takes != *" "* ]] || proposed=${takes#* } ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$proposed" -- "$value")
  case ${takes%% *} in
    "" | setting | text) ;;
    *) _pptrain_paths "${takes%% *}" ;;
  esac
  # bash replaces only what is behind the last character at which it breaks words.
  raw=${COMP_WORDS[COMP_CWORD]}
  [[ $raw != [=:] ]] || raw=
  local whole=${words[${#words[@]} - 1]}
  local kept=${whole%"$raw"}
  for i in "${!COMPREPLY[@]}"; do
    COMPREPLY[i]=$fixed${COMPREPLY[i]}
    COMPREPLY[i]=${COMPREPLY[i]#"$kept"}
  done
}

complete -F _pptrain pptrain
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

}  // namespace

std::string bash_completion(const CommandTree& program, std::span<const JobKey> keys) {
  CommandTree root = program;
  root.name.clear();
  std::string commands, options = list_options(root), values = list_values(root), names, key_values;
  for (const CommandTree& command : program.subcommands) {
    commands += (commands.empty() ? "" : " ") + command.name;
    options += list_options(command);
    values += list_values(command);
  }
  for (const JobKey& key : keys) {
    names += (names.empty() ? "" : " ") + key.name + "=";
    key_values += case_line(key.name, "takes", describe(key.value));
  }
  std::string out = bash_head;
  out += fmt::format("_pptrain_commands={}\n_pptrain_keys={}\n\n", single_quoted(commands),
                     single_quoted(names));
  out += "# Sets `proposed` to the options of the subcommand $1.\n";
  out += fmt::format("_pptrain_options() {{\n  case $1 in\n{}  esac\n}}\n\n", options);
  out +=
      "# Sets `takes` to what follows the option $2 of the subcommand $1, or to what its operands are: a\n"
      "# kind, and words. Unset: nothing does.\n";
  out += fmt::format("_pptrain_option() {{\n  case \"$1 $2\" in\n{}  esac\n}}\n\n", values);
  out += "# Sets `takes` to what the key $1 of a job takes.\n";
  out += fmt::format("_pptrain_key() {{\n  takes=text\n  case $1 in\n{}  esac\n}}\n", key_values);
  return out + bash_body;
}

}  // namespace pptrain::app
