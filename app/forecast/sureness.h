// How sure a forecast is: the source of its costs, and how measured runs compared with such forecasts.
#pragma once

#include <string>

#include "app/forecast/cost_model.h"

namespace pptrain::app {

struct Sureness {
  std::string text;  // "modelled; links between GPUs never measured"
  // A run's step took between `least` and `most` times the predicted one, if there are comparisons; else 0.
  double least = 0, most = 0;

  bool has_range() const { return least > 0; }
  // If two forecasts differ by less than this factor, it is not known which is the faster.
  double tie() const { return has_range() ? most / least : 1; }
  // "Published runs took 1.17 to 1.55 times as long as planned: that is 6.66 s to 8.82 s"
  std::string describe_range(double step_time) const;
};

Sureness sureness_of(const CostSource& source, int world);

}  // namespace pptrain::app
