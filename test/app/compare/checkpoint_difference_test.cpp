#include "app/compare/checkpoint_difference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "app/compare/run_difference.h"
#include "core/base/error.h"
#include "test/parallel/checkpoint/example.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::app;
using namespace pptrain::test;

namespace {

using Change = std::function<void(const std::string& file, const std::string& name, at::Tensor& tensor)>;

// Saves the example of step 7 as `pp` ranks, each tensor as `change` leaves it.
void save_changed(const std::filesystem::path& root, int pp, const Change& change) {
  comm::run_thread_ranks(pp, [&](comm::Communicator& world) {
    checkpoint::StageContents stage = example_stage(world.rank(), pp, 7);
    for (auto& [file, tensors] : stage.files) {
      for (checkpoint::NamedTensor& t : tensors) {
        change(file, t.name, t.tensor);
        t = whole_tensor(t.name, t.tensor);
      }
    }
    checkpoint::save(world, {.root = root}, example_state(7), {stage});
  });
}

std::vector<TensorDifference> differing(std::vector<TensorDifference> tensors) {
  std::erase_if(tensors, &TensorDifference::is_equal);
  return tensors;
}

}  // namespace

TEST_CASE("equal checkpoints of two layouts have no difference") {
  const ScratchFolder folder;
  save_example(folder / "a", 7, 2);
  save_example(folder / "b", 7, 3);
  const auto weights = compare_checkpoints(folder / "a/step_7", folder / "b/step_7", /*state=*/false);
  const auto all = compare_checkpoints(folder / "a/step_7", folder / "b/step_7", /*state=*/true);
  CHECK(weights.size() == 2 * layers);
  CHECK(all.size() == 2 * weights.size());
  CHECK(differing(all).empty());
  CHECK(weights.front().name == "layers.0.attn.q.weight");
  CHECK(weights.front().elements == 15);
  CHECK(weights.front().norm_a > 0);
  CHECK(weights.front().norm_a == weights.front().norm_b);
}

TEST_CASE("a changed element is found by name, index and file") {
  const ScratchFolder folder;
  save_example(folder / "a", 7, 2);
  save_changed(folder / "b", 3, [](const std::string& file, const std::string& name, at::Tensor& tensor) {
    if (file == "model" && name == "layers.4.attn.q.weight") {
      tensor[1][2] += 0.5;
      tensor[2][0] -= 2;
    }
    if (file == "adamw.exp_avg" && name == "layers.2.norm.weight") tensor[0][3] *= -1;
  });
  const auto weights = differing(compare_checkpoints(folder / "a/step_7", folder / "b/step_7", false));
  REQUIRE(weights.size() == 1);
  const TensorDifference& found = weights.front();
  CHECK(found.name == "layers.4.attn.q.weight");
  CHECK(found.differing == 2);
  CHECK(found.index == std::vector<int64_t>{1, 2});
  CHECK(found.b.value == found.a.value + 0.5);
  CHECK(found.a.file == "stage_1/model.safetensors");
  CHECK(found.b.file == "stage_2/model.safetensors");
  CHECK_FALSE(found.a.rank.has_value());  // the example's job cannot be planned
  CHECK(found.largest_absolute == 2);
  CHECK(found.largest_relative > 0);
  CHECK(found.norm_a > found.norm_b);
  const auto all = differing(compare_checkpoints(folder / "a/step_7", folder / "b/step_7", true));
  REQUIRE(all.size() == 2);
  CHECK(all.back().file == "adamw.exp_avg");
  CHECK(all.back().index == std::vector<int64_t>{0, 3});
  CHECK(all.back().largest_relative == 2);
}

TEST_CASE("bits are compared, not numbers") {
  const ScratchFolder folder;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto with = [&](float value) {
    return [value](const std::string& file, const std::string& name, at::Tensor& tensor) {
      if (file == "model" && name == "layers.0.norm.weight") tensor[0][1] = value;
    };
  };
  save_changed(folder / "nan", 1, with(nan));
  save_changed(folder / "nan_too", 2, with(nan));
  save_changed(folder / "zero", 1, with(0.0F));
  save_changed(folder / "minus_zero", 1, with(-0.0F));
  const auto compare = [&](const char* a, const char* b) {
    return differing(compare_checkpoints(folder / a / "step_7", folder / b / "step_7", false));
  };
  CHECK(compare("nan", "nan_too").empty());
  const auto zeros = compare("zero", "minus_zero");
  REQUIRE(zeros.size() == 1);
  CHECK(zeros.front().largest_absolute == 0);
  CHECK(zeros.front().largest_relative == 0);
  const auto lost = compare("zero", "nan");
  REQUIRE(lost.size() == 1);
  CHECK(std::isinf(lost.front().largest_absolute));
  CHECK(std::isinf(lost.front().largest_relative));
}

