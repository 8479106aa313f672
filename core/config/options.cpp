#include "core/config/options.h"

#include <algorithm>

#include "core/config/options/sections.h"

namespace pptrain::config {
namespace {

std::vector<Option> declare_options() {
  std::vector<Option> options;
  for (const auto add :
       {add_run, add_model, add_rope_scaling, add_distributed, add_train, add_data, add_chat, add_optimizer,
        add_lora, add_lr_schedule, add_checkpoint, add_eval, add_metrics, add_profile})
    add(options);
  return options;
}

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> table = declare_options();
  return table;
}

const std::vector<TableList>& table_lists() {
  static const std::vector<TableList> lists = {data_source_tables(), optimizer_groups(), batch_steps()};
  return lists;
}

const TableList* find_table_list(std::string_view section) {
  const auto found = std::ranges::find(table_lists(), section, &TableList::section);
  return found == table_lists().end() ? nullptr : &*found;
}

const std::vector<std::string>& sections() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Option& option : options()) {
      if (result.empty() || result.back() != option.section) result.push_back(option.section);
    }
    return result;
  }();
  return names;
}

const Option* find_option(std::string_view name) {
  const auto found = std::ranges::find(options(), name, &Option::name);
  return found == options().end() ? nullptr : &*found;
}

}  // namespace pptrain::config
