#include "parallel/schedule/generators/generator_list.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {

// Forwards alone, on any number of stages per rank.
const Generator inference = {.name = "inference", .alias = "forwardonly", .generate = [](Schedule& schedule) {
                               schedule = forward_only(schedule);
                             }};

}  // namespace pptrain::schedule
