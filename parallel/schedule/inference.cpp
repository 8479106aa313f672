#include "parallel/schedule/generator_list.h"
#include "parallel/schedule/passes.h"

namespace pptrain::schedule {

void generate_inference(Schedule& schedule) {
  schedule = forward_only(schedule);
}

}  // namespace pptrain::schedule
