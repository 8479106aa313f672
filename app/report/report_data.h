// The data of a report's page, as one JSON object. Its form is in README.md.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "app/report/run_data.h"

namespace pptrain::app {

// --- Which points of a long curve are drawn, so that its spikes stay.

// Indices into `values`, ascending: all finite ones, or where these are more than `most` (at least 4), of
// each group of consecutive ones the smallest and the largest, beside the first and the last of all.
std::vector<size_t> thinned(std::span<const double> values, size_t most);

// Most points of one curve.
inline constexpr size_t most_points = 1500;

// Of runs in the order in which they are drawn.
nlohmann::ordered_json report_data(std::span<const RunData> runs);

// The keys that differ between jobs, each with its value in every run ("" where a run has no job): the first
// item of a row is the key.
std::vector<std::vector<std::string>> job_differences(std::span<const RunData> runs);

}  // namespace pptrain::app
