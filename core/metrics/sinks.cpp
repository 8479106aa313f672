#include "core/metrics/sinks.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"

namespace pptrain::metrics {

using Json = nlohmann::ordered_json;

namespace {

// 1234567 -> "1,234,567"
std::string with_commas(int64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

std::string clock_time(double seconds) {
  const auto s = static_cast<int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

// Keeps the lines of `file` whose step is at most `last`. A line that is not JSON (cut by a crash) is
// dropped.
void drop_after(const std::filesystem::path& file, int64_t last) {
  std::ifstream in(file);
  if (!in) return;
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (record.is_object() && record.value("step", last + 1) <= last) kept += line + '\n';
  }
  in.close();
  const std::filesystem::path temporary = file.string() + ".tmp";
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << kept;
    if (!out.flush())
      throw Error(fmt::format("cannot write {}: {}", temporary.string(), std::strerror(errno)));
  }
  std::filesystem::rename(temporary, file);
}

Json bubble_json(const Bubble& bubble) {
  return {{"bubble", bubble.total()},     {"bubble_fill", bubble.fill}, {"bubble_steady", bubble.steady},
          {"bubble_drain", bubble.drain}, {"bubble_wait", bubble.wait}, {"bubble_barrier", bubble.barrier}};
}

Json expert_json(const std::vector<ExpertLoad>& loads) {
  Json rows = Json::object();
  double imbalance = 0;
  for (const ExpertLoad& load : loads) {
    rows[std::to_string(load.layer)] = load.rows;
    imbalance = std::max(imbalance, load.imbalance());
  }
  return {{"expert_imbalance", imbalance}, {"expert_load", std::move(rows)}};
}

}  // namespace

double ExpertLoad::imbalance() const {
  int64_t sum = 0, largest = 0;
  for (const int64_t count : rows) {
    sum += count;
    largest = std::max(largest, count);
  }
  return sum == 0
             ? 1
             : static_cast<double>(largest) * static_cast<double>(rows.size()) / static_cast<double>(sum);
}

std::string to_json(const Bubble& bubble) {
  return bubble_json(bubble).dump();
}

std::string to_json(const StepRecord& r) {
  Json json{{"step", r.step},
            {"loss", r.loss},
            {"grad_norm", r.grad_norm},
            {"lr", r.lr},
            {"tokens", r.tokens},
            {"tokens_per_s", r.tokens_per_s},
            {"step_time_s", r.step_time_s},
            {"mfu", r.mfu > 0 ? Json(r.mfu) : Json()},
            {"memory_gb", r.memory_gb},
            {"skipped", r.skipped}};
  if (r.bubble) json.update(bubble_json(*r.bubble));
  if (!r.expert_loads.empty()) json.update(expert_json(r.expert_loads));
  return json.dump();
}

std::string to_json(const EvalRecord& r) {
  return Json{{"step", r.step}, {"eval_loss", r.loss}, {"eval_tokens", r.tokens}, {"eval_time_s", r.time_s}}
      .dump();
}

std::string format_line(const StepRecord& r, int64_t last_step) {
  return fmt::format(
      "step {}/{}  loss {:.4f}  lr {:.3e}  grad_norm {:.4f}  tok/s {}  mfu {}  mem {:.2f} GB  step_time "
      "{:.3f} s{}",
      r.step, last_step, r.loss, r.lr, r.grad_norm, with_commas(std::llround(r.tokens_per_s)),
      r.mfu > 0 ? fmt::format("{:.1f}%", 100 * r.mfu) : "unknown", r.memory_gb, r.step_time_s,
      r.skipped ? "  SKIPPED: not finite" : "");
}

std::string format_line(const EvalRecord& r) {
  return fmt::format("step {}  validation loss {:.4f} nats per token  ({} tokens in {:.1f} s)", r.step,
                     r.loss, with_commas(r.tokens), r.time_s);
}

JsonlSink::JsonlSink(const std::filesystem::path& file, int64_t resumed_step) : path_(file) {
  drop_after(file, resumed_step);
  file_.reset(std::fopen(file.c_str(), "a"));
  if (!file_) throw Error(fmt::format("cannot write {}: {}", file.string(), std::strerror(errno)));
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
  if (!ok) throw Error(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
}

LineSink::LineSink(std::FILE* out, int64_t interval, int64_t last_step)
    : out_(out), interval_(interval), last_step_(last_step) {}

void LineSink::step(const StepRecord& record) {
  tokens_ += record.tokens;
  time_ += record.step_time_s;
  flops_time_ += record.mfu * record.step_time_s;
  ++steps_;
  const bool due = first_ || record.step % interval_ == 0 || record.step == last_step_ || record.skipped;
  if (!due) return;
  StepRecord mean = record;
  mean.tokens_per_s = static_cast<double>(tokens_) / time_;
  mean.mfu = flops_time_ / time_;
  mean.step_time_s = time_ / static_cast<double>(steps_);
  fmt::print(out_, "{}\n", format_line(mean, last_step_));
  std::fflush(out_);
  first_ = false;
  tokens_ = steps_ = 0;
  time_ = flops_time_ = 0;
}

void LineSink::eval(const EvalRecord& record) {
  fmt::print(out_, "{}\n", format_line(record));
  std::fflush(out_);
}

ProgressSink::ProgressSink(std::FILE* out, int64_t first_step, int64_t last_step)
    : out_(out), first_step_(first_step), last_step_(last_step) {}

ProgressSink::~ProgressSink() {
  if (open_) fmt::print(out_, "\n");
}

void ProgressSink::step(const StepRecord& record) {
  mean_time_ = mean_time_ == 0 ? record.step_time_s : 0.9 * mean_time_ + 0.1 * record.step_time_s;
  const auto now = std::chrono::steady_clock::now();
  if (record.step < last_step_ && now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  constexpr int64_t width = 24;
  const int64_t total = std::max<int64_t>(1, last_step_ - first_step_);
  const int64_t filled = std::clamp<int64_t>(width * (record.step - first_step_) / total, 0, width);
  std::string bar;
  for (int64_t i = 0; i < width; ++i) bar += i < filled ? "█" : "░";
  fmt::print(out_, "\r\x1b[K{} {}/{}  loss {:.4f}  {} tok/s  {} left{}", bar, record.step, last_step_,
             record.loss, with_commas(std::llround(record.tokens_per_s)),
             clock_time(mean_time_ * static_cast<double>(last_step_ - record.step)),
             record.skipped ? "  SKIPPED" : "");
  std::fflush(out_);
  open_ = true;
}

void ProgressSink::eval(const EvalRecord& record) {
  fmt::print(out_, "{}{}\n", open_ ? "\r\x1b[K" : "", format_line(record));
  std::fflush(out_);
  open_ = false;
}

}  // namespace pptrain::metrics
