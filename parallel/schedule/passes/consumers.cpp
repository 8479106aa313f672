#include "parallel/schedule/passes/consumers.h"

namespace pptrain::schedule {

Consumers::Consumers(const Schedule& schedule)
    : s_(schedule), forward_(schedule.cells()), gradient_(schedule.cells()) {
  for (const auto& list : s_.actions) {
    uint32_t number = 0;
    for (const Action& action : list) {
      if (!is_compute(action.kind)) continue;
      for_each_part(action, [&](const Action& part) {
        const size_t cell = s_.cell(part.stage, part.microbatch);
        if (part.kind == ActionKind::forward) forward_[cell] = number;
        if (is_gradient(part.kind)) gradient_[cell] = number;
      });
      ++number;
    }
  }
}

}  // namespace pptrain::schedule
