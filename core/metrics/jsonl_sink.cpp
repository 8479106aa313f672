#include "core/metrics/jsonl_sink.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>

#include "core/metrics/record_json.h"

namespace pptrain::metrics {

JsonlSink::JsonlSink(const std::filesystem::path& file, const RunHeader& header)
    : step_(header.step),
      file_(file, [this](const std::string& reason, int64_t lost) { return note(reason, lost); }) {
  write(to_json(header));
}

void JsonlSink::step(const StepRecord& record) {
  step_ = record.step;
  write(to_json(record));
}

void JsonlSink::eval(const EvalRecord& record) {
  write(to_json(record));
}

void JsonlSink::write(const std::string& line) {
  file_.add(line + '\n');
}

std::string JsonlSink::note(const std::string& reason, int64_t lost) const {
  const std::string text = fmt::format("lines before this one were written late: {}{}", reason,
                                       lost > 0 ? fmt::format("; {} line(s) are lost", lost) : "");
  return nlohmann::json{{"step", step_}, {"note", text}}.dump() + '\n';
}

}  // namespace pptrain::metrics
