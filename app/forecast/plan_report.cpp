#include "app/forecast/plan_report.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/forecast/sureness.h"
#include "app/plan/plan.h"
#include "core/metrics/progress_text.h"
#include "core/optim/footprint.h"
#include "models/flops.h"
#include "models/transformer_stage.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/text_layout.h"

namespace pptrain::app {

namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string one_digit(double value) {
  return fmt::format("{:.1f}", value);
}

// Layers of each stage: "6+2"; many stages as runs of equal ones, "3 x 16, 17 x 15".
std::string describe_layers(const pipeline::LayerAssignment& layers) {
  constexpr size_t few = 16;  // stages that are listed one by one
  const std::vector<int64_t> counts = pipeline::layers_per_stage(layers);
  if (counts.size() <= few) return fmt::format("{}", fmt::join(counts, "+"));
  std::string text;
  for (size_t begin = 0; begin < counts.size();) {
    size_t end = begin + 1;
    while (end < counts.size() && counts[end] == counts[begin]) ++end;
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", end - begin, counts[begin]);
    begin = end;
  }
  return text;
}

std::string title(const Plan& plan) {
  const config::JobConfig& job = plan.job;
  const schedule::Schedule& compute = plan.compute;
  return fmt::format("{} of {}; {} on {} pipeline rank{}, {} microbatches of {} x {} tokens{}\n",
                     job.model.arch, models::parameters_text(plan.model), job.distributed.pp_schedule,
                     compute.ranks, compute.ranks == 1 ? "" : "s", compute.lists(),
                     job.train.micro_batch_size, job.train.seq_len, compute.slices_text());
}

std::string details(const Plan& plan, const CostSource& source) {
  const config::JobConfig& job = plan.job;
  const schedule::Schedule& compute = plan.compute;
  std::string out = fmt::format("layers per stage {}, recompute {}{}\n", describe_layers(plan.layers),
                                layout_of(job, plan.mesh).recompute_text(),
                                compute.spread_head ? ", head spread over the ranks" : "");
  if (job.data.lengths != config::Lengths::fixed)
    out += fmt::format(
        "data.lengths = {}: times are of full microbatches, the longest that can come, and bytes those that "
        "any of them needs at most\n",
        job.data.lengths.text);
  if (plan.recompute_memory > 0) out += "each step chooses anew which microbatches recompute less\n";
  if (plan.mesh.world_size() > plan.mesh.pp)
    out += fmt::format("{} ranks ({}); below, a pipeline rank stands for those of its stages\n",
                       plan.mesh.world_size(), plan.mesh.describe());
  return out + fmt::format("costs: {}\n", source.description);
}

// Tables of many ranks keep the first and the last ones, unless all are wanted.
Rows few_rows(Rows rows, bool all) {
  constexpr size_t ends = 6, most = 16;
  if (all || rows.size() - 1 <= most) return rows;
  Rows few(rows.begin(), rows.begin() + 1 + ends);
  few.push_back({"..."});
  few.back().resize(rows.front().size());
  few.insert(few.end(), rows.end() - ends, rows.end());
  return few;
}

// Bytes up to `largest`: GB, or MB if that is small.
struct ByteUnit {
  explicit ByteUnit(int64_t largest) : mega(largest < 1'000'000'000) {}
  std::string operator()(int64_t bytes) const {
    return mega ? one_digit(static_cast<double>(bytes) / 1e6)
                : fmt::format("{:.2f}", static_cast<double>(bytes) / 1e9);
  }
  const char* name() const { return mega ? "MB" : "GB"; }
  bool mega;
};

// How each rank spends its time, in per cent of the step.
std::string times(const Prediction& p, bool all) {
  const bool exchanges = std::ranges::any_of(p.pipeline.ranks, [](const schedule::RankTime& time) {
    return time.wait_for_exchange > 0 || time.reducing > 0;
  });
  Rows rows{{"rank", "busy", "fill", "imbalance", "drain", "barrier", "optimizer", "transfer"}};
  if (exchanges) rows[0].insert(rows[0].end(), {"exchange"});
  for (size_t r = 0; r < p.barrier.size(); ++r) {
    const schedule::RankTime& t = p.pipeline.ranks[r];
    const auto percent = [&](double seconds) { return one_digit(100 * seconds / p.step_time); };
    rows.push_back({fmt::to_string(r), percent(t.busy), percent(t.fill), percent(t.steady), percent(t.drain),
                    percent(t.barrier + p.barrier[r]), percent(p.optimizer_time[r]),
                    percent(t.wait_for_transfer)});
    if (exchanges) rows.back().push_back(percent(t.wait_for_exchange + t.reducing));
  }
  return fmt::format("% of the step (transfer is contained in fill, imbalance, drain{})\n{}",
                     exchanges ? "; exchange in busy, barrier" : "", schedule::table(few_rows(rows, all)));
}

std::string bytes(const Prediction& p, bool all) {
  const ByteUnit in(p.peak_bytes());
  Rows rows{{"rank"}};
  for (const auto& [kind, count] : p.bytes.front().kinds()) rows[0].push_back(kind);
  rows[0].emplace_back("total");
  for (size_t r = 0; r < p.bytes.size(); ++r) {
    rows.push_back({fmt::to_string(r)});
    for (const auto& [kind, count] : p.bytes[r].kinds()) rows.back().push_back(in(count));
    rows.back().push_back(in(p.bytes[r].total()));
  }
  const std::string program =
      p.program_bytes > 0
          ? fmt::format("and about {:.0f} MB in each process for the program and its libraries\n",
                        static_cast<double>(p.program_bytes) / 1e6)
          : "";
  return fmt::format("{} at the worst moment\n{}{}", in.name(), schedule::table(few_rows(rows, all)),
                     program);
}

// How many microbatches a rank holds of each kind of tensor.
std::string in_flight(const Plan& plan, bool all) {
  Rows rows{{"rank", "stages", "activations", "waiting for W", "receive buffers"}};
  const std::vector<schedule::InFlight> peaks = schedule::in_flight(plan.schedule);
  for (int rank = 0; rank < plan.schedule.ranks; ++rank) {
    const schedule::InFlight& peak = peaks[static_cast<size_t>(rank)];
    rows.push_back({fmt::to_string(rank), fmt::format("{}", fmt::join(plan.schedule.stages_of(rank), ",")),
                    fmt::to_string(peak.activations), fmt::to_string(peak.held),
                    fmt::to_string(peak.receive_buffers)});
  }
  return "microbatches of one stage held at once (peak)\n" + schedule::table(few_rows(rows, all));
}

// What ranks exchange, with the links that carry it.
std::string exchanges(const std::vector<ExchangeTime>& all, const Prediction& p) {
  if (all.empty()) return "";
  Rows rows{{"axis", "total", "waited", "of the step"}};
  for (const ExchangeTime& time : all) {
    rows.push_back({time.what, schedule::format_seconds(time.total), schedule::format_seconds(time.exposed),
                    one_digit(100 * time.exposed / p.step_time) + " %"});
  }
  return "communication of a step, mean of the pipeline's ranks\n" + schedule::table(rows, 1) + '\n';
}

// Times of the job's own documents.
std::string lengths(const Prediction& p) {
  if (!p.lengths) return "";
  return fmt::format("the first {} steps of the data take {} each; with data.balance = schedule {}\n",
                     forecast_steps, schedule::format_seconds(p.lengths->first),
                     schedule::format_seconds(p.lengths->second));
}

// What the searched schedule gains.
std::string gain(const Plan& plan, const Prediction& p) {
  if (plan.order != Order::searched) return "";
  if (plan.named.empty()) return "the schedule was searched; no named one fits\n";
  return fmt::format("the schedule was searched: {} takes {}, {:.1f} % more\n", plan.named,
                     schedule::format_seconds(p.step_time * plan.named_ratio), 100 * (plan.named_ratio - 1));
}

double rank_hours(const Plan& plan, double seconds) {
  return seconds / 3600 * plan.mesh.world_size();
}

std::string summary(const Plan& plan, const Prediction& p, const CostSource& source) {
  const double mfu = predicted_mfu(plan, source, plan.mesh.world_size(), p.tokens_per_s);
  return fmt::format(
      "step {}: {} tokens/s, MFU {}; bubble {:.1f} % ({:.1f} % with perfectly balanced stages)\n",
      schedule::format_seconds(p.step_time), schedule::with_commas(p.tokens_per_s),
      mfu > 0 ? fmt::format("{:.1f} %{}", 100 * mfu, plan.model.fp8 ? " of bf16's peak" : "") : "unknown",
      100 * std::max(0.0, p.bubble()), 100 * schedule::simulate(plan.compute).bubble());
}

// Time of train.steps of these steps together; evaluations and saves come on top.
std::string whole_job(const Plan& plan, const Prediction& p, const JobRates& rates) {
  const double seconds = static_cast<double>(plan.job.train.steps) * p.step_time;
  const double tokens = seconds * p.tokens_per_s;
  std::string text = fmt::format("the job: {} step{}, {} tokens in {}; each checkpoint {}",
                                 metrics::with_commas(plan.job.train.steps),
                                 plan.job.train.steps == 1 ? "" : "s", schedule::with_commas(tokens),
                                 metrics::duration_text(seconds), in_units(checkpoint_bytes(plan)));
  if (const int64_t copies = memory_copy_bytes(plan); copies > 0)
    text += fmt::format(", copies in memory {}", in_units(copies));
  const double hours = rank_hours(plan, seconds);
  if (rates.price > 0)
    text += fmt::format("; at {:g} for a rank's hour: {:.2f}", rates.price, hours * rates.price);
  if (rates.watts > 0)
    text += fmt::format("; at {:g} W a rank: {:.4g} kWh", rates.watts, hours * rates.watts / 1000);
  return text + '\n';
}

std::string describe(const Remedy& remedy) {
  return fmt::format("  --set {}: {} a rank, step {}{}\n", fmt::join(remedy.set, " --set "),
                     in_units(remedy.bytes), schedule::format_seconds(remedy.step_time),
                     *remedy.note.c_str() ? " (" + remedy.note + ")" : "");
}

std::string memory(const Prediction& p, const PlanContext& context) {
  constexpr double little = 0.95;  // of the room: predictions are a few per cent off
  if (!context.fit) return fmt::format("memory: {}\n", fit_on_gpu(p.bytes, 0, "").describe());
  const MemoryFit& fit = *context.fit;
  if (fit.fits() && fit.of_host)
    return fmt::format("memory: fits this host; {}\n", fit_on_gpu(p.bytes, 0, "").describe());
  if (fit.fits())
    return fmt::format("memory: fits{}; {}\n",
                       fit.room > 0 && fit.needed > little * fit.room ? " barely" : "", fit.describe());
  std::string text = fmt::format("memory: DOES NOT FIT: {}\n", fit.describe());
  if (fit.of_host) return text;
  if (context.remedies.empty())
    return text +
           "  neither reduce_gradients, recompute, smaller microbatches nor twice the ranks make it fit: "
           "pptrain plan --search --world N looks at every mesh of N ranks\n";
  text += context.remedies.front().set.size() > 1 ? "together these make it fit:\n" : "what makes it fit:\n";
  for (const Remedy& remedy : context.remedies) text += describe(remedy);
  return text;
}

constexpr int most_cells_priced_again = 1 << 16;

// Seconds of a step with links of half and of double their bandwidth. Nothing for one rank, or if it would
// take long.
std::optional<std::pair<double, double>> with_other_links(const Plan& plan, const CostSource& source) {
  if (plan.mesh.world_size() == 1 || !source.device.gpu.is_gpu() ||
      plan.schedule.cells() > most_cells_priced_again)
    return std::nullopt;
  FootprintCache dry_runs(plan.model);
  const auto at = [&](double factor) {
    CostSource other = source;
    other.device.within_host.bandwidth *= factor;
    other.device.between_hosts.bandwidth *= factor;
    other.device.block_bandwidth *= factor;
    return predict(plan, CostModel(dry_runs, plan, other)).step_time;
  };
  return std::pair(at(0.5), at(2));
}

std::string sureness(const Plan& plan, const Prediction& p, const CostSource& source) {
  const Sureness sure = sureness_of(source, plan.mesh.world_size());
  std::string text = "how sure: " + sure.text;
  if (sure.has_range()) text += "; " + sure.describe_range(p.step_time);
  text += '\n';
  if (const auto links = with_other_links(plan, source))
    text += fmt::format("with links of half the bandwidth: step {}; of double: {}\n",
                        schedule::format_seconds(links->first), schedule::format_seconds(links->second));
  return text;
}

std::string answer(const Plan& plan, const Prediction& p, const CostSource& source,
                   const PlanContext& context) {
  return summary(plan, p, source) + memory(p, context) + sureness(plan, p, source) + lengths(p) +
         gain(plan, p) + whole_job(plan, p, context.rates);
}

nlohmann::ordered_json stages_json(const Plan& plan, const schedule::Costs& costs) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (int stage = 0; stage < plan.schedule.stages(); ++stage) {
    const auto [first, end] = plan.layers[static_cast<size_t>(stage)];
    const auto seconds = [&](schedule::ActionKind kind) {
      return costs.stages[static_cast<size_t>(stage)].time.of(kind);
    };
    stages.push_back({{"stage", stage},
                      {"rank", plan.schedule.rank_of(stage)},
                      {"first_layer", first},
                      {"layers", end - first},
                      {"recompute", plan.job.train.recompute.word(stage)},
                      {"forward", seconds(schedule::ActionKind::forward)},
                      {"backward", seconds(schedule::ActionKind::backward)},
                      {"backward_input", seconds(schedule::ActionKind::backward_input)},
                      {"backward_weight", seconds(schedule::ActionKind::backward_weight)}});
  }
  return stages;
}

nlohmann::ordered_json memory_json(const PlanContext& context) {
  if (!context.fit) return {{"fits", nullptr}};
  nlohmann::ordered_json json{{"of", context.fit->of_host ? "host" : "rank"}, {"fits", context.fit->fits()}};
  if (context.fit->of_host) return json;  // available memory changes all the time
  json["needed"] = context.fit->needed;
  json["room"] = context.fit->room;
  for (const Remedy& remedy : context.remedies)
    json["remedies"].push_back(
        {{"set", remedy.set}, {"peak_bytes", remedy.bytes}, {"step_time", remedy.step_time}});
  return json;
}

nlohmann::ordered_json sureness_json(const Plan& plan, const CostSource& source) {
  const Sureness sure = sureness_of(source, plan.mesh.world_size());
  nlohmann::ordered_json json{{"text", sure.text}};
  if (sure.has_range()) json["measured_over_predicted"] = {sure.least, sure.most};
  if (const auto links = with_other_links(plan, source))
    json["step_time_with_links"] = {{"half", links->first}, {"double", links->second}};
  return json;
}

}  // namespace

