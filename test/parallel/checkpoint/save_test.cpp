#include <functional>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/safetensors.h"
#include "parallel/checkpoint/manifest.h"
#include "test/parallel/checkpoint/example.h"
#include "test/parallel/checkpoint/file_size_limit.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::checkpoint;
using namespace pptrain::test;

TEST_CASE("what any number of stages saved is read back by name") {
  for (const int pp : {1, 2, 3, 6}) {
    const ScratchFolder folder;
    save_example(folder / "checkpoints", 7, pp, /*idle=*/pp == 2 ? 2 : 0);
    CHECK(entries(folder / "checkpoints") == std::set<std::string>{"latest", "step_7"});
    CHECK(ScratchFolder::read_file(folder / "checkpoints/latest") == "step_7\n");
    const Reader reader(folder / "checkpoints/step_7");
    CHECK(reader.state() == example_state(7));
    CHECK(read_manifest(folder / "checkpoints/step_7").layout == Layout{{"pp", std::to_string(pp)}});
    CHECK(reads_back(reader, 7));
    CHECK(reader.contains("model", "layers.5.norm.weight"));
    CHECK_FALSE(reader.contains("model", "layers.6.norm.weight"));
    CHECK_FALSE(reader.contains("adamw.exp_avg_sq", "layers.5.norm.weight"));
    CHECK(reader.names("model").size() == 2 * layers);
    CHECK(reader.names("model").front() == "layers.0.attn.q.weight");
    CHECK(verify(folder / "checkpoints/step_7").empty());
  }
}

TEST_CASE("one rank may hold several stages") {
  const ScratchFolder folder;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    const int first = world.rank();
    save(world, {.root = folder.path(), .job_toml = example_job}, example_state(3),
         {example_stage(first, 4, 3), example_stage(3 - first, 4, 3)});
  });
  CHECK(reads_back(Reader(folder / "step_3"), 3));
  CHECK(entries(folder / "step_3") ==
        std::set<std::string>{"manifest.json", "stage_0", "stage_1", "stage_2", "stage_3"});
}

TEST_CASE("the files are plain safetensors, and the manifest holds job and state") {
  const ScratchFolder folder;
  save_example(folder.path(), 1, 2);
  const io::SafetensorsReader file(folder / "step_1/stage_1/model.safetensors");
  const std::string manifest = ScratchFolder::read_file(folder / "step_1/manifest.json");
  for (const std::string& name : example_names(5)) {
    CHECK(file.view(name).equal(example_tensor("model", name, 1)));
    CHECK_THAT(manifest, contains_text("\"" + io::checksum_hex(file.bytes(name)) + "\""));
  }
  CHECK_THAT(manifest, contains_text("seed = 1  # \\\"quoted\\\" \xc3\xa9"));
  CHECK_THAT(manifest, contains_text("18364758544493064720"));  // the seed, all its digits
}

TEST_CASE("a tensor is read into the shape and type that it has, or not at all") {
  const ScratchFolder folder;
  save_example(folder.path(), 1);
  const Reader reader(folder / "step_1");
  const std::string name = "layers.0.attn.q.weight";
  CHECK_THROWS_WITH(reader.read("model", name, at::empty({5, 3}, at::kFloat)),
                    contains_text(name) && contains_text("model.safetensors") &&
                        contains_text("F32 [3, 5]") && contains_text("F32 [5, 3]"));
  CHECK_THROWS_WITH(reader.read("model", name, at::empty({3, 5}, at::kBFloat16)),
                    contains_text("BF16 [3, 5]"));
  CHECK_THROWS_WITH(reader.read("model", "lm_head.weight", at::empty({1}, at::kFloat)),
                    contains_text("lm_head.weight") && contains_text("model"));
  at::Tensor transposed = at::empty({5, 3}, at::kFloat).t();
  reader.read("model", name, transposed);
  CHECK(transposed.equal(example_tensor("model", name, 1)));
}

TEST_CASE("the newest stay") {
  const ScratchFolder folder;
  folder.write("note.txt", "mine");
  std::filesystem::create_directories(folder / "step_best");
  for (int64_t step = 1; step <= 12; ++step) save_example(folder.path(), step, 1, 0, 3);
  CHECK(entries(folder.path()) ==
        std::set<std::string>{"latest", "note.txt", "step_best", "step_10", "step_11", "step_12"});
  save_example(folder.path(), 13, 1, 0, 0);
  CHECK(entries(folder.path()).size() == 7);
  // The checkpoint just saved counts first, whatever its step.
  save_example(folder.path(), 5, 1, 0, 2);
  CHECK(entries(folder.path()) ==
        std::set<std::string>{"latest", "note.txt", "step_best", "step_13", "step_5"});
}

TEST_CASE("a step saved again replaces the old one") {
  const ScratchFolder folder;
  save_example(folder.path(), 4, 3);
  save_example(folder.path(), 4, 2);
  CHECK(entries(folder.path()) == std::set<std::string>{"latest", "step_4"});
  CHECK(entries(folder / "step_4") == std::set<std::string>{"manifest.json", "stage_0", "stage_1"});
  CHECK(verify(folder / "step_4").empty());
}

