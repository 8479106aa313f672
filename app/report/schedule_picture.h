// The schedule of a run as a picture for its report.
#pragma once

#include <string>

#include "app/report/run_data.h"

namespace pptrain::app {

struct SchedulePicture {
  std::string svg;      // empty: there is none
  std::string caption;  // what it shows, or why there is none
};

// A step as it ran, of trace.json (profile.trace) in the run's folder; without one, a step as planned from
// the run's job, with modelled costs of its device.
SchedulePicture draw_schedule(const RunData& run);

}  // namespace pptrain::app