int64_t checkpoint_bytes(const Plan& plan) {
  models::TransformerStage whole(plan.model, models::whole_model(plan.model));
  config::OptimizerSection stored = plan.job.optimizer;
  stored.post_validation = false;  // its copies are not saved
  std::vector<const nn::ParameterSpec*> specs = whole.parameters().specs();
  std::erase_if(specs, [](const nn::ParameterSpec* spec) { return spec->frozen; });
  const auto kinds = optim::parameter_kinds(specs);
  return models::parameter_count(plan.model, /*learning_only=*/true) * 4 +
         static_cast<int64_t>(optim::optimizer_share(stored, kinds, at::kFloat).held);
}

int64_t memory_copy_bytes(const Plan& plan) {
  return plan.job.checkpoint.memory_seconds > 0 ? memory_copies * checkpoint_bytes(plan) : 0;
}

PlanContext context_of(const Plan& plan, const Prediction& p, const CostSource& source, double room,
                       std::string place) {
  PlanContext context;
  if (room <= 0) return context;
  context.fit = fit_on_gpu(p.bytes, room, std::move(place));
  if (!context.fit->fits()) context.remedies = remedies(plan, source, room);
  return context;
}

std::string render_plan(const Plan& plan, const Prediction& p, const CostModel& costs,
                        const CostSource& source, schedule::TextOptions options, const PlanContext& context) {
  constexpr int many_ranks = 16;
  const auto width = static_cast<size_t>(options.width);
  const bool all = context.all_ranks;
  options.seconds = true;
  if (plan.compute.ranks > many_ranks && !all) options.bands = 1;
  return schedule::wrapped(title(plan) + answer(plan, p, source, context), width, 4) + '\n' +
         schedule::wrapped(details(plan, source), width, 4) + '\n' +
         schedule::render_text(plan.compute, p.costs, options) + '\n' +
         schedule::wrapped(times(p, all) + '\n' + exchanges(exchange_times(plan, costs, p), p) +
                               bytes(p, all) + '\n' + in_flight(plan, all),
                           width, 6);
}

