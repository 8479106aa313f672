#include "core/metrics/metrics_file.h"

#include <spdlog/fmt/fmt.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/base/special_file.h"
#include "core/io/atomic_file.h"
#include "core/io/file_descriptor.h"
#include "core/io/numbered_path.h"
#include "core/io/output_file.h"
#include "core/io/process_space.h"

namespace pptrain::metrics {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

enum class Kind { header, record, bad };

struct Line {
  Kind kind = Kind::bad;
  int64_t step = 0;
};

Line classify(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer()) return {};
  return {.kind = json.contains("start") ? Kind::header : Kind::record, .step = step->get<int64_t>()};
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
  return line.kind != Kind::bad && line.step <= last;
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
    if (line.kind == Kind::record) ++found.records;
    if (line.kind == Kind::bad && found.bad++ == 0) found.first_bad = number;
  });
  return found;
}

// A file that gets its name once it is complete and on the device.
class NewFile {
 public:
  explicit NewFile(const fs::path& target)
      : target_(target),
        temporary_(target.parent_path() /
                   fmt::format(".tmp_{}.{}", target.filename().string(), io::unique_suffix())) {
    file_.emplace(temporary_);
  }
  ~NewFile() {
    if (!file_) return;
    std::error_code ignored;
    fs::remove(temporary_, ignored);
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void add_line(std::string_view line) {
    constexpr size_t piece = 1 << 20;
    waiting_.append(line).push_back('\n');
    if (waiting_.size() >= piece) flush();
  }

  void publish() {
    flush();
    file_->sync_and_close();
    std::error_code error;
    fs::rename(temporary_, target_, error);
    if (error) throw io::file_error("cannot write", target_, error.value());
    file_.reset();
    io::sync_folder(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
  }

 private:
  void flush() {
    file_->write(std::as_bytes(std::span(waiting_)));
    waiting_.clear();
  }

  fs::path target_, temporary_;
  std::optional<io::OutputFile> file_;
  std::string waiting_;
};

void divide(const fs::path& file, int64_t last, NewFile& kept, NewFile* moved) {
  std::string header;  // of the lines that follow
  bool any_moved = false;
  each_line(file, [&](const std::string& text, const Line& line, int64_t) {
    if (stays(line, last)) {
      if (line.kind == Kind::header) header = text;
      return kept.add_line(text);
    }
    if (!any_moved && line.kind != Kind::header && !header.empty()) moved->add_line(header);
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

bool has_steps(const fs::path& file) {
  return !absent(file) && survey(file, 0).records > 0;
}

void set_aside_after(const fs::path& file, int64_t last, const Report& report) {
  if (absent(file)) return;
  const Survey found = survey(file, last);
  report_bad(file, found, report);
  if (found.moving == 0 && found.ended) return;
  NewFile kept(file);
  if (found.moving > 0) {
    const fs::path aside = io::first_free(file);
    NewFile moved(aside);
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
}

}  // namespace pptrain::metrics
