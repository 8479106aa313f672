// Output made from the declarations that parse the command line: the commands as plain data, the shells'
// completion scripts, and the manual page.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Option.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::app {

// Possible values. There may be words and a kind of path; without either nothing is proposed.
struct Value {
  enum class Kind { text, file, folder, setting };  // setting: KEY=VALUE of --set

  Kind kind = Kind::text;
  std::string ending;  // of file: ".toml"; "": any
  std::vector<std::string> words;

  bool empty() const { return kind == Kind::text && words.empty(); }
};

struct Argument {
  std::vector<std::string> names;  // "-o", "--output"; none: a positional
  std::string label;               // "FILE"
  std::string help;                // a phrase
  bool takes_value = false;
  bool repeats = false;
  Value value;
};

struct CommandTree {
  std::string name;
  std::string help;
  std::vector<Argument> options;
  std::vector<Argument> positionals;  // they take values of one kind
  std::vector<CommandTree> subcommands;
};

// An option's choices come from its CLI::IsMember or such_as(). Its label (option_text, or a positional's
// name) says whether it is a path: FILE, TRACE, PREFIX, WHICH, a word with an ending (JOB.toml), DIR or RUN.
CommandTree read_command_tree(CLI::App& cli);

// The keys of the job, for --set: every option of core/config, in its order, under one name ("train.steps").
std::vector<Argument> read_job_keys();

// The first sentence, without its point.
std::string first_sentence(std::string_view text);

// --- The scripts: each is complete, and does not call pptrain when it runs.

// bash 4 or newer. Words that bash breaks at = and : (COMP_WORDBREAKS) are put together again.
std::string bash_completion(const CommandTree& program, std::span<const Argument> keys);

// The same, run by zsh's bashcompinit. As a file of $fpath, or sourced after compinit.
std::string zsh_completion(const CommandTree& program, std::span<const Argument> keys);

std::string fish_completion(const CommandTree& program, std::span<const Argument> keys);

// `text` as one word of the shell, single quotes included. Only fish reads backslashes in them.
std::string single_quoted(const std::string& text, bool for_fish = false);

// --- The manual page.

// What an option does and its default, as --help and the manual page show it.
std::string help_with_default(const CLI::Option& option);

// pptrain(1) in roff with the macros of man(7). `version`: "pptrain 1.2.3".
std::string man_page(const CLI::App& cli, const std::string& version);

}  // namespace pptrain::app
