#include "parallel/schedule/generators/generator_list.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::schedule {

void generate_inference(Schedule& schedule) {
  schedule = forward_only(schedule);
}

}  // namespace pptrain::schedule
