#include "core/data/loader_options.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"

namespace pptrain::data {

Packing parse_packing(const std::string& name) {
  if (name == "none") return Packing::none;
  if (name == "sequential") return Packing::sequential;
  if (name == "best_fit") return Packing::best_fit;
  throw UsageError(fmt::format("data.packing: '{}' is not one of none, sequential, best_fit", name));
}

Lengths parse_lengths(const std::string& name) {
  if (name == "fixed") return Lengths::fixed;
  if (name == "exact") return Lengths::exact;
  if (name == "padded") return Lengths::padded;
  throw UsageError(fmt::format("data.lengths: '{}' is not one of fixed, exact, padded", name));
}

}  // namespace pptrain::data
