// The figures of a run as TensorBoard's event files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/io/output_file.h"
#include "core/metrics/run_header.h"
#include "core/metrics/sinks.h"

namespace pptrain::metrics {

class TensorboardSink : public Sink {
 public:
  // Makes a new file in `folder`, which is created: events.out.tfevents.TIME.HOST.PID.N, TIME later than
  // those of the files that are there, so that readers, which go by names, take it last. Where the start goes
  // on from a step, the file says that what others have of later steps counts no more. Each record is handed
  // to the system whole. Throws Error that names the file.
  TensorboardSink(const std::filesystem::path& folder, const RunHeader& header);

  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override;

  const std::filesystem::path& path() const { return file_->path(); }

 private:
  void write(const std::string& event);

  std::optional<io::OutputFile> file_;
};

}  // namespace pptrain::metrics
