#include "core/metrics/metrics_file.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/special_file.h"
#include "core/io/atomic_file.h"
#include "core/io/paths.h"

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

namespace {

class JsonlSink final : public Sink {
 public:
  JsonlSink(const std::filesystem::path& file, const RunHeader& header)
      : step_(header.step),
        file_(file, [this](const std::string& reason, int64_t lost) { return note(reason, lost); }) {
    write(to_json(header));
  }

  void step(const StepRecord& record) override {
    step_ = record.step;
    write(to_json(record));
  }
  void eval(const EvalRecord& record) override { write(to_json(record)); }

 private:
  void write(const std::string& line) { file_.add(line + '\n'); }

  std::string note(const std::string& reason, int64_t lost) const {
    const std::string text = fmt::format("lines before this one were written late: {}{}", reason,
                                         lost > 0 ? fmt::format("; {} line(s) are lost", lost) : "");
    return nlohmann::json{{"step", step_}, {"note", text}}.dump() + '\n';
  }

  int64_t step_ = 0;  // of the newest line
  PatientFile file_;
};

}  // namespace

std::unique_ptr<Sink> make_jsonl_sink(const std::filesystem::path& file, const RunHeader& header) {
  return std::make_unique<JsonlSink>(file, header);
}

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

enum class LineKind { header, record, bad };

struct Line {
  LineKind kind = LineKind::bad;
  int64_t step = 0;
};

Line classify(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return {};
  return {.kind = json.contains("start") ? LineKind::header : LineKind::record, .step = step->get<int64_t>()};
}

// Calls visit(text, line, number) for each line, the first being 1. Returns whether the last one is ended.
template <typename Visit>
bool each_line(const fs::path& file, const Visit& visit) {
  if (const std::string kind = special_file(file); !kind.empty())
    throw Error(fmt::format("'{}' is {}, not a file of metrics; move it away", file.string(), kind));
  std::ifstream in(file, std::ios::binary);
  bool ended = true;
  int64_t number = 0;
  for (std::string text; std::getline(in, text); ended = !in.eof()) visit(text, classify(text), ++number);
  if (in.bad() || !in.eof()) throw io::file_error("cannot read", file, errno);
  return ended;
}

bool absent(const fs::path& file) {
  std::error_code error;
  return !fs::exists(file, error) && !error;
}

bool stays(const Line& line, int64_t last) {
  return line.kind != LineKind::bad && line.step <= last;
}

// What there is to move.
struct Survey {
  int64_t moving = 0;
  int64_t bad = 0;
  int64_t first_bad = 0;  // its number
  int64_t records = 0;
  bool ended = true;  // the last line
};

Survey survey(const fs::path& file, int64_t last) {
  Survey found;
  found.ended = each_line(file, [&](const std::string&, const Line& line, int64_t number) {
    if (!stays(line, last)) ++found.moving;
    if (line.kind == LineKind::record) ++found.records;
    if (line.kind == LineKind::bad && found.bad++ == 0) found.first_bad = number;
  });
  return found;
}

class NewLines {
 public:
  explicit NewLines(const fs::path& target) : file_(target) {}

  void add_line(std::string_view line) {
    constexpr size_t piece = 1 << 20;
    waiting_.append(line).push_back('\n');
    if (waiting_.size() >= piece) flush();
  }

  void publish() {
    flush();
    file_.publish();
  }

 private:
  void flush() {
    file_.write(waiting_);
    waiting_.clear();
  }

  io::NewFile file_;
  std::string waiting_;
};

void divide(const fs::path& file, int64_t last, NewLines& kept, NewLines* moved) {
  std::string header;  // of the lines that follow
  bool any_moved = false;
  each_line(file, [&](const std::string& text, const Line& line, int64_t) {
    if (stays(line, last)) {
      if (line.kind == LineKind::header) header = text;
      return kept.add_line(text);
    }
    if (!any_moved && line.kind != LineKind::header && !header.empty()) moved->add_line(header);
    any_moved = true;
    moved->add_line(text);
  });
}

void report_bad(const fs::path& file, const Survey& found, const Report& report) {
  if (found.bad == 0) return;
  report(fmt::format("{}:{}: no record of a step (cut by a crash?){}", file.string(), found.first_bad,
                     found.bad > 1 ? fmt::format(", nor are {} lines after it", found.bad - 1) : ""));
}

}  // namespace

