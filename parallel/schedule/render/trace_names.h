// What Chrome traces call things, whether planned or measured.
#pragma once

#include <optional>
#include <string>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

const char* trace_category(ActionKind kind);  // "forward", "backward_input", ...

// The value that an action (not a pair) hands to another rank, and the one that it takes from one: "1F3" is
// what stage 1 makes of microbatch 3. Nothing where the value stays on its rank.
std::optional<std::string> value_sent(const Schedule& schedule, const Action& action);
std::optional<std::string> value_received(const Schedule& schedule, const Action& action);

}  // namespace pptrain::schedule
