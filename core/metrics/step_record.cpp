#include "core/metrics/step_record.h"
#include "core/base/text.h"

#include <ATen/Version.h>
#include <spdlog/fmt/chrono.h>
#include <spdlog/fmt/fmt.h>
#include <torch/csrc/api/include/torch/version.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numbers>
#include <regex>

namespace pptrain::metrics {

std::string utc_text(std::chrono::system_clock::time_point time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(time - seconds);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)), rest.count());
}

std::optional<std::chrono::system_clock::time_point> parse_utc(const std::string& text) {
  int year = 0, hour = 0, minute = 0, read = -1;
  unsigned month = 0, day = 0;
  double second = 0;
  const auto matches = [&](const char* format) {
    std::sscanf(text.c_str(), format, &year, &month, &day, &hour, &minute, &second, &read);
    return read == static_cast<int>(text.size());
  };
  if (!matches("%4d-%2u-%2uT%2d:%2d:%lfZ%n") && !matches("%4d-%2u-%2u %2d:%2d:%lf UTC%n"))
    return std::nullopt;
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month),
                                         std::chrono::day(day)};
  if (!date.ok() || !(second >= 0 && second < 61)) return std::nullopt;
  return std::chrono::sys_days(date) + std::chrono::hours(hour) + std::chrono::minutes(minute) +
         std::chrono::round<std::chrono::milliseconds>(std::chrono::duration<double>(second));
}

std::string version_number(const std::string& text) {
  std::smatch number;
  return std::regex_search(text, number, std::regex("[0-9]+(\\.[0-9]+)+")) ? number.str() : "";
}

std::map<std::string, std::string> library_versions() {
  const auto number = [](const std::string& text) {
    const std::string version = version_number(text);
    return version.empty() ? text : version;
  };
  return {{"libtorch", TORCH_VERSION},
          {"mkl", number(at::get_mkl_version())},
          {"onednn", number(at::get_mkldnn_version())},
          {"cpu_capability", at::get_cpu_capability()}};
}

double imbalance(std::span<const int64_t> rows) {
  int64_t sum = 0, largest = 0;
  for (const int64_t count : rows) {
    sum += count;
    largest = std::max(largest, count);
  }
  return sum == 0
             ? 1
             : static_cast<double>(largest) * static_cast<double>(rows.size()) / static_cast<double>(sum);
}

double SourceLoss::loss() const {
  return sum / static_cast<double>(std::max<int64_t>(tokens, 1));
}

double SourceLoss::perplexity() const {
  return std::exp(loss());
}

std::optional<double> SourceLoss::bits_per_byte() const {
  if (!bytes) return std::nullopt;
  return sum / std::numbers::ln2 / static_cast<double>(std::max<int64_t>(*bytes, 1));
}

using OrderedJson = nlohmann::ordered_json;

namespace {

using Time = std::chrono::system_clock::time_point;

void add_time(OrderedJson& json, Time time) {
  if (time != Time{}) json["time"] = utc_text(time);
}

OrderedJson bubble_json(const Bubble& bubble) {
  return {{"bubble", bubble.total()},     {"bubble_fill", bubble.fill}, {"bubble_steady", bubble.steady},
          {"bubble_drain", bubble.drain}, {"bubble_wait", bubble.wait}, {"bubble_barrier", bubble.barrier}};
}

OrderedJson expert_json(const ExpertLoads& loads) {
  OrderedJson rows = OrderedJson::object();
  double worst = 0;
  for (const auto& [layer, load] : loads) {
    rows[std::to_string(layer)] = load;
    worst = std::max(worst, imbalance(load));
  }
  return {{"expert_imbalance", worst}, {"expert_load", std::move(rows)}};
}

OrderedJson loss_json(const SourceLoss& source) {
  OrderedJson json{{"loss", source.loss()}, {"perplexity", source.perplexity()}};
  if (const auto bits = source.bits_per_byte()) json["bits_per_byte"] = *bits;
  json["tokens"] = source.tokens;
  return json;
}

}  // namespace

std::string to_json(const RunHeader& header) {
  OrderedJson json{{"start", header.checkpoint.empty() ? "new" : "resume"}, {"step", header.step}};
  if (!header.checkpoint.empty()) json["checkpoint"] = header.checkpoint;
  add_time(json, header.time);
  json.update(OrderedJson{{"version", header.version},
                          {"host", header.host},
                          {"pid", header.pid},
                          {"command", header.command},
                          {"device", header.device},
                          {"world_size", header.world_size},
                          {"layout", header.layout},
                          {"libraries", header.libraries}});
  // What comes from outside, as a command does, need not be UTF-8.
  return one_line(json);
}

std::string to_json(const Bubble& bubble) {
  return bubble_json(bubble).dump();
}

std::string to_json(const StepRecord& r) {
  OrderedJson json{{"step", r.step},
                   {"loss", r.loss},
                   {"grad_norm", r.grad_norm},
                   {"lr", r.lr},
                   {"tokens", r.tokens},
                   {"computed_tokens", r.computed_tokens},
                   {"padding_tokens", r.padding_tokens},
                   {"tokens_per_s", r.tokens_per_s},
                   {"step_time_s", r.step_time_s},
                   {"mfu", r.mfu > 0 ? OrderedJson(r.mfu) : OrderedJson()},
                   {"memory_gb", r.memory_gb},
                   {"skipped", r.skipped},
                   {"skipped_steps", r.skipped_steps},
                   {"total_tokens", r.total_tokens},
                   {"epoch", r.epoch},
                   {"data_wait_s", r.data_wait_s},
                   {"save_time_s", r.save_time_s}};
  if (r.saved_step) json["saved_step"] = *r.saved_step;
  add_time(json, r.time);
  if (r.bubble) json.update(bubble_json(*r.bubble));
  if (!r.expert_loads.empty()) json.update(expert_json(r.expert_loads));
  if (!r.microbatch_losses.empty()) json["microbatch_losses"] = r.microbatch_losses;
  for (const auto& [name, epochs] : r.source_epochs) json["epochs"][name] = epochs;
  return json.dump();
}

std::string to_json(const EvalRecord& r) {
  OrderedJson json{
      {"step", r.step}, {"eval_loss", r.loss}, {"eval_tokens", r.tokens}, {"eval_time_s", r.time_s}};
  if (r.bits_per_byte) json["eval_bits_per_byte"] = *r.bits_per_byte;
  for (const SourceLoss& source : r.sources) json["eval_sources"][source.name] = loss_json(source);
  add_time(json, r.time);
  return json.dump();
}

}  // namespace pptrain::metrics
