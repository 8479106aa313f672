// metrics.jsonl, written. What lies there before a start: metrics_file.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/metrics/patient_file.h"
#include "core/metrics/run_header.h"
#include "core/metrics/sinks.h"

namespace pptrain::metrics {

// Adds an object a line, each handed to the system whole. Where the disk is full, lines wait in memory, and a
// line
// {"step", "note"} tells of it afterwards (patient_file.h).
class JsonlSink : public Sink {
 public:
  // Adds `header` to what lies in `file`. Throws Error that names the file where it cannot be opened.
  JsonlSink(const std::filesystem::path& file, const RunHeader& header);
  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override;

 private:
  void write(const std::string& line);
  std::string note(const std::string& reason, int64_t lost) const;

  int64_t step_ = 0;  // of the newest line
  PatientFile file_;
};

}  // namespace pptrain::metrics
