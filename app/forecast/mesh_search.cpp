#include "app/forecast/search.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "app/forecast/layout_model.h"
#include "app/forecast/legal_meshes.h"
#include "app/plan/plan.h"
#include "core/base/error.h"
#include "core/base/threads.h"
#include "core/config/field.h"
#include "core/config/options.h"
#include "core/config/validate.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"

namespace pptrain::app {

namespace {

constexpr int64_t largest_microbatch = 64;    // samples
constexpr int64_t most_actions = 40'000'000;  // simulated in the search for the best, a few seconds' work
constexpr int64_t most_exact_actions = 2'000'000;  // of a step that is predicted whole
constexpr size_t tries_of_family = 6;              // of a combination of axes that no best layout has
constexpr size_t meshes_refined = 3;
constexpr double worth_refining = 1e-3;  // of the step
constexpr double worth_an_order = 1.01;  // part of the first one's step, at most: orders gain little more
// The largest pipeline ranks x microbatches x slices for which slices are chosen, orders searched, meshes
// refined.
constexpr int64_t largest_to_slice = 1024, largest_to_order = 4096, largest_to_refine = 16'384;
constexpr double never = std::numeric_limits<double>::infinity();

// A layout with lower bounds of its costs, and what is known of it.
struct Bounded {
  Layout layout;
  size_t mesh = 0;  // among the legal meshes
  double time = 0;  // s a step at least
  RankBytes bytes;  // of the fullest rank at least
  bool has_room = true;
  bool simulated = false;
};

struct Found {
  size_t layout = 0;  // among the bounded layouts
  Candidate candidate;
};

std::string axes_of(const mesh::MeshShape& mesh) {
  std::vector<std::string> axes;
  for (const auto& [axis, size] : mesh.sizes()) {
    if (size > 1) axes.push_back(axis);
  }
  return axes.empty() ? "one rank" : fmt::format("{}", fmt::join(axes, " x "));
}

class MeshSearcher {
 public:
  MeshSearcher(const PlanBase& base, const CostSource& source, const SearchOptions& options)
      : base_(base),
        source_(source),
        options_(options),
        dry_runs_(base.model),
        meshes_(legal_meshes(base, options.world, samples_of_step(base))) {
    if (source.device.gpu.is_gpu())
      std::erase_if(meshes_,
                    [&](const mesh::MeshShape& mesh) { return !gpu_blocks(on_mesh(base, mesh)).fit(); });
    links_.resize(meshes_.size());
    for_each_in_parallel(meshes_.size(), [&](size_t mesh) {
      links_[mesh] = make_links(base_, source_.device, meshes_[mesh]);
    });
  }

  MeshSearchResult run() {
    say(fmt::format("running the layers of {} meshes dry", meshes_.size()));
    run_dry();
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) list_layouts(mesh);
    std::ranges::stable_sort(layouts_, {}, &Bounded::time);
    say(fmt::format("simulating the best of {} layouts", layouts_.size()));
    find_best();
    cover_families();
    std::optional<Prediction> exact;
    const std::vector<size_t> ranking = rank_what_fits(exact);
    MeshSearchResult result{.samples = samples_of_step(base_),
                            .meshes = std::ssize(meshes_),
                            .layouts = std::ssize(layouts_),
                            .ranking = {},
                            .time = {},
                            .refined = {},
                            .losers = {}};
    if (!ranking.empty()) {
      for (const size_t found : ranking) result.ranking.push_back(with_layers(found_[found]));
      try_neighbours(found_[ranking.front()].layout);
      result.time = split(found_[ranking.front()]);
      add_losers(ranking.front(), result.losers);
      if (exact) put_first(*exact, result);
      for (size_t row = 0; row < ranking.size(); ++row) {
        const TimeSplit time = row == 0 ? result.time : split(found_[ranking[row]]);
        result.ranking[row].bubble = time.bubble / result.ranking[row].step_time;
      }
      if (exact) result.refined = refined(result.ranking);
    } else {
      add_losers(std::nullopt, result.losers);
    }
    result.simulated = std::ranges::count(layouts_, true, &Bounded::simulated);
    add_best_of_pp(result);
    return result;
  }

