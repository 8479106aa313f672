#include "app/completion/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/config/options.h"

namespace pptrain::app {
namespace {

// "{a,b}", as CLI::IsMember describes itself; no words for other checks.
std::vector<std::string> words_of(std::string description) {
  std::vector<std::string> words;
  if (!description.starts_with('{') || !description.ends_with('}')) return words;
  std::istringstream list(description.substr(1, description.size() - 2));
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  return words;
}

std::vector<std::string> choices_of(CLI::Option& option) {
  std::vector<std::string> words;
  try {
    for (int i = 0;; ++i) {
      for (std::string& word : words_of(option.get_validator(i)->get_description())) words.push_back(word);
    }
  } catch (const CLI::OptionNotFound&) {  // CLI11 does not say how many there are
  }
  return words;
}

Value value_of(CLI::Option& option, const std::string& label) {
  constexpr std::array<std::string_view, 4> files = {"FILE", "TRACE", "PREFIX", "WHICH"};
  constexpr std::array<std::string_view, 2> folders = {"DIR", "RUN"};
  Value value{.kind = Value::Kind::text, .ending = "", .words = choices_of(option)};
  if (label == "KEY=VALUE") value.kind = Value::Kind::setting;
  if (std::ranges::find(folders, label) != folders.end()) value.kind = Value::Kind::folder;
  const size_t point = label.rfind('.');
  if (point != std::string::npos) value.ending = label.substr(point);
  if (!value.ending.empty() || std::ranges::find(files, label) != files.end()) value.kind = Value::Kind::file;
  return value;
}

Argument read_argument(CLI::Option& option) {
  Argument argument;
  for (const std::string& name : option.get_snames()) argument.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) argument.names.push_back("--" + name);
  argument.label = option.get_option_text().empty() && option.get_positional() ? option.get_name(true)
                                                                               : option.get_option_text();
  argument.help = first_sentence(option.get_description());
  argument.takes_value = option.get_items_expected_max() > 0;
  argument.repeats = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll ||
                     option.get_items_expected_max() > 1;
  if (argument.takes_value) argument.value = value_of(option, argument.label);
  return argument;
}

bool is_text(const config::Option& option) {
  return std::holds_alternative<config::Access<std::string>>(option.target) ||
         std::holds_alternative<config::Access<std::vector<std::string>>>(option.target);
}

std::vector<std::string> words_of(const config::Option& option) {
  const bool is_bool = std::holds_alternative<config::Access<bool>>(option.target) ||
                       std::holds_alternative<config::Access<std::optional<bool>>>(option.target);
  if (is_bool) return {"true", "false"};
  return option.literals.empty() ? option.known_words : option.literals;
}

Argument job_key(const std::string& name, std::string_view meaning) {
  return {.names = {name},
          .label = {},
          .help = first_sentence(meaning),
          .takes_value = true,
          .repeats = false,
          .value = {}};
}

}  // namespace

std::string first_sentence(std::string_view text) {
  const size_t line = text.find('\n');
  text = text.substr(0, line);
  for (size_t i = 0; i + 2 < text.size(); ++i) {
    // "1.5" and "job.toml" do not end a sentence, nor does "e.g. this".
    const bool next_begins = text[i + 1] == ' ' && text[i + 2] >= 'A' && text[i + 2] <= 'Z';
    if (text[i] == '.' && next_begins) return std::string(text.substr(0, i));
  }
  if (text.ends_with('.')) text.remove_suffix(1);
  return std::string(text);
}

CommandTree read_command_tree(CLI::App& cli) {
  CommandTree tree;
  tree.name = cli.get_name();
  tree.help = first_sentence(cli.get_description());
  for (CLI::Option* option : cli.get_options([](CLI::Option*) { return true; })) {
    Argument argument = read_argument(*option);
    (argument.names.empty() ? tree.positionals : tree.options).push_back(std::move(argument));
  }
  for (CLI::App* subcommand : cli.get_subcommands([](CLI::App*) { return true; }))
    tree.subcommands.push_back(read_command_tree(*subcommand));
  return tree;
}

std::vector<Argument> read_job_keys() {
  std::vector<Argument> keys;
  for (const config::Option& option : config::options()) {
    Argument key = job_key(option.name(), option.meaning);
    key.value.words = words_of(option);
    // Most text options of a job name a file or a folder.
    if (is_text(option) && option.literals.empty()) key.value.kind = Value::Kind::file;
    keys.push_back(std::move(key));
  }
  for (const config::TableList& list : config::table_lists())
    keys.push_back(job_key(list.section, list.meaning));
  return keys;
}

std::string single_quoted(const std::string& text, bool for_fish) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += for_fish ? "\\'" : "'\\''";
    } else {
      if (c == '\\' && for_fish) out += '\\';
      out += c;
    }
  }
  return out + "'";
}

}  // namespace pptrain::app
