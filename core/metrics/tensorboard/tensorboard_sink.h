// The figures of a run as TensorBoard's event files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/metrics/jsonl_sink.h"
#include "core/metrics/sinks.h"
#include "core/metrics/step_record.h"

namespace pptrain::metrics {

class TensorboardSink : public Sink {
 public:
  // Makes a new file in `folder`, which is created: events.out.tfevents.TIME.HOST.PID.N, TIME later than
  // those of the files that are there, so that readers, which go by names, take it last. Where the start goes
  // on from a step, the file says that what others have of later steps counts no more. Each record is handed
  // to the system whole; where the disk is full, records wait in memory (patient_file.h). Throws Error that
  // names the file where it cannot be made.
  TensorboardSink(const std::filesystem::path& folder, const RunHeader& header);

  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override;

  const std::filesystem::path& path() const { return file_->path(); }

 private:
  void write(const std::string& event);

  std::optional<PatientFile> file_;
};

}  // namespace pptrain::metrics