 private:
  // --- which layouts there are, and their bounds
  std::vector<int64_t> microbatch_sizes(const mesh::MeshShape& mesh) const;
  void run_dry();
  void list_layouts(size_t mesh);
  void list_layouts_of(size_t mesh);
  void add_layout(size_t mesh, const Layout& layout, WholeModelCosts& whole);
  LayoutModel model_of(const Bounded& bounded) {
    return {bounded.layout, base_, source_, dry_runs_, links_[bounded.mesh]};
  }
  bool fits(const RankBytes& bytes) const {
    return options_.budget <= 0 || static_cast<double>(bytes.total()) <= options_.budget;
  }

  // --- simulating
  void find_best();
  void cover_families();
  bool simulate_until_one_fits(std::span<const size_t> layouts);
  void try_neighbours(size_t best);
  void simulate(size_t layout);
  void add_to_mesh(size_t mesh, double step_time);
  double worst_ranked() const;

  // --- results
  void say(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }
  void add_best_of_pp(MeshSearchResult& result);
  std::vector<size_t> rank_meshes() const;
  bool exists(const Layout& layout) const;
  Candidate with_layers(const Found& found);
  TimeSplit split(const Found& found) {
    return model_of(layouts_[found.layout]).split(shapes_, found.candidate);
  }
  std::vector<size_t> rank_what_fits(std::optional<Prediction>& exact);
  std::optional<Prediction> predict_whole(const Layout& layout) const;
  void refuse(Found& found, const RankBytes& bytes);
  static void put_first(const Prediction& exact, MeshSearchResult& result);
  struct Refined {
    Candidate candidate;
    PlanBase base;  // of the job that it was found for
  };
  void try_out(const PlanBase& base, int order_effort, std::optional<Refined>& best) const;
  bool is_worth_an_order(const Candidate& candidate, double fastest) const;
  std::optional<Candidate> refined(std::span<const Candidate> ranking) const;
  std::optional<PlanBase> left_open(const Layout& layout) const;
  bool asks_for_more() const;
  void add_losers(std::optional<size_t> best, std::vector<Loser>& losers);
  std::optional<std::string> difference(const Found& other, const Found* best) const;
  static bool better(const Found& one, const Found& other);
  std::string why(const Found& loser, const Found* best);

  const PlanBase& base_;
  const CostSource& source_;
  const SearchOptions& options_;
  FootprintCache dry_runs_;
  ScheduleShapes shapes_;
  std::vector<mesh::MeshShape> meshes_;
  std::vector<std::shared_ptr<const MeshLinks>> links_;  // [mesh]
  std::vector<Bounded> layouts_;                         // by least time
  std::vector<Found> found_;
  std::map<std::string, std::pair<mesh::MeshShape, std::string>>
      refusals_;                           // of a combination of axes, the first
  std::map<size_t, double> best_of_mesh_;  // s, of those that fit
  int64_t actions_ = 0;
};

// Samples of a microbatch, ascending.
std::vector<int64_t> MeshSearcher::microbatch_sizes(const mesh::MeshShape& mesh) const {
  const int64_t samples = samples_of_step(base_) / mesh.size(mesh::Group::batch);
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= std::min(samples, largest_microbatch); ++size) {
    if (samples % size == 0) sizes.push_back(size);
  }
  return sizes;
}

// Runs dry what bounds need, most of the search's time, on all cores: each thread takes a microbatch that no
// other thread has.
void MeshSearcher::run_dry() {
  std::vector<std::pair<mesh::MeshShape, int64_t>> known;
  std::vector<std::vector<LayoutModel>> models;  // [microbatch][recompute]
  for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) {
    const mesh::MeshShape shape = seen_by_passes(meshes_[mesh]);
    for (const int64_t size : microbatch_sizes(meshes_[mesh])) {
      if (std::ranges::find(known, std::pair(shape, size)) != known.end()) continue;
      known.emplace_back(shape, size);
      std::vector<LayoutModel>& own = models.emplace_back();
      for (const config::Recompute recompute : config::all_recomputes) {
        own.push_back(
            model_of({.layout = {.mesh = meshes_[mesh], .micro_batch_size = size, .recompute = recompute},
                      .mesh = mesh,
                      .bytes = {}}));
      }
    }
  }
  for_each_in_parallel(models.size(), [&](size_t i) {
    try {
      for (const LayoutModel& model : models[i]) {
        WholeModelCosts whole(base_.model);
        model.least_time(whole);
      }
    } catch (const Error&) {  // list_layouts throws it again
    }
  });
}

