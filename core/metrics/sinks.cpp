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
            {"mfu", r.mfu},
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

}  // namespace pptrain::metrics
