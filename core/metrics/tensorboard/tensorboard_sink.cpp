#include "core/metrics/tensorboard/tensorboard_sink.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <iterator>
#include <system_error>
#include <vector>

#include "core/io/files.h"
#include "core/metrics/figures.h"
#include "core/metrics/tensorboard/event.h"

namespace pptrain::metrics {

namespace fs = std::filesystem;

namespace {

using Time = std::chrono::system_clock::time_point;

constexpr std::string_view prefix = "events.out.tfevents.";

double seconds_of(Time time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

// A record without a time is of now.
double wall_time(Time time) {
  return seconds_of(time == Time{} ? std::chrono::system_clock::now() : time);
}

// As part of a file's name.
std::string plain(std::string host) {
  std::ranges::replace_if(
      host, [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.'; }, '_');
  return host.empty() ? "host" : host;
}

// The latest TIME of the files there; 0 where there are none.
int64_t latest_time(const fs::path& folder) {
  int64_t latest = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    int64_t time = 0;
    if (name.starts_with(prefix))
      std::from_chars(name.data() + prefix.size(), name.data() + name.size(), time);
    latest = std::max(latest, time);
  }
  return latest;
}

}  // namespace

TensorboardSink::TensorboardSink(const fs::path& folder, const RunHeader& header) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw io::file_error("cannot create", folder, error.value());
  const double now = wall_time(header.time);
  const int64_t time = std::max(static_cast<int64_t>(now), latest_time(folder) + 1);
  const auto path = [&](int n) {
    return folder / fmt::format("{}{}.{}.{}.{}", prefix, time, plain(header.host), header.pid, n);
  };
  int n = 0;
  while (fs::exists(path(n))) ++n;
  file_.emplace(path(n));
  write(version_event(now));
  if (header.step > 0) write(restart_event(now, header.step + 1));
}

void TensorboardSink::step(const StepRecord& record) {
  std::vector<Figure> figures = step_figures(record);
  std::ranges::move(running_figures(record), std::back_inserter(figures));
  write(scalars_event(wall_time(record.time), record.step, figures));
}

void TensorboardSink::eval(const EvalRecord& record) {
  write(scalars_event(wall_time(record.time), record.step, eval_figures(record)));
}

void TensorboardSink::write(const std::string& event) {
  const std::string record = framed(event);
  file_->add(record);
}

}  // namespace pptrain::metrics
