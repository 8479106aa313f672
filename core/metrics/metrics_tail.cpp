#include "core/metrics/metrics_tail.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "core/io/is_there.h"
#include "core/io/regular_file.h"
#include "core/metrics/utc_time.h"

namespace pptrain::metrics {

using Json = nlohmann::json;

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
