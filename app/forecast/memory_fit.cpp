#include "app/forecast/memory_fit.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "app/forecast/plan_report.h"
#include "core/base/error.h"
#include "core/config/validate.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {
namespace {

using Keys = std::vector<std::string>;  // as --set takes them

// One thing to change. Nothing if the layout has it already or cannot have it.
struct JobChange {
  std::function<bool(Layout&)> make;
  std::function<Keys(const Layout&)> set;
  const char* note = "";
};

std::vector<JobChange> changes() {
  std::vector<JobChange> all;
  all.push_back({[](Layout& layout) {
                   return layout.mesh.size(mesh::Group::stage) > 1 &&
                          !std::exchange(layout.every_microbatch, true);
                 },
                 [](const Layout&) { return Keys{"distributed.reduce_gradients=microbatch"}; }});
  all.push_back({[](Layout& layout) {
                   return layout.mesh.size(mesh::Group::fsdp) > 1 && !std::exchange(layout.reshard, true);
                 },
                 [](const Layout&) { return Keys{"distributed.reshard_after_forward=true"}; }});
  for (const config::Recompute level : {config::Recompute::selective, config::Recompute::full}) {
    all.push_back(
        {[level](Layout& layout) {
           for (size_t stage = 0; stage < layout.recompute.words.size(); ++stage) {
             if (layout.recompute.most(static_cast<int>(stage)) >= level) return false;
           }
           layout.recompute = level;
           return true;
         },
         [level](const Layout&) { return Keys{fmt::format("train.recompute={}", to_string(level))}; }});
  }
  all.push_back({[](Layout& layout) {
                   if (layout.micro_batch_size % 2 != 0) return false;
                   layout.micro_batch_size /= 2;
                   layout.grad_accum_steps *= 2;
                   return true;
                 },
                 [](const Layout& layout) {
                   return Keys{fmt::format("train.micro_batch_size={}", layout.micro_batch_size),
                               fmt::format("train.grad_accum_steps={}", layout.grad_accum_steps)};
                 }});
  all.push_back({[](Layout& layout) {
                   layout.mesh.dp_shard *= 2;
                   return true;
                 },
                 [](const Layout& layout) {
                   return Keys{fmt::format("distributed.dp_shard={}", layout.mesh.dp_shard)};
                 },
                 "twice the ranks"});
  return all;
}

// Predicts layouts of the plan's stages.
class Pricing {
 public:
  Pricing(const Plan& plan, const CostSource& source) : plan_(plan), source_(source), dry_runs_(plan.model) {}

  // Nothing if the layout is impossible.
  std::optional<Prediction> price(const Layout& layout) {
    try {
      PlanBase base = on_layout(plan_, layout);
      bool possible = true;
      config::JobConfig job = base.job;
      config::check_layout(job, [&](auto, const std::string&) { possible = false; });
      if (!possible) return std::nullopt;
      const bool same_steps = layout.grad_accum_steps == plan_.job.train.grad_accum_steps;
      if (!same_steps && plan_.keeps_schedule()) return std::nullopt;
      schedule::Schedule compute = same_steps ? plan_.compute : given_schedule(base.job);
      schedule::Schedule lowered = schedule::lower(std::move(compute), lower_options(base));
      const Plan changed = make_plan(std::move(base), layout, std::move(lowered));
      return predict(changed, CostModel(dry_runs_, changed, source_));
    } catch (const Error&) {
      return std::nullopt;
    }
  }

 private:
  const Plan& plan_;
  const CostSource& source_;
  FootprintCache dry_runs_;
};

double gb(double bytes) {
  return bytes / 1e9;
}

}  // namespace

std::string in_units(double bytes) {
  return bytes >= 1e9 ? fmt::format("{:.2f} GB", gb(bytes)) : fmt::format("{:.1f} MB", bytes / 1e6);
}

std::string MemoryFit::describe() const {
  if (of_host)
    return fmt::format("the job needs {:.1f} GB on this host ({} rank{}), and {:.1f} GB are available",
                       gb(needed), ranks, ranks == 1 ? "" : "s", gb(room));
  return fmt::format("rank {} needs {}{}", rank, in_units(needed),
                     room > 0 ? fmt::format("; {} has {}", place, in_units(room)) : "");
}

std::string MemoryFit::shortage() const {
  return fmt::format(
      "{}. {}pptrain plan --search --memory-gb {:.1f} finds what fits. run.force_memory = true starts "
      "all the same",
      describe(),
      of_host ? "Use more hosts or ranks, train.recompute, or a smaller train.micro_batch_size; "
              : "pptrain plan says what makes it fit; ",
      gb(room / ranks));
}

MemoryFit fit_on_gpu(const std::vector<RankBytes>& ranks, double room, std::string place) {
  const auto fullest = std::ranges::max_element(ranks, {}, &RankBytes::total);
  return {.needed = static_cast<double>(fullest->total()),
          .room = room,
          .rank = static_cast<int>(fullest - ranks.begin()),
          .place = std::move(place)};
}

MemoryFit fit_on_host(const Plan& plan, const std::vector<RankBytes>& ranks, int64_t program,
                      double available) {
  const int world = plan.mesh.world_size(), stride = world / plan.mesh.pp;
  const int64_t given = plan.job.distributed.ranks_per_host;
  const int per_host = given > 0 ? static_cast<int>(std::min<int64_t>(given, world)) : world;
  MemoryFit fit{.room = available, .ranks = per_host, .of_host = true, .place = "this host"};
  for (int first = 0; first < world; first += per_host) {
    double needed = static_cast<double>(program + memory_copy_bytes(plan));
    for (int rank = first; rank < std::min(first + per_host, world); ++rank)
      needed += static_cast<double>(ranks[static_cast<size_t>(rank / stride)].total());
    fit.needed = std::max(fit.needed, needed);
  }
  return fit;
}

std::vector<Remedy> remedies(const Plan& plan, const CostSource& source, double room) {
  constexpr size_t most = 3;
  Pricing pricing(plan, source);
  Layout whole = layout_of(plan.job, plan.mesh);
  whole.layers = plan.layers;
  std::vector<Remedy> alone;
  Remedy together;
  Layout changed = whole;
  for (const JobChange& change : changes()) {
    const auto price = [&](Layout& layout, Remedy remedy) -> std::optional<Remedy> {
      if (!change.make(layout)) return std::nullopt;
      const std::optional<Prediction> p = pricing.price(layout);
      if (!p) return std::nullopt;
      for (const std::string& set : change.set(layout)) {
        const std::string key = set.substr(0, set.find('=') + 1);
        std::erase_if(remedy.set, [&](const std::string& earlier) { return earlier.starts_with(key); });
        remedy.set.push_back(set);
      }
      remedy.note = change.note;
      remedy.bytes = static_cast<double>(p->peak_bytes());
      remedy.step_time = p->step_time;
      return remedy;
    };
    Layout single = whole;
    if (const auto remedy = price(single, {}); remedy && remedy->bytes <= room) alone.push_back(*remedy);
    if (together.bytes > 0 && together.bytes <= room) continue;
    Layout next = changed;
    if (auto remedy = price(next, together)) {
      together = *std::move(remedy);
      changed = std::move(next);
    }
  }
  if (alone.empty()) {
    if (together.bytes > 0 && together.bytes <= room) return {together};
    return {};
  }
  std::ranges::stable_sort(alone, {}, &Remedy::step_time);
  alone.resize(std::min(alone.size(), most));
  return alone;
}

}  // namespace pptrain::app