TEST_CASE("tensors of one checkpoint alone, and of two shapes, are told") {
  const ScratchFolder folder;
  save_example(folder / "a", 7, 1);
  comm::run_thread_ranks(1, [&](comm::Communicator& world) {
    checkpoint::StageContents stage = example_stage(0, 1, 7);
    auto& weights = stage.files.at("model");
    weights[0] = whole_tensor(weights[0].name, weights[0].tensor.reshape({5, 3}));
    weights.erase(weights.begin() + 1);
    weights.push_back(whole_tensor("embed.weight", example_tensor("model", "embed.weight", 7)));
    checkpoint::save(world, {.root = folder / "b"}, example_state(7), {stage});
  });
  const auto found = differing(compare_checkpoints(folder / "a/step_7", folder / "b/step_7", false));
  REQUIRE(found.size() == 3);
  CHECK(found[0].name == "embed.weight");  // the model begins with it
  CHECK(found[0].mismatch == "only in B");
  CHECK(found[1].mismatch == "F32 [3, 5] in A, F32 [5, 3] in B");
  CHECK(found[2].mismatch == "only in A");
}

TEST_CASE("slices of several ranks are compared as one tensor, beyond the first million elements") {
  const ScratchFolder folder;
  constexpr int64_t rows = 3, columns = int64_t{2} << 20;
  const auto save = [&](const char* name, int parts, int64_t changed) {
    comm::run_thread_ranks(parts, [&](comm::Communicator& world) {
      at::Tensor whole = at::arange(0, rows * columns, at::kFloat);
      if (changed >= 0) whole[changed] = -1;
      nn::SliceShape slice = nn::whole_slice({rows, columns});
      slice.begin = rows * columns * world.rank() / parts;
      slice.end = rows * columns * (world.rank() + 1) / parts;
      checkpoint::StageContents stage{.stage = 0, .part = world.rank(), .parts = parts, .files = {}};
      stage.files["model"].push_back(
          {"layers.0.mlp.up.weight", slice, whole.slice(0, slice.begin, slice.end).contiguous()});
      checkpoint::save(world, {.root = folder / name}, example_state(7), {stage});
    });
  };
  save("a", 2, -1);
  save("b", 3, 2 * columns + 9);
  save("c", 3, -1);
  CHECK(differing(compare_checkpoints(folder / "a/step_7", folder / "c/step_7", false)).empty());
  const auto found = differing(compare_checkpoints(folder / "a/step_7", folder / "b/step_7", false));
  REQUIRE(found.size() == 1);
  CHECK(found.front().differing == 1);
  CHECK(found.front().index == std::vector<int64_t>{2, 9});
  CHECK(found.front().a.file == "stage_0/model.00002-of-00002.safetensors");
  CHECK(found.front().b.file == "stage_0/model.00003-of-00003.safetensors");
}

TEST_CASE("a damaged checkpoint is not compared") {
  const ScratchFolder folder;
  save_example(folder / "a", 7, 1);
  save_example(folder / "b", 7, 1);
  overwrite(folder / "b/step_7/stage_0/model.safetensors", [](std::string& bytes) { bytes.back() ^= 1; });
  CHECK_THROWS_AS(compare_checkpoints(folder / "a/step_7", folder / "b/step_7", false), Error);
}

TEST_CASE("the layer of a tensor is in its name") {
  CHECK(layer_of("layers.12.attn.q.weight") == 12);
  CHECK(layer_of("embed.weight") == std::nullopt);
  CHECK(layer_of("layers.x.weight") == std::nullopt);
  CHECK(layer_of("layers.3") == std::nullopt);
}

TEST_CASE("the first of the common checkpoints that differs is found") {
  const ScratchFolder folder;
  RunData a, b;
  a.folder = folder / "a";
  b.folder = folder / "b";
  for (int64_t step = 1; step <= 9; ++step) {
    save_example(folder / "a/checkpoints", step, 1);
    if (step % 2 == 1) save_example(folder / "b/checkpoints", step, 2);
    if (step >= 7) save_example(folder / "b/checkpoints", step, 1);
  }
  a.kept = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  b.kept = {1, 3, 5, 7, 9};
  CHECK(search_checkpoints(a, b).equal == 9);
  CHECK_FALSE(search_checkpoints(a, b).differs.has_value());
  for (const int64_t first : {1, 5, 9}) {
    for (const int64_t step : b.kept) {
      save_example(folder / "b/checkpoints", step, 2);
      if (step < first) continue;
      // The contents of step 100 under this step's name.
      save_example(folder / "other", 100, 1);
      std::filesystem::remove_all(b.folder / "checkpoints" / ("step_" + std::to_string(step)));
      std::filesystem::rename(folder / "other/step_100",
                              b.folder / "checkpoints" / ("step_" + std::to_string(step)));
    }
    const CheckpointSearch found = search_checkpoints(a, b);
    CHECK(found.common == b.kept);
    CHECK(found.differs == first);
    CHECK(found.equal == (first == 1 ? std::nullopt : std::optional(first - 2)));
    CHECK(found.tensors.size() == 4 * layers);
  }
}
