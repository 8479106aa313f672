#include "core/metrics/record_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/metrics/utc_time.h"

namespace pptrain::metrics {

using Json = nlohmann::ordered_json;

namespace {

using Time = std::chrono::system_clock::time_point;

void add_time(Json& json, Time time) {
  if (time != Time{}) json["time"] = utc_text(time);
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

Json loss_json(const SourceLoss& source) {
  Json json{{"loss", source.loss()}, {"perplexity", source.perplexity()}};
  if (const auto bits = source.bits_per_byte()) json["bits_per_byte"] = *bits;
  json["tokens"] = source.tokens;
  return json;
}

}  // namespace

std::string to_json(const RunHeader& header) {
  Json json{{"start", header.checkpoint.empty() ? "new" : "resume"}, {"step", header.step}};
  if (!header.checkpoint.empty()) json["checkpoint"] = header.checkpoint;
  add_time(json, header.time);
  json.update(Json{{"version", header.version},
                   {"host", header.host},
                   {"pid", header.pid},
                   {"command", header.command},
                   {"device", header.device},
                   {"world_size", header.world_size},
                   {"layout", header.layout},
                   {"libraries", header.libraries}});
  // What comes from outside, as a command does, need not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
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
            {"computed_tokens", r.computed_tokens},
            {"padding_tokens", r.padding_tokens},
            {"tokens_per_s", r.tokens_per_s},
            {"step_time_s", r.step_time_s},
            {"mfu", r.mfu > 0 ? Json(r.mfu) : Json()},
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
  for (const auto& [name, epochs] : r.source_epochs) json["epochs"][name] = epochs;
  return json.dump();
}

std::string to_json(const EvalRecord& r) {
  Json json{{"step", r.step}, {"eval_loss", r.loss}, {"eval_tokens", r.tokens}, {"eval_time_s", r.time_s}};
  for (const SourceLoss& source : r.sources) json["eval_sources"][source.name] = loss_json(source);
  add_time(json, r.time);
  return json.dump();
}

}  // namespace pptrain::metrics