// The layers themselves refuse what they cannot do on a mesh.
void MeshSearcher::list_layouts(size_t mesh) {
  try {
    list_layouts_of(mesh);
  } catch (const Error& error) {
    std::erase_if(layouts_, [&](const Bounded& bounded) { return bounded.mesh == mesh; });
    refusals_.try_emplace(axes_of(meshes_[mesh]), meshes_[mesh], error.what());
  }
}

void MeshSearcher::list_layouts_of(size_t mesh) {
  const mesh::MeshShape& shape = meshes_[mesh];
  const int64_t samples = samples_of_step(base_) / shape.size(mesh::Group::batch);
  const bool divided = shape.size(mesh::Group::fsdp) > 1 ||
                       (base_.model.sparse.experts > 0 && shape.size(mesh::Group::efsdp) > 1);
  WholeModelCosts whole(base_.model);
  for (const int64_t size : microbatch_sizes(shape)) {
    for (const config::Recompute recompute : config::all_recomputes) {
      for (const bool reshard : {false, true}) {
        for (const bool every : {false, true}) {
          if ((reshard || every) && !divided) continue;
          add_layout(mesh,
                     {.mesh = shape,
                      .micro_batch_size = size,
                      .grad_accum_steps = samples / size,
                      .recompute = recompute,
                      .reshard = reshard,
                      .every_microbatch = every},
                     whole);
        }
      }
    }
  }
}

void MeshSearcher::add_layout(size_t mesh, const Layout& layout, WholeModelCosts& whole) {
  Bounded bounded{.layout = layout, .mesh = mesh, .bytes = {}};
  const LayoutModel model = model_of(bounded);
  bounded.time = model.least_time(whole);
  bounded.bytes = model.least_bytes(whole);
  bounded.has_room = fits(bounded.bytes);
  layouts_.push_back(std::move(bounded));
}

// Simulates all schedules of a layout. Without a pipeline they are all one.
void MeshSearcher::simulate(size_t layout) {
  if (std::exchange(layouts_[layout].simulated, true)) return;
  LayoutModel model = model_of(layouts_[layout]);
  const bool alone = layouts_[layout].layout.mesh.pp == 1;
  const std::vector<std::string> names =
      alone ? std::vector<std::string>{"1f1b"} : schedule::training_schedule_names();
  for (const std::string& name : names) {
    for (int stages = 1; stages <= (alone ? 1 : LayoutModel::most_stages_per_rank); ++stages) {
      auto estimate = model.estimate(shapes_, name, stages);
      if (!estimate) continue;
      estimate->fits = fits(estimate->bytes);
      if (estimate->fits) add_to_mesh(layouts_[layout].mesh, estimate->step_time);
      found_.push_back({layout, *std::move(estimate)});
    }
  }
  actions_ += model.actions();
}

void MeshSearcher::add_to_mesh(size_t mesh, double step_time) {
  const auto [best, first] = best_of_mesh_.try_emplace(mesh, step_time);
  if (!first) best->second = std::min(best->second, step_time);
}

// The time of the slowest mesh that would be listed.
double MeshSearcher::worst_ranked() const {
  const size_t ranked = options_.rows;
  if (best_of_mesh_.size() < ranked) return never;
  std::vector<double> times;
  for (const auto& [mesh, time] : best_of_mesh_) times.push_back(time);
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(ranked) - 1);
  return times[ranked - 1];
}

