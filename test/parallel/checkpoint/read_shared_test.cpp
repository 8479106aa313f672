// Ranks load and check a checkpoint together.
#include <spdlog/fmt/fmt.h>

#include <atomic>
#include <fstream>

#include "core/io/safetensors.h"
#include "test/parallel/checkpoint/example.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::checkpoint;
using namespace pptrain::test;

namespace fs = std::filesystem;

namespace {

constexpr int64_t rows = 64, columns = 4096;  // 1 MiB a tensor
constexpr int tensors = 6;

std::string name_of(int i) {
  return fmt::format("layers.{}.weight", i);
}

at::Tensor value(int i) {
  return at::arange(i, i + rows * columns, at::kFloat).view({rows, columns});
}

nn::SliceShape rows_of(int rank, int ranks) {
  return {.global = {rows, columns},
          .offset = {0, 0},
          .box = {rows, columns},
          .begin = rows * columns * rank / ranks,
          .end = rows * columns * (rank + 1) / ranks};
}

at::Tensor part(int i, const nn::SliceShape& slice) {
  return value(i).view({-1}).narrow(0, slice.begin, slice.numel());
}

// Saves every tensor in one slice per rank.
void save_slices(const fs::path& root, int ranks) {
  comm::run_thread_ranks(ranks, [&](comm::Communicator& world) {
    StageContents stage{.stage = 0, .part = world.rank(), .parts = ranks, .files = {}};
    const nn::SliceShape slice = rows_of(world.rank(), ranks);
    for (int i = 0; i < tensors; ++i) stage.files["model"].push_back({name_of(i), slice, part(i, slice)});
    save(world, {.root = root}, example_state(1), {stage});
  });
}

// The bytes that this process has read by system calls.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string key;
  int64_t number = -1;
  file >> key >> number;
  return key == "rchar:" ? number : -1;
}

struct Loaded {
  std::string problem;
  int64_t bytes = 0;
  int wrong = 0;
};

Loaded load(const fs::path& step_dir, int ranks, int wanted_tensors = tensors) {
  Loaded loaded;
  std::atomic<int> wrong{0};
  const int64_t before = bytes_read();
  comm::run_thread_ranks(ranks, [&](comm::Communicator& world) {
    const nn::SliceShape slice = rows_of(world.rank(), ranks);
    Destinations wanted;
    for (int i = 0; i < wanted_tensors; ++i)
      wanted["model"].push_back({name_of(i), slice, at::full({slice.numel()}, -1.0F, at::kFloat)});
    const std::string problem =
        load_on_all(world, step_dir, [&](const Reader& reader) { reader.read_shared(world, wanted); });
    if (world.rank() == 0) loaded.problem = problem;
    for (int i = 0; i < wanted_tensors; ++i)
      wrong += wanted["model"][static_cast<size_t>(i)].tensor.equal(part(i, slice)) ? 0 : 1;
  });
  loaded.bytes = bytes_read() - before;
  loaded.wrong = wrong;
  return loaded;
}

constexpr int64_t all_bytes = tensors * rows * columns * 4;

}  // namespace

TEST_CASE("ranks that read what they saved read each byte once") {
  const ScratchFolder folder;
  for (const int ranks : {1, 2, 4}) {
    save_slices(folder / std::to_string(ranks), ranks);
    const Loaded same = load(folder / std::to_string(ranks) / "step_1", ranks);
    CHECK(same.problem.empty());
    CHECK(same.wrong == 0);
    CHECK(same.bytes >= all_bytes);
    CHECK(same.bytes < all_bytes + 200'000);
  }
}

TEST_CASE("ranks of another layout read each byte twice at most") {
  const ScratchFolder folder;
  save_slices(folder.path(), 4);
  for (const int ranks : {1, 2, 3, 8}) {
    const Loaded other = load(folder / "step_1", ranks);
    CHECK(other.problem.empty());
    CHECK(other.wrong == 0);
    CHECK(other.bytes >= 2 * all_bytes);
    CHECK(other.bytes < 2 * all_bytes + 200'000);
  }
}

// On each number of ranks; the damaged tensor is wanted whole, in slices, or by no rank.
TEST_CASE("damage anywhere is every rank's to know, and names the tensor") {
  const ScratchFolder folder;
  save_slices(folder.path(), 2);
  for (const int damaged : {0, 3, 5}) {
    const fs::path file = folder / "step_1/stage_0/model.00002-of-00002.safetensors";
    const std::string good = ScratchFolder::read_file(file);
    std::string bad = good;
    const io::SafetensorsReader reader(file);
    bad[reader.offset(name_of(damaged)) + 77] ^= 1;
    ScratchFolder::write_file(file, bad);
    for (const int ranks : {1, 2, 3}) {
      for (const int wanted : {0, 2, tensors}) {
        CAPTURE(damaged, ranks, wanted);
        const Loaded loaded = load(folder / "step_1", ranks, wanted);
        CHECK_THAT(loaded.problem, contains_text("model.00002-of-00002.safetensors") &&
                                       contains_text("'" + name_of(damaged) + "' is damaged"));
      }
    }
    ScratchFolder::write_file(file, good);
  }
  CHECK(load(folder / "step_1", 3).problem.empty());
}

TEST_CASE("a checkpoint that one rank cannot open is no checkpoint for all") {
  const ScratchFolder folder;
  save_slices(folder.path(), 2);
  std::vector<std::string> problems(2);
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const fs::path step = world.rank() == 0 ? folder / "step_1" : folder / "elsewhere";
    problems[static_cast<size_t>(world.rank())] =
        load_on_all(world, step, [&](const Reader& reader) { reader.read_shared(world, {}); });
  });
  CHECK(problems[0] == problems[1]);
  CHECK_THAT(problems[0], contains_text("rank 1: ") && contains_text("elsewhere"));
}
