// The latest figures of a run as a file in Prometheus' text format, which the textfile collector of
// node_exporter reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "core/metrics/sinks.h"
#include "core/metrics/step_record.h"

namespace pptrain::metrics {

// Replaces `file` after each record, so that a reader never sees half of it. For the run in the folder `dir`,
// which is to reach `last_step`. so_far: what running_figures needs, before this start's first step. Throws
// Error if the file cannot be written now; a later failure is a warning.
std::unique_ptr<Sink> make_prometheus_sink(const std::filesystem::path& file, std::string dir,
                                           int64_t last_step, RunHeader header, StepRecord so_far);

}  // namespace pptrain::metrics
