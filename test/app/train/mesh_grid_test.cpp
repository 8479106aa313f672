// A mesh of up to eight ranks trains as one rank does: losses, gradients and norms agree closely. They agree
// to the bit if the same sums are taken in the same order.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "parallel/checkpoint/checkpoint.h"
#include "test/app/train/mesh_grid.h"
#include "test/core/kernels/compare.h"
#include "test/support/captured_log.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using test::Difference;
using test::GridJob;
using test::largest;
using test::Overrides;
using test::relative_error;

namespace {

namespace fs = std::filesystem;

std::vector<nlohmann::json> steps_of(const test::JobResult& result) {
  std::vector<nlohmann::json> steps;
  for (const std::string& line : result.metrics) {
    nlohmann::json step = nlohmann::json::parse(line);
    if (step.contains("grad_norm")) steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<double> validation_losses(const test::JobResult& result) {
  std::vector<double> losses;
  for (const std::string& line : result.metrics) {
    const auto record = nlohmann::json::parse(line);
    if (record.contains("eval_loss")) losses.push_back(record["eval_loss"]);
  }
  return losses;
}

// True if a small change of the gradient changes the step a little. Lion's steps do not.
bool is_smooth(const GridJob& job) {
  return job.optimizer != "lion";
}

// The setting that makes it a job in another type.
std::string in_other_type(const GridJob& job) {
  if (job.dtype == "fp8") return "train.fp8=off";
  return job.dtype == "bf16" ? "train.dtype=fp32" : "train.dtype=bf16";
}

// The allowed distance of two runs in one dtype, as a part of the distance between the job's two dtypes. The
// latter is the effect of rounding to bfloat16 (or FP8) on this tensor on one rank, with all that cancels in
// its sums and grows from step to step. Two runs in bfloat16 differ by twice that. It doubles if
// tensor-parallel ranks round their partial sums too. For few elements chance may triple it; 5 times was
// seen. float32 has units of 2^-24 instead of 2^-9, but also rounds within its sums of some 64 terms; these
// errors grow with the root of the number of terms. 4.7 times 2^-15 was seen, over random jobs, seeds and
// instruction sets. The distance is 1 to 5 % of a gradient. Deliberate faults were found in both dtypes: a
// tenth of one tensor-parallel rank's partial sums lost, a data rank's gradients counted 1.1 times (in
// bfloat16 mostly by the gradient's norm), positions one too large on all context-parallel ranks but the
// first.
double part_of_spread(const GridJob& job) {
  return job.dtype == "fp32" ? 2 * std::sqrt(64.0) * 0x1p-15 : 12;
}

// Relative bounds on losses and norms, from rounding. In bfloat16 every activation is rounded by half of
// 2^-8; over the tokens of a mean most of that cancels. Sums in float32 differ by a few units of 2^-24.
// Lion's steps are signs: rounding decides the sign of a near-zero value. The number of such weights follows
// the difference of gradients. Their effect on a loss or norm adds up like a random walk, with the root of
// their number. FP8 rounds coarser: its bounds are four times those of bfloat16.
struct Tolerance {
  double first_loss, first_norm, loss, norm;
};

Tolerance tolerance_of(const GridJob& job) {
  const Tolerance rounded = {.first_loss = 2e-3, .first_norm = 2e-2, .loss = 5e-3, .norm = 6e-2};
  if (job.dtype == "bf16") return rounded;
  if (job.dtype == "fp8") return {.first_loss = 8e-3, .first_norm = 8e-2, .loss = 2e-2, .norm = 0.24};
  Tolerance result = {.first_loss = 1e-6, .first_norm = 1e-5, .loss = 1e-5, .norm = 3e-5};
  if (!is_smooth(job)) {
    result.loss = std::sqrt(part_of_spread(job)) * rounded.loss;
    result.norm = std::sqrt(part_of_spread(job)) * rounded.norm;
  }
  return result;
}

double number(const nlohmann::json& record, const char* key) {
  return record.at(key).get<double>();
}

void check_steps(const std::vector<nlohmann::json>& steps, const std::vector<nlohmann::json>& reference,
                 const Tolerance& tolerance) {
  REQUIRE(steps.size() == 3);
  REQUIRE(reference.size() == 3);
  CHECK(relative_error(number(steps[0], "loss"), number(reference[0], "loss")) <= tolerance.first_loss);
  CHECK(relative_error(number(steps[2], "loss"), number(reference[2], "loss")) <= tolerance.loss);
  for (size_t step = 0; step < 3; ++step) {
    CAPTURE(step);
    CHECK(relative_error(number(steps[step], "grad_norm"), number(reference[step], "grad_norm")) <=
          (step == 0 ? tolerance.first_norm : tolerance.norm));
    CHECK(number(reference[step], "grad_norm") > 0.5);  // so that clipping acts
    CHECK(steps[step].at("tokens") == reference[step].at("tokens"));
  }
}

using Tensors = std::map<std::string, at::Tensor>;

// The tensors of a checkpoint's file.
Tensors read(const fs::path& run_dir, int step, const std::string& file) {
  const checkpoint::Reader reader(run_dir / fmt::format("checkpoints/step_{}", step));
  Tensors tensors;
  for (const std::string& name : reader.names(file)) {
    at::Tensor& tensor = tensors[name] = at::empty(reader.global_shape(file, name), at::kFloat);
    reader.read(file, name, tensor);
  }
  return tensors;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  return a.sub(b).norm().item<double>();
}

// The folders of one job's runs: on the mesh, on one rank, and on one rank in the other dtype.
struct Folders {
  fs::path run, reference, other;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Checks that tensors of the run agree with one rank's tensors, relative to `scale`. A tensor of few elements
// may be near its rounded self by chance, so its bound is at least the median tensor's. `stored` adds the
// rounding of the stored values, in units of the last place.
void check_tensors(const Tensors& run, const Tensors& reference, const Tensors& other, const Tensors& scale,
                   double part, double stored) {
  REQUIRE(run.size() == reference.size());
  std::map<std::string, double> spread;
  std::vector<double> all;
  for (const auto& [name, expected] : reference) {
    const double size = scale.at(name).norm().item<double>();
    if (size > 0) all.push_back(spread[name] = distance(other.at(name), expected) / size);
  }
  const double typical = median(all);
  for (const auto& [name, expected] : reference) {
    CAPTURE(name, typical);
    const double size = scale.at(name).norm().item<double>();
    if (size == 0) {
      CHECK(run.at(name).equal(expected));
      continue;
    }
    CHECK(Difference(distance(run.at(name), expected) / size) <=
          part * std::max(spread.at(name), typical) + stored * expected.norm().item<double>() / size);
  }
}

std::vector<std::string> moment_files(const GridJob& job) {
  if (job.optimizer == "lion") return {"lion.exp_avg"};
  std::vector<std::string> files{"adamw.exp_avg"};
  if (job.optimizer == "muon") files.emplace_back("muon.momentum");
  return files;
}

// After one step the optimizer's first moment is the gradient, scaled alike on all layouts.
void check_first_gradients(const Folders& folders, const GridJob& job) {
  size_t compared = 0;
  for (const std::string& file : moment_files(job)) {
    CAPTURE(file);
    const Tensors reference = read(folders.reference, 1, file);
    check_tensors(read(folders.run, 1, file), reference, read(folders.other, 1, file), reference,
                  part_of_spread(job), 0);
    compared += reference.size();
  }
  CHECK(compared > 30);
}

Tensors difference(const Tensors& a, const Tensors& b) {
  Tensors result;
  for (const auto& [name, tensor] : a) result[name] = tensor.sub(b.at(name));
  return result;
}

// Compares the changes of the last two steps. Each of three steps rounds each run's weights by half a unit of
// the last place. A norm's weights are about 1 and change by 1e-3, so that is 1e-4 of the change.
void check_smooth_weights(const Folders& folders, const GridJob& job) {
  const Tensors reference = read(folders.reference, 3, "model");
  check_tensors(read(folders.run, 3, "model"), reference, read(folders.other, 3, "model"),
                difference(reference, read(folders.reference, 1, "model")), part_of_spread(job), 3 * 0x1p-23);
}

// Lion's step, the sign of beta1 m + (1 - beta1) g, from a run's moments before and after it: 1 or -1, or 0
// if both moments are 0. NaN if the rounding of these moments may hide the sign.
at::Tensor lion_signs(const at::Tensor& before, const at::Tensor& after) {
  constexpr double beta1 = 0.9, beta2 = 0.95;  // the defaults
  const at::Tensor m = before.to(at::kDouble), next = after.to(at::kDouble);
  const at::Tensor gradient = (next - m * beta2) / (1 - beta2);
  const at::Tensor direction = m * beta1 + gradient * (1 - beta1);
  const at::Tensor rounding = (m.abs() + next.abs()) * (0x1p-22 * (1 - beta1) / (1 - beta2));
  return direction.sign().masked_fill(direction.abs().lt(rounding), std::nan(""));
}

// Which weights moved the same way in all three steps of two runs, certain despite rounding.
std::map<std::string, at::Tensor> same_ways(const fs::path& run, const fs::path& reference) {
  std::map<std::string, at::Tensor> same;
  Tensors before, reference_before;
  for (int step = 1; step <= 3; ++step) {
    const Tensors after = read(run, step, "lion.exp_avg"),
                  reference_after = read(reference, step, "lion.exp_avg");
    for (const auto& [name, moment] : after) {
      const at::Tensor zero = at::zeros_like(moment);
      const auto signs = [&](const Tensors& then, const Tensors& now) {
        return lion_signs(step == 1 ? zero : then.at(name), now.at(name));
      };
      const at::Tensor now_same = signs(before, after).eq(signs(reference_before, reference_after));
      same[name] = step == 1 ? now_same : same.at(name).logical_and(now_same);
    }
    before = after;
    reference_before = reference_after;
  }
  return same;
}

double count(const std::map<std::string, at::Tensor>& flags) {
  double sum = 0;
  for (const auto& [name, tensor] : flags) sum += tensor.sum().item<double>();
  return sum;
}

double size_of(const std::map<std::string, at::Tensor>& flags) {
  double sum = 0;
  for (const auto& [name, tensor] : flags) sum += static_cast<double>(tensor.numel());
  return sum;
}

// A weight with a near-zero average may move the other way in another run, by a full step. The number of such
// weights and their distance are chance. But each weight follows its own run's average, so weights are equal
// if the averages of both runs had the same signs.
void check_lion_weights(const Folders& folders, const GridJob& job,
                        const std::map<std::string, at::Tensor>& known) {
  const Tensors reference = read(folders.reference, 3, "model"), run = read(folders.run, 3, "model");
  for (const auto& [name, same] : known) {
    CAPTURE(name);
    const at::Tensor expected = reference.at(name).masked_select(same);
    const at::Tensor apart = run.at(name).masked_select(same).sub(expected).abs();
    // Units of the last place: one for each step.
    if (expected.numel() > 0) CHECK(largest(apart / (expected.abs() + 1e-6)) <= 3 * 0x1p-23);
  }
  // In bfloat16 about one step in a hundred has another sign.
  CHECK(count(known) > (job.dtype == "fp32" ? 0.99 : 0.8) * size_of(known));
}

// Lion's averages after three steps. The effect on a gradient of weights that moved the other way adds up
// like a random walk, with the root of their number; among few, one may weigh several times another. The
// other dtype's run shows the effect of its number of such weights.
void check_lion_moments(const Folders& folders, const GridJob& job,
                        const std::map<std::string, at::Tensor>& known) {
  double part = part_of_spread(job);
  if (job.dtype == "fp32") {
    const std::map<std::string, at::Tensor> known_other = same_ways(folders.other, folders.reference);
    const double others = size_of(known_other) - count(known_other);
    REQUIRE(others > 0);
    part += 4 * std::sqrt((size_of(known) - count(known)) / others);
  }
  const Tensors reference = read(folders.reference, 3, "lion.exp_avg");
  check_tensors(read(folders.run, 3, "lion.exp_avg"), reference, read(folders.other, 3, "lion.exp_avg"),
                reference, part, 0);
}

void check_weights(const Folders& folders, const GridJob& job) {
  if (is_smooth(job)) {
    check_smooth_weights(folders, job);
  } else {
    const std::map<std::string, at::Tensor> known = same_ways(folders.run, folders.reference);
    check_lion_moments(folders, job, known);
    check_lion_weights(folders, job, known);
  }
}

// How many tokens each expert got, in each step.
std::vector<nlohmann::json> loads_of(const test::JobResult& result) {
  std::vector<nlohmann::json> loads;
  for (const nlohmann::json& step : steps_of(result))
    loads.push_back(step.value("expert_load", nlohmann::json()));
  return loads;
}

// With some seeds a token scores two experts nearly equally, once in some ten thousand tokens, so that
// rounding chooses; or a step has only documents of one token. Such jobs are repeated with another seed; this
// is the limit per grid.
constexpr int most_retaken = 6;

std::string seed_of(bool experts, int retaken) {
  return fmt::format("run.seed={}", test::seed((experts ? 1 : 0) + 100 * static_cast<uint32_t>(retaken)));
}

// A run's result and its generated text.
struct Run {
  test::JobResult result;
  std::string samples;
};

class Grid {
 public:
  explicit Grid(bool experts) : text_(test::grid_job_text(experts)) {}

  void check(const GridJob& job) {
    CAPTURE(job.name());
    while (!check(job, seed_of(job.experts, retaken_))) REQUIRE(++retaken_ <= most_retaken);
  }

  int equal_bits() const { return equal_bits_; }
  int resumed() const { return resumed_; }

 private:
  // Returns false without comparing if a token scored two experts so equally that rounding chose:
  // the experts' loads differ, and the rest is another run.
  bool check(const GridJob& job, const std::string& seed) {
    CAPTURE(seed);
    const Overrides common = test::with(job.common(), {seed});
    const Folders folders{folder_.path() / "run", folder_.path() / "reference", folder_.path() / "other"};
    const Run reference = run(folders.reference, test::with(common, job.one_rank()));
    const Run made = run(folders.run, test::with(common, job.layout()));
    if (has_empty_step(reference) || !same_choices(made, reference)) return false;
    run(folders.other, test::with(common, job.one_rank(), Overrides{in_other_type(job)}));
    check_same(made, reference, tolerance_of(job), job);
    check_first_gradients(folders, job);
    check_weights(folders, job);
    if (jobs_++ % 4 == 0 || job.dtype == "fp8") check_twin(job, common, made);
    if (job.resumed == test::Resumed::no) return true;
    const Run resumed = take_last_step_again(folders.run, test::with(common, job.layout_after()));
    CAPTURE(static_cast<int>(job.resumed));
    if (!same_choices(resumed, reference)) return false;
    check_same(resumed, reference, tolerance_of(job), job);
    check_weights(folders, job);
    ++resumed_;
    return true;
  }

  static bool has_empty_step(const Run& reference) {
    const auto steps = steps_of(reference.result);
    return std::ranges::any_of(steps, [](const auto& step) { return !step.at("loss").is_number(); });
  }
  static bool same_choices(const Run& made, const Run& reference) {
    return loads_of(made.result) == loads_of(reference.result);
  }

  Run run(const fs::path& run_dir, Overrides overrides) {
    if (std::ranges::find(overrides, "checkpoint.resume=auto") == overrides.end()) fs::remove_all(run_dir);
    const app::Plan plan = test::small_plan(text_, run_dir, std::move(overrides));
    const test::CapturedLog log;
    Run made{.result = test::start_plan(plan), .samples = {}};
    std::istringstream lines(log.text());
    for (std::string line; std::getline(lines, line);) {
      if (line.find("  sample ") != std::string::npos) made.samples += line + '\n';
    }
    return made;
  }

  static void check_same(const Run& made, const Run& reference, const Tolerance& tolerance,
                         const GridJob& job) {
    REQUIRE(made.result.exit_code == 0);
    REQUIRE(reference.result.exit_code == 0);
    CHECK(test::steps_over(reference.result, test::grid_clip) > 0);
    check_steps(steps_of(made.result), steps_of(reference.result), tolerance);
    const std::vector<double> losses = validation_losses(made.result),
                              expected = validation_losses(reference.result);
    REQUIRE(expected.size() == (job.generates ? 1 : 0));
    REQUIRE(losses.size() == expected.size());
    if (!job.generates) return;
    CHECK(std::abs(losses[0] - expected[0]) <= 2 * tolerance.loss * expected[0]);
    CHECK_FALSE(made.samples.empty());
    if (job.dtype == "fp32") CHECK(made.samples == reference.samples);
  }

  void check_twin(const GridJob& job, const Overrides& common, const Run& made) {
    const std::optional<GridJob> twin = job.twin();
    if (!twin) return;
    CAPTURE(twin->name());
    const Run other = run(folder_.path() / "twin", test::with(common, twin->layout()));
    CHECK(other.result.metrics == made.result.metrics);
    CHECK(other.samples == made.samples);
    ++equal_bits_;
  }

  Run take_last_step_again(const fs::path& run_dir, const Overrides& overrides) {
    fs::remove_all(run_dir / "checkpoints/step_3");
    std::ofstream(run_dir / "checkpoints/latest") << "step_2\n";
    return run(run_dir, test::with(overrides, {"checkpoint.resume=auto"}));
  }

  std::string text_;
  test::TemporaryFolder folder_;
  int jobs_ = 0, equal_bits_ = 0, resumed_ = 0, retaken_ = 0;
};

// One step on each mesh in turn, from the previous mesh's checkpoint. False if a token scored two experts
// nearly equally.
bool relay_agrees(const std::string& text, const std::vector<mesh::MeshShape>& meshes,
                  const std::string& schedule, const std::string& seed) {
  const test::TemporaryFolder folder;
  GridJob job{.mesh = meshes.front()};
  const auto steps = [&](size_t count) -> Overrides {
    return {fmt::format("train.steps={}", count), "lr_schedule.name=constant", "checkpoint.resume=auto",
            seed};
  };
  const test::JobResult whole = test::run_small_job(
      text, folder.path() / "whole", test::with(job.common(), job.one_rank(), steps(meshes.size())));
  const fs::path run_dir = folder.path() / "relay";
  for (size_t step = 0; step < meshes.size(); ++step) {
    job.mesh = meshes[step];
    job.schedule = job.mesh.pp > 1 ? schedule : "1f1b";
    CAPTURE(job.name());
    const test::JobResult result =
        test::run_small_job(text, run_dir, test::with(job.common(), job.layout(), steps(step + 1)));
    REQUIRE(result.exit_code == 0);
  }
  if (loads_of(test::read_result(run_dir, 0)) != loads_of(whole)) return false;
  const auto relay = steps_of(test::read_result(run_dir, 0)), expected = steps_of(whole);
  REQUIRE(relay.size() == meshes.size());
  for (size_t step = 0; step < meshes.size(); ++step) {
    CAPTURE(step);
    CHECK(relative_error(number(relay[step], "loss"), number(expected[step], "loss")) <= 1e-5);
    CHECK(relative_error(number(relay[step], "grad_norm"), number(expected[step], "grad_norm")) <= 1e-4);
  }
  return true;
}

void check_relay(bool experts, const std::vector<mesh::MeshShape>& meshes, const std::string& schedule) {
  int retaken = 0;
  while (!relay_agrees(test::grid_job_text(experts), meshes, schedule, seed_of(experts, retaken)))
    REQUIRE(++retaken <= most_retaken);
}

}  // namespace

TEST_CASE("a dense model on meshes of up to eight ranks, all pairs of axes and options", "[dense]") {
  Grid grid(false);
  const std::vector<GridJob> jobs = test::grid_jobs(false);
  REQUIRE(jobs.size() > 50);
  for (const GridJob& job : jobs) grid.check(job);
  CHECK(grid.equal_bits() > 5);
  CHECK(grid.resumed() > 20);
}

TEST_CASE(
    "a model with experts on meshes of up to eight ranks, all pairs of axes, and of an axis and an option",
    "[experts]") {
  Grid grid(true);
  const std::vector<GridJob> jobs = test::grid_jobs(true);
  REQUIRE(jobs.size() > 50);
  for (const GridJob& job : jobs) grid.check(job);
  CHECK(grid.equal_bits() > 5);
  CHECK(grid.resumed() > 20);
}

TEST_CASE("a run goes on from the checkpoint of any other mesh", "[dense]") {
  check_relay(false,
              {{.dp_shard = 2, .tp = 4},
               {.pp = 2, .dp_replicate = 2, .cp = 2},
               {.dp_shard = 2, .cp = 4},
               {.pp = 2, .dp_shard = 2, .tp = 2},
               {.dp_replicate = 2}},
              "zbv");
}

TEST_CASE("a run with experts goes on from the checkpoint of any other mesh", "[experts]") {
  check_relay(true,
              {{.dp_shard = 2, .tp = 4, .ep = 8},
               {.pp = 2, .dp_replicate = 2, .cp = 2},
               {.dp_shard = 2, .cp = 4, .ep = 2},
               {.pp = 2, .dp_shard = 2, .tp = 2, .ep = 4},
               {.dp_replicate = 2}},
              "zb_h1");
}