TEST_CASE("a tensor on two stages fails on every rank before anything is renamed") {
  const ScratchFolder folder;
  save_example(folder.path(), 1);
  const std::string name = "layers.0.norm.weight";
  const auto refused_with = [&](const at::Tensor& second, const std::string& text) {
    const auto messages = messages_of(3, [&](comm::Communicator& world) {
      StageContents stage = example_stage(world.rank(), 3, 2);
      if (world.rank() == 2) stage.files["model"].push_back(whole_tensor(name, second));
      save(world, {.root = folder.path(), .job_toml = example_job, .keep_last_n = 1}, example_state(2),
           {stage});
    });
    for (const std::string& message : messages) CHECK_THAT(message, contains_text(text));
    CHECK(entries(folder.path()) == std::set<std::string>{"latest", "step_1"});
  };
  refused_with(example_tensor("model", name, 2),
               "(rank 0): the tensor 'layers.0.norm.weight' of model: its elements [0, 5) of 5 are stored "
               "twice, in stage_0/model.safetensors and in stage_2/model.safetensors");
  refused_with(at::empty({1}, at::kFloat),
               "it is F32 [1, 5] in stage_0/model.safetensors, but F32 [1] in stage_2/model.safetensors");
}

TEST_CASE("one rank's failure is every rank's") {
  const ScratchFolder folder;
  save_example(folder.path(), 1);
  const auto save_with = [&](const std::function<void(comm::Communicator&, StageContents&)>& change) {
    return messages_of(3, [&](comm::Communicator& world) {
      StageContents stage = example_stage(world.rank(), 3, 2);
      change(world, stage);
      save(world, {.root = folder.path(), .job_toml = example_job, .keep_last_n = 1}, example_state(2),
           {stage});
    });
  };
  const auto all_say = [&](const std::vector<std::string>& messages, const std::string& text) {
    for (const std::string& message : messages) CHECK_THAT(message, contains_text(text));
    CHECK(entries(folder.path()) == std::set<std::string>{"latest", "step_1"});
    CHECK(reads_back(Reader(folder / "step_1"), 1));
  };
  all_say(save_with([](auto& world, auto& stage) {
            if (world.rank() == 1) stage.files["../model"] = stage.files["model"];
          }),
          "(rank 1): '../model' cannot be the name of a file");
  all_say(save_with([](auto& world, auto& stage) {
            if (world.rank() > 0) stage.files["model"].push_back(stage.files["model"].front());
          }),
          "(rank 1)");
  all_say(save_with([](auto& world, auto& stage) {
            if (world.rank() == 2)
              stage.files["model"].push_back(whole_tensor("\xff", at::empty({1}, at::kFloat)));
          }),
          "(rank 2)");
  // Two ranks write one stage's file.
  all_say(save_with([](auto& world, auto& stage) {
            if (world.rank() == 2) stage.stage = 1;
          }),
          "File exists");
}

TEST_CASE("a disk that is full fails clearly and leaves the older checkpoint") {
  const ScratchFolder folder;
  save_example(folder.path(), 1);
  const auto save_big = [&](comm::Communicator& world) {
    StageContents stage = example_stage(world.rank(), 2, 2);
    if (world.rank() == 1)
      stage.files["model"].push_back(whole_tensor("big", at::empty({1 << 16}, at::kFloat)));
    save(world, {.root = folder.path(), .job_toml = example_job, .keep_last_n = 1}, example_state(2),
         {stage});
  };
  {
    const FileSizeLimit limit(1 << 17);
    for (const std::string& message : messages_of(2, save_big)) {
      CHECK_THAT(message, contains_text("step_2' was not saved (rank 1): cannot write to") &&
                              contains_text("stage_1/model.safetensors") && contains_text("File too large"));
    }
  }
  CHECK(entries(folder.path()) == std::set<std::string>{"latest", "step_1"});
  {
    const FileSizeLimit limit(512);  // the manifest is longer
    const auto messages = messages_of(1, [&](comm::Communicator& world) {
      save(world, {.root = folder.path(), .job_toml = std::string(1000, 'x'), .keep_last_n = 1},
           example_state(2), {});
    });
    CHECK_THAT(messages[0], contains_text("manifest.json") && contains_text("File too large"));
  }
  CHECK(entries(folder.path()) == std::set<std::string>{"latest", "step_1"});
  CHECK(find_resumable(folder.path(), {}) == folder / "step_1");
  CHECK(messages_of(2, save_big) == std::vector<std::string>(2));  // with room again
  CHECK(find_resumable(folder.path(), {}) == folder / "step_2");
}

TEST_CASE("a folder that cannot be is named") {
  const ScratchFolder folder;
  folder.write("checkpoints", "a file");
  for (const auto& root : {folder / "checkpoints", folder / "checkpoints/below"}) {
    const auto messages = messages_of(2, [&](comm::Communicator& world) {
      save(world, {.root = root, .keep_last_n = 1}, example_state(1), {example_stage(world.rank(), 2, 1)});
    });
    for (const std::string& message : messages) {
      CHECK_THAT(message, contains_text("cannot create the folder") && contains_text(root.string()) &&
                              contains_text("Not a directory"));
    }
  }
  CHECK(ScratchFolder::read_file(folder / "checkpoints") == "a file");
}
