// metrics.jsonl, written. What lies there before a start: metrics_file.h.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "core/metrics/run_header.h"
#include "core/metrics/sinks.h"

namespace pptrain::metrics {

// Adds an object a line, each handed to the system whole. Throws Error that names the file.
class JsonlSink : public Sink {
 public:
  // Adds `header` to what lies in `file`.
  JsonlSink(const std::filesystem::path& file, const RunHeader& header);
  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override;

 private:
  void write(const std::string& line);
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace pptrain::metrics
