// What lies in metrics.jsonl when a run starts, and how lines make room for those to come: nothing is
// deleted.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/metrics/step_record.h"

namespace pptrain::metrics {

// Hears of what was moved, and of lines that are no records.
using Report = std::function<void(const std::string&)>;

// Moves the lines of steps after `last`, which a run that goes on from there writes again, to the first free
// of metrics.1.jsonl, .2, ..., after a copy of the header that they belong to. So does a line that is no
// record (cut by a crash): it is reported with file and line, and a run goes on without it. Both files are
// complete and on the device before they get their names. Throws Error that names the file.
void set_aside_after(const std::filesystem::path& file, int64_t last, const Report& report);

// Moves the whole file there, if it tells of any step.
void set_aside_all(const std::filesystem::path& file, const Report& report);

// What metrics.jsonl says last, read beside the run that writes it.
struct MetricsTail {
  std::vector<StepRecord> steps;                 // the latest, the oldest first; a figure that is null is NaN
  std::optional<EvalRecord> evaluation;          // the latest that was found
  std::chrono::system_clock::time_point last{};  // of the latest line, a header's too; 1970: there is none

  // Whether the run has written a record at or after `since`.
  bool has_news_since(std::chrono::system_clock::time_point since) const { return last >= since; }
};

// Of whole lines of metrics.jsonl. What is no record (the last line, half written; a line cut by a crash) is
// passed over.
MetricsTail parse_metrics_tail(std::string_view lines);

// Reads from the file's end until `steps` steps and an evaluation are found, 16 MiB at most. An empty tail
// where there is no file. Throws Error where it cannot be read or is no regular file.
MetricsTail read_metrics_tail(const std::filesystem::path& file, size_t steps = 31);

}  // namespace pptrain::metrics
