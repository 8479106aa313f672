#include "core/metrics/prometheus.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "core/io/atomic_file.h"
#include "core/metrics/figures.h"

namespace pptrain::metrics {

namespace {

// The JSON library's judgement of what is UTF-8.
std::string valid_utf8(std::string_view text) {
  using Json = nlohmann::json;
  const std::string quoted = one_line(Json(text));
  return Json::parse(quoted).get<std::string>();
}

// As a label's value: backslash, quote and newline escaped; what is no UTF-8 becomes U+FFFD.
std::string label_text(std::string_view value) {
  std::string result;
  for (const char c : valid_utf8(value)) {
    if (c == '\n') {
      result += "\\n";
    } else {
      if (c == '\\' || c == '"') result += '\\';
      result += c;
    }
  }
  return result;
}

// "NaN", "+Inf", "-Inf", or the shortest digits that read back to the value.
std::string sample_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

using Labels = std::vector<std::pair<std::string, std::string>>;

// One name with its HELP and TYPE, and a sample a line. "pptrain_" is put before the name; the type is
// counter if the name ends with "_total", else gauge.
class Exposition {
 public:
  // Every sample has the label `run`.
  explicit Exposition(std::string run) : run_(std::move(run)) {}

  // Figures of one name must follow each other, and come once.
  void add(std::span<const Figure> figures) {
    for (const Figure& figure : figures) {
      Labels more;
      if (!figure.label.empty()) more.emplace_back(figure.label, figure.label_value);
      add(figure.name, figure.help, figure.value * figure.unit, more);
    }
  }

  void add(std::string_view name, std::string_view help, double value, const Labels& more = {}) {
    if (std::exchange(last_, name) != name) {
      text_ += fmt::format("# HELP pptrain_{0} {1}\n# TYPE pptrain_{0} {2}\n", name, help,
                           name.ends_with("_total") ? "counter" : "gauge");
    }
    std::string labels = fmt::format("run=\"{}\"", label_text(run_));
    for (const auto& [label, text] : more) labels += fmt::format(",{}=\"{}\"", label, label_text(text));
    text_ += fmt::format("pptrain_{}{{{}}} {}\n", name, labels, sample_text(value));
  }

  const std::string& text() const { return text_; }

 private:
  std::string run_, text_, last_;  // last_: the name that came last
};

Labels describe(const RunHeader& header) {
  Labels labels = {{"version", header.version},
                   {"host", header.host},
                   {"device", header.device},
                   {"world_size", std::to_string(header.world_size)}};
  for (const auto& [name, value] : header.layout) {
    if (name != "data") labels.emplace_back(name, value);
  }
  return labels;
}

class PrometheusSink final : public Sink {
 public:
  PrometheusSink(std::filesystem::path file, std::string dir, int64_t last_step, RunHeader header,
                 StepRecord so_far)
      : file_(std::move(file)),
        dir_(std::move(dir)),
        last_step_(last_step),
        header_(std::move(header)),
        so_far_(std::move(so_far)) {
    replace();
  }

  void step(const StepRecord& record) override {
    step_ = record;
    update();
  }
  void eval(const EvalRecord& record) override {
    eval_ = record;
    update();
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::string page() const;
  void replace() const { io::write_file_atomically(file_, page(), io::Lasting::no); }
  void update();

  const std::filesystem::path file_;
  const std::string dir_;
  const int64_t last_step_;
  const RunHeader header_;
  const StepRecord so_far_;
  const Clock::time_point begin_ = Clock::now();
  std::optional<StepRecord> step_;
  std::optional<EvalRecord> eval_;
  bool failed_ = false;  // when it was last written
};

std::string PrometheusSink::page() const {
  Exposition text(dir_);
  text.add("run_info", "What runs, in labels.", 1, describe(header_));
  text.add("start_time_seconds", "When this start of the run began, since 1970.", unix_seconds(header_.time));
  text.add("uptime_seconds", "Since this start of the run began.", seconds_since(begin_));
  text.add("start_step", "Step that this start goes on from.", static_cast<double>(header_.step));
  text.add("last_step", "Step that the run is to reach.", static_cast<double>(last_step_));
  const StepRecord& known = step_ ? *step_ : so_far_;
  text.add("step", "Last step done.", static_cast<double>(known.step));
  text.add(running_figures(known));
  if (step_) {
    text.add("step_time_seconds", "When the last step was done, since 1970.", unix_seconds(step_->time));
    text.add("step_skipped", "1 where the last step was skipped.", step_->skipped ? 1 : 0);
    text.add(step_figures(*step_));
  }
  if (eval_) {
    text.add("eval_step", "Step of the last evaluation.", static_cast<double>(eval_->step));
    text.add(eval_figures(*eval_));
  }
  return text.text();
}

void PrometheusSink::update() {
  try {
    replace();
    if (std::exchange(failed_, false)) spdlog::warn("{} can be written again", file_.string());
  } catch (const Error& error) {
    if (!std::exchange(failed_, true))
      spdlog::warn("{}. Training goes on; Prometheus sees the last figures written.", error.what());
  }
}

}  // namespace

std::unique_ptr<Sink> make_prometheus_sink(const std::filesystem::path& file, std::string dir,
                                           int64_t last_step, RunHeader header, StepRecord so_far) {
  return std::make_unique<PrometheusSink>(file, std::move(dir), last_step, std::move(header),
                                          std::move(so_far));
}

}  // namespace pptrain::metrics
