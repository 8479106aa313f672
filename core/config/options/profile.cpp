// The options of [profile].
#include <vector>

#include "core/config/options/sections.h"

namespace pptrain::config {

void add_profile(std::vector<Option>& options) {
  SectionFields<ProfileSection> profile(
      options, "profile", [](JobConfig& j) -> ProfileSection& { return j.profile; }, Effect::none);
  const auto trace = profile.only_with("profile.trace", {"true"});
  profile("trace", &ProfileSection::trace,
          "Writes a timeline of all ranks over some steps to trace.json in run.dir (for Perfetto or "
          "chrome://tracing).");
  trace("first_step", &ProfileSection::first_step,
        "First step traced, counted from 1 after each start or resume; the first is slower than the others.")
      .between(1, max_steps);
  trace("steps", &ProfileSection::steps, "Steps traced.").between(1, 1000);
}

}  // namespace pptrain::config
