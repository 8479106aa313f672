// What metrics.jsonl says last, read beside the run that writes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "core/metrics/step_record.h"

namespace pptrain::metrics {

struct MetricsTail {
  std::vector<StepRecord> steps;                 // the latest, the oldest first; a figure that is null is NaN
  std::optional<EvalRecord> evaluation;          // the latest that was found
  std::chrono::system_clock::time_point last{};  // of the latest line, a header's too; 1970: there is none

  // That the run has told anything at or after `since`.
  bool has_news_since(std::chrono::system_clock::time_point since) const { return last >= since; }
};

// Of whole lines of metrics.jsonl. What is no record (the last line, half written; a line cut by a crash) is
// passed over.
MetricsTail parse_metrics_tail(std::string_view lines);

// Reads from the file's end until `steps` steps and an evaluation are found, 16 MiB at most. An empty tail
// where there is no file. Throws Error where it cannot be read or is no regular file.
MetricsTail read_metrics_tail(const std::filesystem::path& file, size_t steps = 31);

}  // namespace pptrain::metrics
