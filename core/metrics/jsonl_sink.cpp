#include "core/metrics/jsonl_sink.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/metrics/step_record.h"

namespace pptrain::metrics {

PatientFile::PatientFile(std::filesystem::path path, Note note, size_t most)
    : path_(std::move(path)),
      note_(std::move(note)),
      most_(most),
      file_(io::open_own_file(path_, O_WRONLY | O_CREAT)) {
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) throw io::file_error("cannot read the size of", path_, errno);
  end_ = static_cast<uint64_t>(info.st_size);
}

PatientFile::~PatientFile() {
  if (reason_.empty() || write_waiting()) return;
  spdlog::warn("{}: {} record(s) are lost: {}", path_.string(), lost_ + static_cast<int64_t>(waiting_.size()),
               reason_);
}

void PatientFile::add(std::string_view record) {
  waiting_.emplace_back(record);
  waiting_bytes_ += record.size();
  if (write_waiting()) return;
  while (waiting_bytes_ > most_ && waiting_.size() > 1) {
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
    ++lost_;
  }
}

// Whether nothing waits any more.
bool PatientFile::write_waiting() {
  while (!waiting_.empty()) {
    if (!write_whole(waiting_.front())) {
      report_failure();
      return false;
    }
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
  report_end();
  return true;
}

// Half a record is overwritten by the next attempt.
bool PatientFile::write_whole(std::string_view record) {
  for (size_t done = 0; done < record.size();) {
    const ssize_t written =
        ::pwrite(file_.get(), record.data() + done, record.size() - done, static_cast<off_t>(end_ + done));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return false;
    done += static_cast<size_t>(written);
  }
  end_ += record.size();
  return true;
}

void PatientFile::report_failure() {
  const std::string reason = std::system_category().message(errno);
  if (!std::exchange(reason_, reason).empty()) return;
  spdlog::warn("cannot write {}: {}. Training goes on; the records wait in memory for room.", path_.string(),
               reason);
}

void PatientFile::report_end() {
  if (reason_.empty()) return;
  const std::string reason = std::exchange(reason_, {});
  const int64_t lost = std::exchange(lost_, 0);
  spdlog::warn("{} can be written again{}", path_.string(),
               lost > 0 ? ", without " + std::to_string(lost) + " record(s) that had no room in memory" : "");
  if (note_) add(note_(reason, lost));
}

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
