#include "core/metrics/jsonl_sink.h"

#include <cerrno>

#include "core/io/file_descriptor.h"
#include "core/metrics/record_json.h"

namespace pptrain::metrics {

JsonlSink::JsonlSink(const std::filesystem::path& file, const RunHeader& header) : path_(file) {
  file_.reset(std::fopen(file.c_str(), "ae"));
  if (!file_) throw io::file_error("cannot write", path_, errno);
  write(to_json(header));
}

void JsonlSink::step(const StepRecord& record) {
  write(to_json(record));
}

void JsonlSink::eval(const EvalRecord& record) {
  write(to_json(record));
}

void JsonlSink::write(const std::string& line) {
  const std::string text = line + '\n';
  const bool ok =
      std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() && std::fflush(file_.get()) == 0;
  if (!ok) throw io::file_error("cannot write", path_, errno);
}

}  // namespace pptrain::metrics
