// The data of a report's page, as one JSON object. Its form is in README.md.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "app/report/run_data.h"

namespace pptrain::app {

// Of runs in the order in which they are drawn.
nlohmann::ordered_json report_data(std::span<const RunData> runs);

}  // namespace pptrain::app
