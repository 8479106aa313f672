// The options of [lr_schedule].
#include <string>
#include <vector>

#include "core/config/options/sections.h"

namespace pptrain::config {

void add_lr_schedule(std::vector<Option>& options) {
  SectionFields<LrScheduleSection> schedule(options, "lr_schedule",
                                            [](JobConfig& j) -> LrScheduleSection& { return j.lr_schedule; });
  const std::string name = "lr_schedule.name";
  schedule("name", &LrScheduleSection::name,
           "Learning rate after the warm-up. wsd: constant, then falling over the last part of the run.")
      .one_of({"cosine", "linear", "wsd", "constant"});
  schedule("warmup_steps", &LrScheduleSection::warmup_steps,
           "Steps of the linear rise to optimizer.lr. auto: a twentieth of train.steps, at most 2000. A run "
           "with fewer steps never reaches optimizer.lr, and warns.")
      .between(0, max_steps)
      .unset_as("auto");
  schedule("min_lr_ratio", &LrScheduleSection::min_lr_ratio,
           "The last learning rate as a fraction of optimizer.lr.")
      .between(0, 1)
      .only_with(name, {"cosine", "linear", "wsd"});
  schedule("decay_fraction", &LrScheduleSection::decay_fraction,
           "Fraction of the run, at its end, in which the learning rate falls; one step at least.")
      .above_up_to(0, 1)
      .only_with(name, {"wsd"});
}

}  // namespace pptrain::config
