// Saves in the background have the bytes of the saved step, whatever training does meanwhile.
#include "parallel/checkpoint/saver.h"

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "test/parallel/checkpoint/example.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::checkpoint;
using namespace pptrain::test;

namespace fs = std::filesystem;

namespace {

// The tensors of one rank that trains: 3 x 2 MiB and a few small ones.
struct State {
  std::vector<at::Tensor> tensors;
  explicit State(int rank) {
    for (int i = 0; i < 3; ++i) tensors.push_back(at::randn({512, 1024}));
    for (int i = 0; i < 4; ++i) tensors.push_back(at::randn({rank + 5, i}));
  }
  std::vector<StageContents> contents(int rank) const {
    StageContents stage{.stage = rank, .files = {}};
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string name = "r" + std::to_string(rank) + "." + std::to_string(i);
      stage.files[i % 2 == 0 ? "model" : "adamw.exp_avg"].push_back(whole_tensor(name, tensors[i]));
    }
    return {stage};
  }
  void train() {
    for (at::Tensor& t : tensors) t.add_(1);
  }
};

SaveOptions options(const fs::path& root, int64_t keep_last_n = 0) {
  return {.root = root, .layout = {}, .job_toml = "", .keep_last_n = keep_last_n};
}

std::map<std::string, std::string> files_below(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), folder)] = ScratchFolder::read_file(entry.path());
  }
  return files;
}

std::vector<std::byte> read_all(Snapshot& snapshot, const NamedTensor& t, uint64_t from = 0) {
  std::vector<std::byte> bytes(t.tensor.nbytes() - from);
  snapshot.read(t, from, bytes);
  return bytes;
}

}  // namespace

TEST_CASE("a snapshot gives what tensors were, and copies what was not read alone") {
  const at::Tensor a = at::arange(1000, at::kFloat), b = at::arange(10, at::kFloat),
                   c = at::arange(5, 15, at::kFloat);
  std::optional<c10::Stream> none;
  Snapshot snapshot(
      {{.stage = 0,
        .files = {{"model", {whole_tensor("a", a), whole_tensor("b", b), whole_tensor("c", c)}}}}},
      none);
  const auto& tensors = snapshot.stages()[0].files.at("model");
  std::vector<std::byte> head(1600);
  snapshot.read(tensors[0], 0, head);
  read_all(snapshot, tensors[1]);
  snapshot.protect();
  CHECK(snapshot.copied_bytes() == 2400 + 40);
  for (const at::Tensor& t : {a, b, c}) t.fill_(-1);
  const auto rest = read_all(snapshot, tensors[0], 1600);
  CHECK(reinterpret_cast<const float*>(head.data())[399] == 399);
  CHECK(reinterpret_cast<const float*>(rest.data())[0] == 400);
  CHECK(reinterpret_cast<const float*>(rest.data())[599] == 999);
  CHECK(reinterpret_cast<const float*>(read_all(snapshot, tensors[2]).data())[9] == 14);
  snapshot.protect();
  CHECK(snapshot.copied_bytes() == 2400 + 40);
}

// Ranks go on after a random time, at different phases of the save.
TEST_CASE("a save in the background is, byte for byte, the save that training waits for") {
  const ScratchFolder folder;
  std::atomic<uint64_t> copied = 0, needless = 0;
  std::atomic<int> late = 0;
  constexpr int rounds = 12;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const auto comm = disk_communicator(world);
    const int rank = world.rank();
    State state(rank);
    std::mt19937 random(static_cast<unsigned>(rank));
    Saver waits(*comm, options(folder / "waits"), false);
    Saver goes_on(*comm, options(folder / "goes_on"), true);
    for (int64_t step = 1; step <= rounds; ++step) {
      waits.start(example_state(step), state.contents(rank));
      goes_on.start(example_state(step), state.contents(rank));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % (step % 2 == 0 ? 200 : 20000)));
      goes_on.protect();
      if (goes_on.busy()) ++late;
      state.train();
      goes_on.finish();
    }
    copied += goes_on.copied_bytes();
    needless += waits.copied_bytes();
  });
  CHECK(needless == 0);
  CHECK(files_below(folder / "waits") == files_below(folder / "goes_on"));
  CHECK(verify(folder / "goes_on/step_12").empty());
  CHECK(late > 0);
  CHECK(copied > 0);
}

TEST_CASE("one save is under way at most, and the end waits for it") {
  const ScratchFolder folder;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const auto comm = disk_communicator(world);
    State state(world.rank());
    Saver saver(*comm, options(folder.path(), 3), true);
    for (int64_t step = 1; step <= 20; ++step) {
      saver.start(example_state(step), state.contents(world.rank()));
      saver.protect();
      state.train();
    }
  });
  CHECK(entries(folder.path()) == std::set<std::string>{"latest", "step_18", "step_19", "step_20"});
  for (const char* step : {"step_18", "step_19", "step_20"}) CHECK(verify(folder / step).empty());
}