nlohmann::ordered_json plan_json(const Plan& plan, const Prediction& p, const CostModel& costs,
                                 const CostSource& source, const PlanContext& context) {
  const JobRates& rates = context.rates;
  nlohmann::ordered_json json = schedule::summary_json(plan.schedule, p.pipeline);
  json["uniform_bubble"] = schedule::simulate(plan.compute).bubble();
  json["costs"] = source.description;
  json["transfer_time"] = p.costs.latency.front();
  json["predicted_step_time"] = p.step_time;
  if (!plan.named.empty())
    json["searched"] = {{"named", plan.named}, {"named_step_time", p.step_time * plan.named_ratio}};
  if (p.lengths)
    json["predicted_lengths"] = {
        {"steps", forecast_steps}, {"microbatches", p.lengths->first}, {"schedule", p.lengths->second}};
  json["predicted_tokens_per_s"] = p.tokens_per_s;
  json["predicted_bubble"] = std::max(0.0, p.bubble());  // rounding leaves -0.0
  const double mfu = predicted_mfu(plan, source, plan.mesh.world_size(), p.tokens_per_s);
  json["predicted_mfu"] = mfu > 0 ? nlohmann::ordered_json(mfu) : nlohmann::ordered_json();
  const double seconds = static_cast<double>(plan.job.train.steps) * p.step_time;
  json["job"] = {{"steps", plan.job.train.steps},
                 {"tokens", seconds * p.tokens_per_s},
                 {"seconds", seconds},
                 {"checkpoint_bytes", checkpoint_bytes(plan)}};
  if (const int64_t copies = memory_copy_bytes(plan); copies > 0) json["job"]["memory_copy_bytes"] = copies;
  if (rates.price > 0) json["job"]["price"] = rank_hours(plan, seconds) * rates.price;
  if (rates.watts > 0) json["job"]["kwh"] = rank_hours(plan, seconds) * rates.watts / 1000;
  for (size_t r = 0; r < p.bytes.size(); ++r) {
    auto& rank = json["per_rank"][r];
    rank["barrier"] = p.pipeline.ranks[r].barrier + p.barrier[r];
    rank["optimizer_time"] = p.optimizer_time[r];
    for (const auto& [kind, count] : p.bytes[r].kinds()) rank["bytes"][kind] = count;
    rank["bytes"]["total"] = p.bytes[r].total();
  }
  if (p.program_bytes > 0) json["program_bytes"] = p.program_bytes;
  json["memory"] = memory_json(context);
  json["sureness"] = sureness_json(plan, source);
  for (const ExchangeTime& time : exchange_times(plan, costs, p))
    json["exchanges"][time.what] = {{"total", time.total}, {"exposed", time.exposed}};
  for (const auto& [axis, size] : plan.mesh.sizes()) json["mesh"][axis] = size;
  json["per_stage"] = stages_json(plan, p.costs);
  return json;
}

