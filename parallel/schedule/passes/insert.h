// Actions put between those of a list.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "parallel/schedule/action.h"

namespace pptrain::schedule {

struct Inserted {
  size_t compute;  // a compute action of the list, by its number among them
  Action action;
};

// The list with each of `before` right before its compute action, and each of `after` behind its compute
// action and the sends that follow it. Both in ascending order of `compute`.
std::vector<Action> insert(const std::vector<Action>& list, std::span<const Inserted> before,
                           std::span<const Inserted> after);

}  // namespace pptrain::schedule