TEST_CASE("a save that fails does not end training, unless it is the last") {
  const ScratchFolder folder;
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited{};
  ::getrlimit(RLIMIT_FSIZE, &unlimited);
  const auto limit = [&](rlim_t bytes) {
    const rlimit value{bytes, unlimited.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &value);
  };
  for (const bool background : {true, false}) {
    const fs::path root = folder / (background ? "background" : "foreground");
    std::atomic<int> refused = 0;
    const auto messages = messages_of(2, [&](comm::Communicator& world) {
      const auto comm = disk_communicator(world);
      State state(world.rank());
      Saver saver(*comm, options(root), background);
      const auto save = [&](int64_t step) {
        saver.start(example_state(step), state.contents(world.rank()));
        saver.protect();
        state.train();
      };
      save(1);
      saver.finish();
      world.barrier();
      limit(1 << 20);  // the disk is full
      save(2);
      save(3);
      try {
        saver.finish();
      } catch (const NotSaved&) {
        ++refused;
      }
      world.barrier();
      limit(unlimited.rlim_cur);
      save(4);
      saver.finish();
      world.barrier();
      limit(1 << 20);
      save(5);
      saver.finish();
    });
    limit(unlimited.rlim_cur);
    CHECK(refused == 2);
    for (const std::string& message : messages)
      CHECK_THAT(message, contains_text("step_5' was not saved (rank ") && contains_text("File too large"));
    CHECK(entries(root) == std::set<std::string>{"latest", "step_1", "step_4"});
    CHECK(find_resumable(root, {}) == root / "step_4");
  }
  std::signal(SIGXFSZ, old_handler);
}

TEST_CASE("another rank's end is no failed save") {
  const ScratchFolder folder;
  const auto run = [&] {
    comm::run_thread_ranks(2, [&](comm::Communicator& world) {
      const auto comm = disk_communicator(world);
      State state(world.rank());
      Saver saver(*comm, options(folder.path()), true);
      if (world.rank() == 1) throw Error("out of order");
      saver.start(example_state(1), state.contents(world.rank()));
      saver.finish();
    });
  };
  CHECK_THROWS_WITH(run(), "out of order");
  CHECK_FALSE(fs::exists(folder / "step_1"));
}

TEST_CASE("what a run began with stays, whatever its age") {
  const ScratchFolder folder;
  for (int64_t step = 1; step <= 6; ++step) {
    comm::run_thread_ranks(1, [&](comm::Communicator& world) {
      SaveOptions kept = options(folder.path(), 2);
      kept.keep = folder.path() / "." / "step_1";  // another name for it
      save(world, kept, example_state(step), {example_stage(0, 1, step)});
    });
  }
  CHECK(entries(folder.path()) == std::set<std::string>{"latest", "step_1", "step_5", "step_6"});
}

TEST_CASE("a leftover of the same name is in nobody's way") {
  const ScratchFolder folder;
  folder.write(".tmp_step_1", "not even a folder");
  fs::create_directories(folder / ".tmp_step_2/stage_0");
  fs::create_directories(folder / ".tmp_step_2.1");
  save_example(folder.path(), 1);
  save_example(folder.path(), 2);
  CHECK(entries(folder.path()) == std::set<std::string>{"latest", "step_1", "step_2"});
}

TEST_CASE("a probe leaves nothing and says what is wrong") {
  const ScratchFolder folder;
  probe(folder.path());
  probe(folder / "not/there/yet");
  CHECK(entries(folder.path()).empty());
  folder.write("file", "in the way");
  CHECK_THROWS_WITH(probe(folder / "file/below"), contains_text("file") && contains_text("Not a directory"));
  comm::run_thread_ranks(3,
                         [&](comm::Communicator& world) { probe_shared(world, folder / "run/checkpoints"); });
  CHECK(entries(folder / "run/checkpoints").empty());
  const auto messages =
      messages_of(2, [&](comm::Communicator& world) { probe_shared(world, folder / "file/below"); });
  for (const std::string& message : messages) {
    CHECK_THAT(message, contains_text("cannot create the folder") && contains_text("Not a directory"));
  }
  // Ranks for which one name is different folders.
  const auto torn = messages_of(2, [&](comm::Communicator& world) {
    fs::create_directories(folder / std::to_string(world.rank()));
    probe_shared(world, folder / std::to_string(world.rank()));
  });
  for (const std::string& message : torn)
    CHECK_THAT(message, contains_text("rank 1: ") && contains_text("share"));
}
