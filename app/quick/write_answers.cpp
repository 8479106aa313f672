#include "app/quick/answers.h"

#include <spdlog/fmt/fmt.h>

#include "app/commands/commands.h"
#include "core/config/loader.h"

namespace pptrain::app {

std::string quick_answers_source(CLI::App& program, const std::string& version) {
  std::string entries;
  const auto literal = [](const std::string& text) { return fmt::format("R\"__text__({})__text__\"", text); };
  const auto add = [&](const std::string& arguments, const std::string& machine, const std::string& text) {
    entries += fmt::format("    {{\"{}\", {}, {}}},\n", arguments, literal(machine), literal(text));
  };
  for (const char* shell : {"bash", "fish", "zsh"})
    add(fmt::format("completion {}", shell), "", completion_script(program, shell));
  add("config", "", config::reference_toml());
  add("config --reference", "", config::reference_toml());
  add("config --schema", "", config::json_schema());
  const std::string machine = this_machine();
  if (!machine.empty()) add("--version", machine, version + '\n');
  return fmt::format(
      "// Written by pptrain_whole.\n#include \"app/quick/answers.h\"\n\nnamespace pptrain::app "
      "{{\nnamespace {{\n\nconstexpr QuickAnswer answers[] = {{\n{}}};\n\n}}  // "
      "namespace\n\nstd::span<const QuickAnswer> quick_answers() {{\n  return answers;\n}}\n\n}}  // "
      "namespace pptrain::app\n",
      entries);
}

}  // namespace pptrain::app
