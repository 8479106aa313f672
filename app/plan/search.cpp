#include "app/plan/search.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "app/plan/pipeline_plan.h"
#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace {

using config::JobConfig;

// Faster by less than this is not faster.
constexpr double worth = 1e-3;

// Hill climbing over single moves of a layer from one stage to another. Of a large pipeline only moves from
// the busiest rank are tried.
class SplitClimber {
 public:
  SplitClimber(const JobConfig& job, const CostSource& source)
      : layers_(static_cast<int>(job.model.num_hidden_layers)),
        costs_(make_cost_model(job, source)),
        compute_(schedule::split_pairs(training_compute(job))) {}

  pipeline::LayerAssignment climb() {
    counts_ = pipeline::layers_per_stage(pipeline::compute_layer_assignment(layers_, compute_.stages()));
    best_ = simulate().step_time;
    while (step()) {
    }
    return pipeline::from_counts(counts_);
  }

 private:
  schedule::Simulation simulate() const {
    return schedule::simulate(compute_, simulation_costs(costs_, pipeline::from_counts(counts_)));
  }

  std::vector<int> donors() const {
    if (compute_.stages() <= 8) {
      std::vector<int> all(static_cast<size_t>(compute_.stages()));
      for (int i = 0; i < compute_.stages(); ++i) all[i] = i;
      return all;
    }
    const schedule::Simulation now = simulate();
    const auto busiest = std::ranges::max_element(now.ranks, {}, &schedule::RankTime::busy);
    return compute_.stages_of(static_cast<int>(busiest - now.ranks.begin()));
  }

  // The best single move; false if none is worth it.
  bool step() {
    double best = best_ * (1 - worth);
    std::optional<std::pair<int, int>> move;
    for (const int from : donors()) {
      if (counts_[from] == 1) continue;
      for (int to = 0; to < compute_.stages(); ++to) {
        if (to == from) continue;
        shift(from, to);
        if (const double t = simulate().step_time; t < best) {
          best = t;
          move = {from, to};
        }
        shift(to, from);
      }
    }
    if (!move) return false;
    shift(move->first, move->second);
    best_ = best;
    return true;
  }

  void shift(int from, int to) {
    --counts_[from];
    ++counts_[to];
  }

  int layers_;
  models::CostModel costs_;
  schedule::Schedule compute_;
  std::vector<int64_t> counts_;
  double best_ = 0;
};

// micro_batch_size x grad_accum_steps: the job's, or all of the same product.
std::vector<std::pair<int64_t, int64_t>> batchings(const JobConfig& job, bool all) {
  const int64_t samples = job.train.micro_batch_size * job.train.grad_accum_steps;
  if (!all) return {{job.train.micro_batch_size, job.train.grad_accum_steps}};
  std::vector<std::pair<int64_t, int64_t>> result;
  for (int64_t m = 1; m <= std::min<int64_t>(samples, 1024); ++m) {
    if (samples % m == 0) result.emplace_back(samples / m, m);
  }
  return result;
}

class Searcher {
 public:
  Searcher(const JobConfig& job, const CostSource& source, const SearchOptions& options)
      : base_(job), source_(source), options_(options) {}

  std::vector<Candidate> run() {
    try_all("none");
    for (const std::string recompute : {"selective", "full"}) {
      const bool none_fits = std::ranges::none_of(found_, &Candidate::fits);
      if (options_.recompute && base_.train.recompute == "none" && none_fits) try_all(recompute);
    }
    std::ranges::stable_sort(found_, [](const Candidate& a, const Candidate& b) {
      const auto key = [](const Candidate& c) {
        return std::tuple(!c.fits, c.fits ? c.prediction.step_time : 0.0, c.prediction.peak_bytes());
      };
      return key(a) < key(b);
    });
    return std::move(found_);
  }

 private:
  void try_all(const std::string& recompute) {
    for (const auto& [size, count] : batchings(base_, options_.microbatches)) {
      for (const std::string& name : schedule::training_schedule_names()) {
        for (int64_t stages = 1; stages <= 4; ++stages) {
          const int64_t asked = base_.distributed.pp_stages_per_rank;
          if (asked > 0 && asked != stages) continue;
          JobConfig job = base_;
          job.train.micro_batch_size = size;
          job.train.grad_accum_steps = count;
          if (recompute != "none") job.train.recompute = recompute;
          job.distributed.pp_schedule = name;
          job.distributed.pp_stages_per_rank = stages;
          add(job);
        }
      }
    }
  }

