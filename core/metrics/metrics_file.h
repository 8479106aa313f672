// metrics.jsonl: written, made ready for a start (lines make room for those to come, nothing is deleted), and
// read while the run writes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

  // Appends to what lies there, or makes the file. Throws Error with the path, also if a link or no regular
  // file is in its place.
  explicit PatientFile(std::filesystem::path path, Note note = {}, size_t most = most_waiting);
  // Tries once more, and warns of what is lost.
  ~PatientFile();
  PatientFile(const PatientFile&) = delete;
  PatientFile& operator=(const PatientFile&) = delete;

  // Adds a record, whole or not at all. A failure is a warning, once until it is over. Beyond `most` bytes
  // the oldest waiting records are lost.
  void add(std::string_view record);

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

// Adds an object a line, each handed to the system whole. If the disk is full, lines wait in memory, and a
// line {"step", "note"} tells of it afterwards (PatientFile).
//
// Adds `header` to the content of `file`. Throws Error that names the file if it cannot be opened.
std::unique_ptr<Sink> make_jsonl_sink(const std::filesystem::path& file, const RunHeader& header);

// Is told what was moved, and about lines that are no records.
using Report = std::function<void(const std::string&)>;

// Where set_aside_after puts lines: metrics.repeated.jsonl.
std::filesystem::path repeated_steps(const std::filesystem::path& file);

// Moves the lines of steps after `last`, which a run that goes on from there writes again, to the end of
// repeated_steps(file), after a copy of the header that they belong to. So does a line that is no record (cut
// by a crash): it is reported with file and line, and a run goes on without it. Both files are complete and
// on the device before they get their names. Throws Error that names the file.
void set_aside_after(const std::filesystem::path& file, int64_t last, const Report& report);

// Moves the whole file there, if it tells of any step.
void set_aside_all(const std::filesystem::path& file, const Report& report);

// The latest records of metrics.jsonl, read while the run writes it.
struct MetricsTail {
  std::vector<StepRecord> steps;                 // the latest, the oldest first; a figure that is null is NaN
  std::optional<EvalRecord> evaluation;          // the latest that was found
  std::chrono::system_clock::time_point last{};  // of the latest line, a header's too; 1970: there is none
};

// From whole lines of metrics.jsonl. What is no record (the last line, half written; a line cut by a crash)
// is passed over.
MetricsTail parse_metrics_tail(std::string_view lines);

// Reads from the file's end until `steps` steps and an evaluation are found, 16 MiB at most. An empty tail if
// there is no file. Throws Error if it cannot be read or is no regular file.
MetricsTail read_metrics_tail(const std::filesystem::path& file, size_t steps = 31);

}  // namespace pptrain::metrics
