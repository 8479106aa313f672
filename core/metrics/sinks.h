// Where records go. Sinks never reach back into the trainer. Only rank 0 has any.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/metrics/step_record.h"

namespace pptrain::metrics {

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void step(const StepRecord& record) = 0;
  virtual void eval(const EvalRecord& record) = 0;
  // What the run does now instead of steps: "evaluating", "saving"; "" when steps go on.
  virtual void phase(std::string_view what) { (void)what; }
};

// While it lives, the sinks show that the run does `what`.
class PhaseNote {
 public:
  PhaseNote(const std::vector<std::unique_ptr<Sink>>& sinks, std::string_view what) : sinks_(sinks) {
    for (const auto& sink : sinks_) sink->phase(what);
  }
  ~PhaseNote() {
    for (const auto& sink : sinks_) sink->phase("");
  }
  PhaseNote(const PhaseNote&) = delete;
  PhaseNote& operator=(const PhaseNote&) = delete;

 private:
  const std::vector<std::unique_ptr<Sink>>& sinks_;
};

// One JSON object a line; floats with all their digits, null where not finite. Opening drops the lines of
// steps after `resumed_step`, which the resumed run will write again. Throws Error that names the file.
class JsonlSink : public Sink {
 public:
  JsonlSink(const std::filesystem::path& file, int64_t resumed_step);
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

std::string to_json(const StepRecord& record);
std::string to_json(const Bubble& bubble);  // {"bubble", "bubble_fill", ...}
std::string to_json(const EvalRecord& record);

}  // namespace pptrain::metrics