// Simulates layouts in the order of their bounds, until none that is left can be faster.
void MeshSearcher::find_best() {
  for (size_t i = 0; i < layouts_.size() && actions_ < most_actions; ++i) {
    const Bounded& bounded = layouts_[i];
    if (bounded.time >= worst_ranked()) break;
    if (!bounded.has_room) continue;
    const auto best = best_of_mesh_.find(bounded.mesh);
    if (best == best_of_mesh_.end() || bounded.time < best->second) simulate(i);
  }
}

// Finds a mesh that fits for every combination of axes: tries a few of the layouts that may be fast, then a
// few of the leanest.
void MeshSearcher::cover_families() {
  std::map<std::string, std::vector<size_t>> families;
  for (size_t i = 0; i < layouts_.size(); ++i) {
    if (layouts_[i].has_room) families[axes_of(layouts_[i].layout.mesh)].push_back(i);
  }
  std::set<std::string> fit;
  for (const Found& found : found_) {
    if (found.candidate.fits) fit.insert(axes_of(found.candidate.layout.mesh));
  }
  for (auto& [family, layouts] : families) {
    if (fit.contains(family) || simulate_until_one_fits(layouts)) continue;
    std::ranges::stable_sort(layouts, {}, [&](size_t i) { return layouts_[i].bytes.total(); });
    simulate_until_one_fits(layouts);
  }
}

bool MeshSearcher::simulate_until_one_fits(std::span<const size_t> layouts) {
  for (const size_t layout : layouts.first(std::min(layouts.size(), tries_of_family))) {
    const size_t before = found_.size();
    simulate(layout);
    if (std::any_of(found_.begin() + static_cast<std::ptrdiff_t>(before), found_.end(),
                    [](const Found& found) { return found.candidate.fits; }))
      return true;
  }
  return false;
}

// Simulates a few layouts of each number of pipeline ranks, those with the lowest bounds first.
void MeshSearcher::add_best_of_pp(MeshSearchResult& result) {
  std::map<int, std::vector<size_t>> by_pp;
  for (size_t i = 0; i < layouts_.size(); ++i) {
    const int pp = layouts_[i].layout.mesh.pp;
    const auto is_ranked = [&](const Candidate& c) { return c.layout.mesh.pp == pp; };
    if (layouts_[i].has_room && std::ranges::none_of(result.ranking, is_ranked)) by_pp[pp].push_back(i);
  }
  for (const auto& [pp, layouts] : by_pp) {
    simulate_until_one_fits(layouts);
    const Found* best = nullptr;
    for (const Found& found : found_) {
      const Layout& layout = found.candidate.layout;
      if (layout.mesh.pp != pp || !found.candidate.fits || !exists(layout)) continue;
      if (best == nullptr || better(found, *best)) best = &found;
    }
    if (best == nullptr) continue;
    Candidate candidate = with_layers(*best);
    candidate.bubble = split(*best).bubble / candidate.step_time;
    result.best_of_pp.push_back(std::move(candidate));
  }
}

// Tries the best layout's mesh with one setting changed.
void MeshSearcher::try_neighbours(size_t best) {
  const Layout chosen = layouts_[best].layout;
  for (size_t i = 0; i < layouts_.size(); ++i) {
    const Layout& other = layouts_[i].layout;
    if (layouts_[i].mesh != layouts_[best].mesh) continue;
    const auto changes = std::ranges::count_if(layout_facts(), [&](const LayoutFact& fact) {
      return fact.varies_on_mesh && !fact.same(other, chosen);
    });
    if (changes == 1) simulate(i);
  }
}

// The best of each mesh that fits and whose schedule exists for all microbatches.
std::vector<size_t> MeshSearcher::rank_meshes() const {
  std::vector<size_t> order;
  for (size_t i = 0; i < found_.size(); ++i) {
    if (found_[i].candidate.fits) order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](size_t i) {
    return std::tuple(found_[i].candidate.step_time, found_[i].candidate.bytes.total());
  });
  std::vector<size_t> best;
  std::set<size_t> seen;
  for (const size_t i : order) {
    if (best.size() == options_.rows) break;
    if (seen.contains(layouts_[found_[i].layout].mesh) || !exists(found_[i].candidate.layout)) continue;
    seen.insert(layouts_[found_[i].layout].mesh);
    best.push_back(i);
  }
  return best;
}