  void add(JobConfig& job) {
    if (job.distributed.pp * job.distributed.pp_stages_per_rank > job.model.num_hidden_layers) return;
    try {
      training_compute(job);
    } catch (const UsageError&) {
      return;  // the schedule does not exist for these numbers
    }
    // A split that the job gives is kept where it fits; else even and by cost.
    const config::PipelineSplit& given = base_.distributed.pp_split;
    if (given.text != "cost") {
      try {
        add_split(job, stage_layers(job, job.model.num_hidden_layers));
      } catch (const UsageError&) {
      }
    }
    if (given.text == "cost" || given == config::PipelineSplit()) add_split(job, cost_split(job, source_));
  }

  void add_split(JobConfig job, const pipeline::LayerAssignment& layers) {
    set_split(job, layers);
    for (const Candidate& c : found_) {
      if (c.job == job) return;
    }
    Candidate candidate{.job = job, .prediction = predict(job, source_)};
    candidate.fits =
        options_.budget <= 0 || static_cast<double>(candidate.prediction.peak_bytes()) <= options_.budget;
    found_.push_back(std::move(candidate));
  }

  const JobConfig& base_;
  const CostSource& source_;
  const SearchOptions& options_;
  std::vector<Candidate> found_;
};

std::string short_split(const std::vector<int64_t>& layers) {
  const std::string text = fmt::format("{}", fmt::join(layers, "+"));
  return text.size() <= 28 ? text : text.substr(0, 25) + "...";
}

}  // namespace

void set_split(JobConfig& job, const pipeline::LayerAssignment& layers) {
  job.distributed.pp_split = {.text = "", .layers = pipeline::layers_per_stage(layers)};
  job.distributed.pp_embedding_weight = job.distributed.pp_head_weight = 0;
}

pipeline::LayerAssignment cost_split(const JobConfig& job, const CostSource& source) {
  return SplitClimber(job, source).climb();
}

double memory_budget(const JobConfig& job, const CostSource& source) {
  if (job.distributed.pp_memory_gb > 0) return job.distributed.pp_memory_gb * 1e9;
  return source.device.memory;
}

std::vector<Candidate> search(const JobConfig& job, const CostSource& source, const SearchOptions& options) {
  std::vector<Candidate> found = Searcher(job, source, options).run();
  if (found.empty()) {
    throw UsageError(fmt::format(
        "no schedule exists for {} pipeline ranks, {} layers and {} microbatches: use fewer ranks",
        job.distributed.pp, job.model.num_hidden_layers, job.train.grad_accum_steps));
  }
  return found;
}

std::string render_ranking(const std::vector<Candidate>& candidates, double budget, size_t rows) {
  std::string out = fmt::format("{:>4}  {:<17} {:>6} {:>4} {:>4}  {:<28} {:<9} {:>10} {:>10} {:>8} {:>10}\n",
                                "rank", "schedule", "stages", "m", "mbs", "layers per stage", "recompute",
                                "step", "tok/s", "bubble", "peak");
  for (size_t i = 0; i < std::min(rows, candidates.size()); ++i) {
    const Candidate& c = candidates[i];
    const config::DistributedSection& d = c.job.distributed;
    out += fmt::format(
        "{:>4}  {:<17} {:>6} {:>4} {:>4}  {:<28} {:<9} {:>8.4g} s {:>10.0f} {:>6.1f} % {:>7.2f} GB{}\n",
        i + 1, d.pp_schedule, d.pp_stages_per_rank, c.job.train.grad_accum_steps,
        c.job.train.micro_batch_size, short_split(d.pp_split.layers), c.job.train.recompute,
        c.prediction.step_time, c.prediction.tokens_per_s, 100 * c.prediction.bubble(),
        static_cast<double>(c.prediction.peak_bytes()) / 1e9, c.fits ? "" : "  does not fit");
  }
  if (candidates.size() > rows) out += fmt::format("... and {} more\n", candidates.size() - rows);
  if (budget > 0) out += fmt::format("budget {:.2f} GB a rank\n", budget / 1e9);
  return out;
}

}  // namespace pptrain::app
