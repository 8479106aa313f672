// Which points of a long curve are drawn, so that its spikes stay.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace pptrain::app {

// Indices into `values`, ascending: all finite ones, or where these are more than `most` (at least 4), of
// each group of consecutive ones the smallest and the largest, beside the first and the last of all.
std::vector<size_t> thinned(std::span<const double> values, size_t most);

}  // namespace pptrain::app