bool MeshSearcher::exists(const Layout& layout) const {
  if (Stretch(layout.mesh.pp, static_cast<int>(layout.grad_accum_steps)).is_whole()) return true;
  try {
    given_schedule(on_layout(base_, layout).job);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

Candidate MeshSearcher::with_layers(const Found& found) {
  Candidate candidate = found.candidate;
  Layout& layout = candidate.layout;
  const auto tokens = static_cast<double>(samples_of_step(base_) * base_.job.train.seq_len);
  candidate.tokens_per_s = tokens / candidate.step_time;
  const auto stages = static_cast<int>(layout.mesh.pp * layout.stages_per_rank);
  layout.layers = model_of(layouts_[found.layout]).layers(stages);
  return candidate;
}

// The ranking whose first layout, predicted whole, fits. Estimates may be too low: a first that exceeds the
// budget is refused, and the search goes on without it. `exact`: the first one's prediction; none if its step
// has too many actions.
std::vector<size_t> MeshSearcher::rank_what_fits(std::optional<Prediction>& exact) {
  while (true) {
    std::vector<size_t> ranking = rank_meshes();
    if (ranking.empty()) return ranking;
    Found& first = found_[ranking.front()];
    exact = predict_whole(with_layers(first).layout);
    if (!exact || fits(exact->fullest())) return ranking;
    refuse(first, exact->fullest());
    find_best();
  }
}

// A layout takes more than there is: its mesh falls back to the other layouts found on it.
void MeshSearcher::refuse(Found& found, const RankBytes& bytes) {
  found.candidate.fits = false;
  found.candidate.bytes = bytes;
  const size_t mesh = layouts_[found.layout].mesh;
  best_of_mesh_.erase(mesh);
  for (const Found& other : found_) {
    if (other.candidate.fits && layouts_[other.layout].mesh == mesh)
      add_to_mesh(mesh, other.candidate.step_time);
  }
}

// Lowers, proves and predicts the layout, unless its step has too many actions.
std::optional<Prediction> MeshSearcher::predict_whole(const Layout& layout) const {
  const int64_t actions = layout.grad_accum_steps * layout.mesh.pp * layout.stages_per_rank * 6;
  if (actions > most_exact_actions) return std::nullopt;
  PlanBase base = on_layout(base_, layout);
  schedule::Schedule lowered = schedule::lower(given_schedule(base.job), lower_options(base));
  return predict(make_plan(std::move(base), layout, std::move(lowered)), source_);
}

void MeshSearcher::put_first(const Prediction& exact, MeshSearchResult& result) {
  Candidate& first = result.ranking.front();
  result.time.bubble += exact.step_time - first.step_time;
  first.step_time = exact.step_time;
  first.tokens_per_s = exact.tokens_per_s;
  first.bytes = exact.fullest();
}

// Does the job ask for what the ranking lacks?
bool MeshSearcher::asks_for_more() const {
  const Layout asked = layout_of(base_.job, base_.mesh), plain;
  return std::ranges::any_of(layout_facts(), [&](const LayoutFact& fact) {
    return fact.of_job_alone() && !fact.same(asked, plain);
  });
}

// The job on this mesh, with these microbatches, for search(). Schedule, stages, split and recompute are
// open; head and slices are the job's. Nothing if that is impossible or too large.
std::optional<PlanBase> MeshSearcher::left_open(const Layout& layout) const {
  config::JobConfig job = on_layout(base_, layout).job;
  config::DistributedSection& d = job.distributed;
  d.pp_schedule = "auto";
  d.pp_stages_per_rank = 0;
  d.pp_split = {.text = "cost", .layers = {}};
  for (const LayoutFact& fact : layout_facts())
    if (fact.of_job_alone()) config::copy_value(*config::find_option(fact.option), base_.job, job);
  job.train.recompute = {};
  const int64_t cells = d.pp * job.train.grad_accum_steps;
  if (d.cp > 1 || cells > largest_to_slice) d.settle_slices();
  bool possible = d.pp > 1 && cells * d.slices() <= largest_to_refine;
  config::check_layout(job, [&](auto, const std::string&) { possible = false; });
  if (!possible) return std::nullopt;
  PlanBase base = plan_base(job);
  // Stages that do not fit recompute more: none starts with more than the layout that was found.
  config::Recomputation& recompute = base.job.train.recompute;
  if (layout.recompute.most(0) < recompute.most(0)) recompute = layout.recompute;
  return base;
}

// Searches schedules for the job, and keeps the fastest that fits if it is faster than `best`.
void MeshSearcher::try_out(const PlanBase& base, int order_effort, std::optional<Refined>& best) const {
  try {
    const std::vector<Candidate> found =
        search(base, source_, {.budget = options_.budget, .order_effort = order_effort});
    const Candidate& first = found.front();
    if (first.fits && (!best || first.step_time < best->candidate.step_time)) best = {first, base};
  } catch (const UsageError&) {  // no schedule exists with what the job asks for
  }
}

bool MeshSearcher::is_worth_an_order(const Candidate& candidate, double fastest) const {
  const Layout& layout = candidate.layout;
  const int64_t cells = layout.mesh.pp * layout.microbatches();
  if (options_.order_effort == 0 || cells > largest_to_order) return false;
  return asks_for_more() || candidate.step_time < worth_an_order * fastest;
}

// Tries several meshes, since the ranking is by estimates and of plain layouts alone.
std::optional<Candidate> MeshSearcher::refined(std::span<const Candidate> ranking) const {
  std::optional<Refined> best;
  for (size_t tried = 0; const Candidate& candidate : ranking) {
    if (tried == meshes_refined) break;
    const std::optional<PlanBase> base = left_open(candidate.layout);
    if (base) say(fmt::format("refining {}", candidate.layout.mesh.describe()));
    if (base) try_out(*base, 0, best);
    if (base || !asks_for_more()) ++tried;
  }
  if (!best) return std::nullopt;
  const double fastest = ranking.front().step_time;
  if (is_worth_an_order(best->candidate, fastest)) {
    PlanBase base = best->base;
    const Layout& layout = best->candidate.layout;
    for (const LayoutFact& fact : layout_facts())
      if (fact.of_job_alone()) fact.write(layout, base.job);
    say("searching an order");
    try_out(base, options_.order_effort, best);
  }
  const bool faster = best->candidate.step_time < (1 - worth_refining) * fastest;
  return faster || asks_for_more() ? std::optional(best->candidate) : std::nullopt;
}

std::string MeshSearcher::why(const Found& loser, const Found* best) {
  const RankBytes& bytes = loser.candidate.bytes;
  if (!loser.candidate.fits) {
    auto kinds = bytes.kinds();
    std::ranges::sort(kinds, std::greater(), &std::pair<std::string, int64_t>::second);
    const auto gb = [](int64_t count) { return static_cast<double>(count) / 1e9; };
    return fmt::format("memory: {}{:.1f} GB a rank, of these {} {:.1f} and {} {:.1f}",
                       layouts_[loser.layout].simulated ? "" : "at least ", gb(bytes.total()), kinds[0].first,
                       gb(kinds[0].second), kinds[1].first, gb(kinds[1].second));
  }
  std::map<std::string, double> more;
  for (const auto& [name, seconds] : split(loser).parts()) more[name] += seconds;
  if (best) {
    for (const auto& [name, seconds] : split(*best).parts()) more[name] -= seconds;
  }
  std::vector<std::pair<std::string, double>> order(more.begin(), more.end());
  std::ranges::sort(order, std::greater(), &std::pair<std::string, double>::second);
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(2, order.size()); ++i) {
    if (order[i].second <= 0 || (i > 0 && order[i].second < order[0].second / 5)) break;
    text += fmt::format("{}{} +{:.3g} s", i == 0 ? "" : ", ", order[i].first, order[i].second);
  }
  return text.empty() ? "as fast" : text;
}

// How a layout differs from the best: the axes in use; on the best's mesh one setting, or the schedule with
// no other setting. Nothing if it differs in several, or in none.
std::optional<std::string> MeshSearcher::difference(const Found& other, const Found* best) const {
  const Layout& a = other.candidate.layout;
  if (!best) return axes_of(a.mesh);
  const Layout& b = best->candidate.layout;
  if (axes_of(a.mesh) != axes_of(b.mesh)) return axes_of(a.mesh);
  if (a.mesh != b.mesh) return std::nullopt;
  std::vector<std::string> settings;
  for (const LayoutFact& fact : layout_facts()) {
    if (fact.varies_on_mesh && !fact.same(a, b))
      settings.push_back(fmt::format("{} {}", fact.column, fact.text(a)));
  }
  if (settings.empty() && a.schedule != b.schedule) settings.push_back("schedule " + a.schedule);
  return settings.size() == 1 ? std::optional(settings.front()) : std::nullopt;
}

// Layouts that fit come first, the faster before the slower; then the others, the smaller before the larger.
bool MeshSearcher::better(const Found& one, const Found& other) {
  const Candidate &a = one.candidate, &b = other.candidate;
  if (a.fits != b.fits) return a.fits;
  return a.fits ? a.step_time < b.step_time : a.bytes.total() < b.bytes.total();
}

// The best of everything that differs from the best of all in one respect.
void MeshSearcher::add_losers(std::optional<size_t> best, std::vector<Loser>& losers) {
  const Found* const winner = best ? &found_[*best] : nullptr;
  std::map<std::string, Found> best_of;
  const auto offer = [&](const Found& found) {
    const auto what = difference(found, winner);
    if (!what) return;
    const auto [known, first] = best_of.try_emplace(*what, found);
    if (!first && better(found, known->second)) known->second = found;
  };
  for (const Found& found : found_) offer(found);
  // Adds layouts whose bound exceeds the room, if no layout with the same difference was simulated.
  std::set<std::string> simulated;
  for (const auto& [what, found] : best_of) simulated.insert(what);
  for (size_t i = 0; i < layouts_.size(); ++i) {
    if (layouts_[i].has_room) continue;
    Found found{i, {.layout = layouts_[i].layout, .bytes = layouts_[i].bytes, .fits = false}};
    found.candidate.layout.schedule = "any";
    const auto what = difference(found, winner);
    if (what && !simulated.contains(*what)) offer(found);
  }
  std::vector<std::pair<std::string, Found>> order(best_of.begin(), best_of.end());
  std::ranges::stable_sort(order, better, &std::pair<std::string, Found>::second);
  for (const auto& [what, found] : order) losers.push_back({what, with_layers(found), why(found, winner)});
  for (const auto& [what, refusal] : refusals_) {
    if (best_of.contains(what)) continue;
    Loser& loser = losers.emplace_back();
    loser.what = what;
    loser.candidate.layout.mesh = refusal.first;
    loser.candidate.fits = false;
    loser.why = refusal.second;
  }
}

}  // namespace

std::vector<std::pair<std::string, double>> TimeSplit::parts() const {
  std::vector<std::pair<std::string, double>> all{{"computing", compute}};
  for (size_t wire = 0; wire < waiting.size(); ++wire)
    all.emplace_back(kernels::wire_names[wire], waiting[wire]);
  all.insert(all.end(), {{"weights", weights},
                         {"gradients", gradients},
                         {"bubble", bubble},
                         {"optimizer", optimizer},
                         {"others", others}});
  std::erase_if(all, [](const auto& part) { return part.second == 0; });
  return all;
}

MeshSearchResult search_meshes(const PlanBase& base, const CostSource& source, const SearchOptions& options) {
  MeshSearchResult result = MeshSearcher(base, source, options).run();
  if (result.meshes == 0) {
    throw UsageError(
        fmt::format("no mesh of {} ranks cuts {} layers, {} heads and {} samples a step into whole parts: "
                    "use another number of ranks, or more samples",
                    options.world, base.model.layers, base.model.heads, result.samples));
  }
  return result;
}

}  // namespace pptrain::app
