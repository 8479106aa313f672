// The table of every option of the job file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/config/field.h"

namespace pptrain::config {

// In the order in which users read them; options of one section lie together, a section before its
// subsections.
const std::vector<Option>& options();

// The lists of tables, which options() leaves out.
const std::vector<TableList>& table_lists();

// By full name ("optimizer.groups"); null if there is none.
const TableList* find_table_list(std::string_view section);

// Section names in that order: "run", "model", "model.rope_scaling", ...
const std::vector<std::string>& sections();

// By full name ("train.steps"); null if there is none.
const Option* find_option(std::string_view name);

// What the reference says about one key ("train.steps"), or about one section with its keys ("train"). Throws
// UsageError with the nearest names if there is neither.
std::string reference_of(std::string_view name);

}  // namespace pptrain::config
