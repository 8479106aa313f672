// Which checkpoints stay, against plain counting; and the files on disk, with the names for people.
#include "parallel/checkpoint/retention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"
#include "test/parallel/checkpoint/example.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::checkpoint;
using namespace pptrain::test;

namespace {

using Disk = std::map<int64_t, std::optional<double>>;  // step -> validation loss

Scores scores(const Disk& disk) {
  Scores result;
  for (const auto& [step, loss] : disk) {
    if (loss) result[step] = *loss;
  }
  return result;
}

// The number of other checkpoints before it in the order of losses.
int64_t better_than(const Disk& disk, int64_t step) {
  const double own = *disk.at(step);
  return std::ranges::count_if(disk, [&](const auto& other) {
    return other.first != step && other.second &&
           (*other.second < own || (*other.second == own && other.first < step));
  });
}

bool stays(const Disk& disk, int64_t step, int64_t saved, int64_t last_n, int64_t best_n) {
  if (last_n == 0 || step == saved) return true;
  const int64_t newer = std::ranges::count_if(
      disk, [&](const auto& other) { return other.first > step && other.first != saved; });
  if (newer + 1 < last_n) return true;  // the saved one counts first
  return disk.at(step) && better_than(disk, step) < best_n;
}

RunState state_with_loss(int64_t step, std::optional<double> loss) {
  RunState state = example_state(step);
  state.validation_loss = loss;
  return state;
}

// Saves on one rank, as a run that knows the losses of the present checkpoints.
void save_scored(const std::filesystem::path& root, int64_t step, std::optional<double> loss, int64_t last_n,
                 int64_t best_n, bool diverged = false, bool removes_old = true) {
  comm::run_thread_ranks(1, [&](comm::Communicator& world) {
    SaveTerms terms{.removes_old = removes_old, .diverged = diverged, .scores = read_scores(root)};
    if (loss) terms.scores[step] = *loss;
    const SaveOptions options{.root = root,
                              .layout = {},
                              .job_toml = "",
                              .keep_last_n = last_n,
                              .keep = {},
                              .keep_best_n = best_n,
                              .warn = {}};
    save(world, options, state_with_loss(step, loss), {example_stage(0, 1, step)}, terms);
  });
}

}  // namespace

TEST_CASE("the checkpoints that stay are those that counting finds, over random runs") {
  std::mt19937 random(7);
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int run = 0; run < 300; ++run) {
    const int64_t last_n = draw(4), best_n = draw(4);
    Disk disk;
    int64_t step = 0;
    for (int turn = 0; turn < 30; ++turn) {
      step += 1 + draw(3);
      if (draw(8) == 0) step = std::max<int64_t>(1, step - 6);  // resumed from an earlier one
      std::optional<double> loss;
      if (draw(3) > 0) loss = static_cast<double>(draw(6)) / 2;  // with equal ones
      if (loss) {
        Disk with = disk;
        with[step] = loss;
        REQUIRE(is_among_best(scores(disk), step, *loss, best_n) == (better_than(with, step) < best_n));
      }
      Scores known = scores(disk);
      if (draw(10) == 0) known[step + 1000] = -1;  // one that failed to be saved
      disk[step] = loss;
      known.erase(step);
      if (loss) known[step] = *loss;
      std::vector<int64_t> there;
      std::set<int64_t> expected;
      for (const auto& each : disk) {
        there.push_back(each.first);
        if (stays(disk, each.first, step, last_n, best_n)) expected.insert(each.first);
      }
      CAPTURE(run, turn, step, last_n, best_n, there);
      REQUIRE(kept_steps(there, step, last_n, best_n, known) == expected);
      std::erase_if(disk, [&](const auto& each) { return !expected.contains(each.first); });
    }
  }
}

TEST_CASE("a loss that is no number is never among the best") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(best_steps({{1, nan}, {2, 3.0}, {3, 2.0}}, 3) == std::vector<int64_t>{3, 2});
  CHECK_FALSE(is_among_best({}, 1, nan, 5));
}

TEST_CASE("the best stay on disk beside the newest, and are named") {
  const ScratchFolder folder;
  const std::vector<std::optional<double>> losses = {3.0, 1.0, {}, 2.0, 2.5, {}, 4.0};
  for (size_t i = 0; i < losses.size(); ++i)
    save_scored(folder.path(), static_cast<int64_t>(i) + 1, losses[i], 1, 2);
  CHECK(entries(folder.path()) == std::set<std::string>{"latest", "best", "step_2", "step_4", "step_7"});
  CHECK(ScratchFolder::read_file(folder / "best") == "step_2\n");
  CHECK((read_scores(folder.path()) == Scores{{2, 1.0}, {4, 2.0}, {7, 4.0}}));
  // A checkpoint that a user removed no longer counts among the best.
  std::filesystem::remove_all(folder / "step_2");
  save_scored(folder.path(), 8, 3.5, 1, 2);
  CHECK(entries(folder.path()) == std::set<std::string>{"latest", "best", "step_4", "step_8"});
  CHECK(ScratchFolder::read_file(folder / "best") == "step_4\n");
}

TEST_CASE("what a run that diverged has saved is no checkpoint to go on from") {
  const ScratchFolder folder;
  save_scored(folder.path(), 1, 3.0, 1, 1);
  save_scored(folder.path(), 2, 1.0, 1, 1, false, /*removes_old=*/false);
  save_scored(folder.path(), 3, {}, 1, 1, /*diverged=*/true, false);
  save_scored(folder.path(), 3, {}, 1, 1, /*diverged=*/true, false);
  CHECK(entries(folder.path()) ==
        std::set<std::string>{"latest", "best", "step_1", "step_2", "diverged_step_3", "diverged_step_3.1"});
  CHECK(verify(folder / "diverged_step_3.1").empty());
  const auto left = set_aside_diverged(folder.path(), 2, read_scores(folder.path()));
  REQUIRE(left);
  CHECK(left->filename() == "step_1");
  CHECK(ScratchFolder::read_file(folder / "latest") == "step_1\n");
  CHECK(ScratchFolder::read_file(folder / "best") == "step_1\n");
  CHECK(*find_resumable(folder.path(), [](const std::string&) {}) == folder / "step_1");
  CHECK(reads_back(Reader(folder / "diverged_step_2"), 2));
  CHECK_FALSE(set_aside_diverged(folder.path(), 1, {}));
  CHECK_FALSE(std::filesystem::exists(folder / "latest"));
  CHECK(list_step_folders(folder.path()).empty());
}

TEST_CASE("what a manifest holds of losses reads back, and is missing where there is none") {
  Manifest manifest{.state = example_state(4), .layout = {}, .job_toml = "", .files = {}};
  const std::string plain = to_text(manifest);
  CHECK(plain.find("loss") == std::string::npos);
  CHECK(parse_manifest(plain, "m").state == manifest.state);
  manifest.state.validation_loss = 1.0 / 3;
  manifest.state.recent_losses = {0.1, std::nextafter(2.0, 3.0), 1e-300};
  manifest.state.losses_above = 2;
  manifest.state.above_since = 3;
  CHECK(parse_manifest(to_text(manifest), "m").state == manifest.state);
}
