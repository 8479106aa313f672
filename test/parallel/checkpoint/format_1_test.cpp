// Checkpoints of format 1 (test/golden/checkpoints) stay readable.
#include <filesystem>

#include "core/base/error.h"
#include "parallel/checkpoint/manifest.h"
#include "test/parallel/checkpoint/example.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/paths.h"

using namespace pptrain;
using namespace pptrain::checkpoint;
using namespace pptrain::test;

namespace fs = std::filesystem;

namespace {

const fs::path golden = source_dir() / "test/golden/checkpoints/format_1";

const std::vector<std::pair<std::string, std::vector<int64_t>>> tensors = {
    {"embed.weight", {8, 6}},
    {"head.weight", {8, 6}},
    {"layers.0.attn.q.weight", {6, 6}},
    {"layers.0.attn_norm.weight", {6}},
    {"layers.0.mlp.down.weight", {6, 8}},
    {"layers.1.attn.q.weight", {6, 6}},
    {"layers.1.attn_norm.weight", {6}},
    {"layers.1.mlp.down.weight", {6, 8}},
    {"norm.weight", {6}}};

// The tensor's values by the golden folder's README.
at::Tensor expected(const std::string& file, const std::string& name, const std::vector<int64_t>& shape) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  const auto shift = static_cast<int64_t>(file.size() + name.size());
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    tensor.data_ptr<float>()[i] = static_cast<float>((7 * i + shift) % 31 - 15) / 8;
  }
  return tensor;
}

}  // namespace

TEST_CASE("a checkpoint of format 1 loads with its values") {
  CHECK(verify(golden / "step_3").empty());
  std::string reports;
  CHECK(find_resumable(golden, [&](const std::string& text) { reports += text; }) == golden / "step_3");
  CHECK(reports.empty());
  const Reader reader(golden / "step_3");
  CHECK(reader.state() == RunState{.step = 3,
                                   .optimizer_step = 2,
                                   .next_sample = 96,
                                   .tokens = 1536,
                                   .skipped = 1,
                                   .skipped_in_a_row = 0,
                                   .seed = 42});
  CHECK(read_manifest(golden / "step_3").layout == Layout{{"pp", "2"}, {"pp_schedule", "1f1b"}});
  for (const std::string file : {"model", "adamw.exp_avg", "adamw.exp_avg_sq"}) {
    REQUIRE(reader.names(file).size() == tensors.size());
    for (const auto& [name, shape] : tensors) {
      CAPTURE(file, name);
      CHECK(reader.global_shape(file, name) == shape);
      at::Tensor out = at::empty(shape, at::kFloat);
      reader.read(file, name, out);
      CHECK(out.equal(expected(file, name, shape)));
    }
  }
}

TEST_CASE("slices of a checkpoint of format 1 are read too") {
  const Reader reader(golden / "step_3");
  const nn::SliceShape columns{.global = {6, 8}, .offset = {0, 5}, .box = {6, 3}, .begin = 0, .end = 18};
  at::Tensor out = at::empty({6, 3}, at::kFloat);
  reader.read("model", "layers.1.mlp.down.weight", columns, out);
  CHECK(out.equal(expected("model", "layers.1.mlp.down.weight", {6, 8}).narrow(1, 5, 3)));
}

TEST_CASE("a damaged checkpoint of format 1 is refused by name") {
  const ScratchFolder folder;
  fs::copy(golden, folder / "checkpoints", fs::copy_options::recursive);
  const fs::path step = folder / "checkpoints/step_3";
  overwrite(step / "stage_1/model.safetensors", [](std::string& bytes) { bytes.back() ^= 1; });
  const auto problems = verify(step);
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0],
             contains_text("stage_1/model.safetensors': the tensor '") && contains_text("' is damaged"));
  const auto load = [&](comm::Communicator& world) { Reader(step).read_shared(world, {}); };
  CHECK_THROWS_WITH(comm::run_thread_ranks(2, load), contains_text("' is damaged"));
}

TEST_CASE("a new checkpoint says format 2, which programs that know format 1 alone refuse") {
  const ScratchFolder folder;
  save_example(folder.path(), 1, 1);
  CHECK_THAT(ScratchFolder::read_file(folder / "step_1" / manifest_name), contains_text("\"version\": 2"));
}