fs::path repeated_steps(const fs::path& file) {
  return file.parent_path() / (file.stem().string() + ".repeated" + file.extension().string());
}

void set_aside_after(const fs::path& file, int64_t last, const Report& report) {
  if (absent(file)) return;
  const Survey found = survey(file, last);
  report_bad(file, found, report);
  if (found.moving == 0 && found.ended) return;
  NewLines kept(file);
  if (found.moving > 0) {
    const fs::path aside = repeated_steps(file);
    NewLines moved(aside);
    if (!absent(aside))
      each_line(aside, [&](const std::string& text, const Line&, int64_t) { moved.add_line(text); });
    divide(file, last, kept, &moved);
    moved.publish();
    report(fmt::format("moved {} line{} of {} that are not of the run up to step {} to {}", found.moving,
                       found.moving == 1 ? "" : "s", file.string(), last, aside.string()));
  } else {
    divide(file, last, kept, nullptr);
  }
  kept.publish();
}

void set_aside_all(const fs::path& file, const Report& report) {
  if (absent(file)) return;
  const Survey found = survey(file, 0);
  if (found.records == 0 && found.bad == 0 && found.ended) return;
  report(fmt::format("{} of an earlier run: moved to {}", file.string(), io::set_aside(file).string()));
  if (!absent(repeated_steps(file))) io::set_aside(repeated_steps(file));
}

namespace {

double figure(const Json& json, const char* key) {
  const auto found = json.find(key);
  const bool known = found != json.end() && found->is_number();
  return known ? found->get<double>() : std::numeric_limits<double>::quiet_NaN();
}

int64_t count(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

StepRecord step_of(const Json& json, int64_t step) {
  const double save_time = figure(json, "save_time_s");
  return {.step = step,
          .loss = figure(json, "loss"),
          .grad_norm = figure(json, "grad_norm"),
          .lr = figure(json, "lr"),
          .tokens = count(json, "tokens"),
          .tokens_per_s = figure(json, "tokens_per_s"),
          .step_time_s = figure(json, "step_time_s"),
          .total_tokens = count(json, "total_tokens"),
          .epoch = figure(json, "epoch"),
          .save_time_s = std::isfinite(save_time) ? save_time : 0};
}

void add_line(std::string_view line, MetricsTail& tail) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return;
  std::chrono::system_clock::time_point time{};
  if (const auto text = json.find("time"); text != json.end() && text->is_string())
    time = parse_utc(text->get<std::string>()).value_or(time);
  tail.last = std::max(tail.last, time);
  if (json.contains("loss")) {
    tail.steps.push_back(step_of(json, step->get<int64_t>()));
    tail.steps.back().time = time;
  } else if (json.contains("eval_loss")) {
    tail.evaluation = EvalRecord{.step = step->get<int64_t>(),
                                 .loss = figure(json, "eval_loss"),
                                 .tokens = count(json, "eval_tokens"),
                                 .time_s = figure(json, "eval_time_s"),
                                 .time = time};
  }
}

}  // namespace

MetricsTail parse_metrics_tail(std::string_view lines) {
  MetricsTail tail;
  for (size_t end = 0; (end = lines.find('\n')) != std::string_view::npos; lines.remove_prefix(end + 1))
    add_line(lines.substr(0, end), tail);
  return tail;
}

MetricsTail read_metrics_tail(const std::filesystem::path& path, size_t steps) {
  constexpr uint64_t first_look = 1 << 18, last_look = 1 << 24;
  if (!io::is_there(path)) return {};
  const io::RegularFile file(path);
  for (uint64_t look = first_look;; look *= 4) {
    const uint64_t length = std::min(look, file.size());
    std::string text(length, '\0');
    file.read(file.size() - length, std::as_writable_bytes(std::span(text)));
    std::string_view lines = text;
    // The first line may be cut at its front.
    if (length < file.size()) lines.remove_prefix(std::min(lines.find('\n'), lines.size() - 1) + 1);
    MetricsTail tail = parse_metrics_tail(lines);
    const bool enough = tail.steps.size() >= steps && tail.evaluation;
    if (!enough && length < file.size() && look < last_look) continue;
    if (tail.steps.size() > steps)
      tail.steps.erase(tail.steps.begin(), tail.steps.end() - static_cast<std::ptrdiff_t>(steps));
    return tail;
  }
}

}  // namespace pptrain::metrics
