// metrics.jsonl, written. What lies there before a start: metrics_file.h.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "core/io/files.h"
#include "core/metrics/sinks.h"
#include "core/metrics/step_record.h"

namespace pptrain::metrics {

// A file of records that outlives a full disk: records that cannot be written wait in memory until there is
// room.
class PatientFile {
 public:
  // The record that tells of a gap: `reason` of the system, and how many records were lost in it. "": none is
  // written.
  using Note = std::function<std::string(const std::string& reason, int64_t lost)>;
  static constexpr size_t most_waiting = size_t{16} << 20;  // bytes

  // Appends to what lies there, or makes the file. Throws Error with the path, also where a link or no
  // regular file is in its place.
  explicit PatientFile(std::filesystem::path path, Note note = {}, size_t most = most_waiting);
  // Tries once more, and warns of what is lost.
  ~PatientFile();
  PatientFile(const PatientFile&) = delete;
  PatientFile& operator=(const PatientFile&) = delete;

  // Adds a record, whole or not at all. A failure is a warning, once until it is over. Beyond `most` bytes
  // the oldest waiting records are lost.
  void add(std::string_view record);

  const std::filesystem::path& path() const { return path_; }

 private:
  bool write_waiting();
  bool write_whole(std::string_view record);
  void report_failure();
  void report_end();

  std::filesystem::path path_;
  Note note_;
  size_t most_;
  FileDescriptor file_;
  uint64_t end_ = 0;  // of the last whole record, in bytes
  std::deque<std::string> waiting_;
  size_t waiting_bytes_ = 0;
  int64_t lost_ = 0;
  std::string reason_;  // of the failure that lasts; "": none does
};

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