std::string render_beside(const NamedPlan& one, const NamedPlan& other) {
  Rows rows{{"", one.name, other.name, "ratio"}};
  const auto row = [&](const char* what, const auto& value, const auto& text) {
    const double a = value(one), b = value(other);
    rows.push_back({what, text(a), text(b), a > 0 ? fmt::format("{:.3f}", b / a) : ""});
  };
  const auto seconds = [](double value) { return schedule::format_seconds(value); };
  const auto percent = [](double value) { return one_digit(100 * value) + " %"; };
  const auto gb = [](double value) { return fmt::format("{:.2f} GB", value / 1e9); };
  row(
      "ranks", [](const NamedPlan& n) { return static_cast<double>(n.plan.mesh.world_size()); },
      [](double value) { return fmt::format("{:.0f}", value); });
  row(
      "step", [](const NamedPlan& n) { return n.prediction.step_time; }, seconds);
  row(
      "tokens/s", [](const NamedPlan& n) { return n.prediction.tokens_per_s; },
      [](double value) { return schedule::with_commas(value); });
  row(
      "tokens/s of a rank",
      [](const NamedPlan& n) { return n.prediction.tokens_per_s / n.plan.mesh.world_size(); },
      [](double value) { return schedule::with_commas(value); });
  row(
      "MFU",
      [](const NamedPlan& n) {
        return predicted_mfu(n.plan, n.source, n.plan.mesh.world_size(), n.prediction.tokens_per_s);
      },
      percent);
  row(
      "bubble", [](const NamedPlan& n) { return n.prediction.bubble(); }, percent);
  row(
      "fullest rank", [](const NamedPlan& n) { return static_cast<double>(n.prediction.peak_bytes()); }, gb);
  row(
      "a checkpoint", [](const NamedPlan& n) { return static_cast<double>(checkpoint_bytes(n.plan)); }, gb);
  std::string text = schedule::table(rows, 1);
  for (const NamedPlan* named : {&one, &other})
    text +=
        fmt::format("{}: {}; costs {}\n", named->name,
                    title(named->plan).substr(0, title(named->plan).size() - 1), named->source.description);
  const Sureness sure =
      sureness_of(one.source, std::max(one.plan.mesh.world_size(), other.plan.mesh.world_size()));
  text += "how sure: " + sure.text + '\n';
  if (!sure.has_range()) return text;
  const double a = one.prediction.tokens_per_s, b = other.prediction.tokens_per_s;
  const bool tie = std::max(a, b) < sure.tie() * std::min(a, b);
  return text + fmt::format("the rates differ by {} than forecasts are sure of ({:.0f} %){}\n",
                            tie ? "less" : "more", 100 * (sure.tie() - 1), tie ? ": measure both" : "");
}

}  // namespace pptrain::app
