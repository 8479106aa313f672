// Checkpoints in slices: some ranks save tensors in one division, other ranks read them in another.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <atomic>
#include <random>

#include "core/base/error.h"
#include "core/io/safetensors.h"
#include "core/nn/slice.h"
#include "parallel/checkpoint/manifest.h"
#include "test/parallel/checkpoint/example.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::checkpoint;
using namespace pptrain::test;

namespace {

using Random = std::mt19937;
using Cut = std::vector<nn::SliceShape>;  // by rank

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  int stage;
};

const std::vector<Parameter> parameters = {{"embed.weight", {9, 14}, 0},
                                           {"layers.0.norm.weight", {37}, 0},
                                           {"layers.1.experts.up.weight", {6, 5, 7}, 1},
                                           {"layers.1.scale", {1}, 1}};
const std::vector<std::string> kinds = {"model", "adamw.exp_avg", "adamw.exp_avg_sq"};

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// The whole tensor: each element's value gives its place and its tensor.
at::Tensor whole(const std::string& kind, const Parameter& p) {
  const auto base = static_cast<int64_t>(1000 * (kind.size() + 20 * p.name.size()));
  return at::arange(base, base + elements(p.shape), at::kFloat).view(p.shape);
}

// The slice by LibTorch: the box by narrow, then the range of its elements.
at::Tensor cut_out(at::Tensor tensor, const nn::SliceShape& s) {
  for (size_t d = 0; d < s.box.size(); ++d) {
    tensor = tensor.narrow(static_cast<int64_t>(d), s.offset[d], s.box[d]);
  }
  return tensor.contiguous().view({-1}).narrow(0, s.begin, s.numel());
}

// n + 1 ascending numbers from 0 to `size`; ranges between them may be empty.
std::vector<int64_t> random_points(int64_t size, int n, Random& random) {
  std::vector<int64_t> points{0, size};
  while (points.size() <= static_cast<size_t>(n)) {
    points.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(size + 1)));
  }
  std::ranges::sort(points);
  return points;
}

// Divides the tensor over n ranks: boxes along one dim, and ranges of each box, all with random bounds.
Cut random_cut(const std::vector<int64_t>& shape, int n, Random& random) {
  int boxes = 1 + static_cast<int>(random() % static_cast<uint64_t>(n));
  while (n % boxes != 0) --boxes;
  const size_t dim = random() % shape.size();
  const auto edges = random_points(shape[dim], boxes, random);
  Cut cut;
  for (int b = 0; b < boxes; ++b) {
    nn::SliceShape slice = nn::whole_slice(shape);
    slice.offset[dim] = edges[b];
    slice.box[dim] = edges[b + 1] - edges[b];
    const auto ends = random_points(elements(slice.box), n / boxes, random);
    for (size_t i = 0; i + 1 < ends.size(); ++i) {
      slice.begin = ends[i];
      slice.end = ends[i + 1];
      cut.push_back(slice);
    }
  }
  std::ranges::shuffle(cut, random);
  return cut;
}

std::vector<Cut> random_cuts(int n, Random& random) {
  std::vector<Cut> cuts;
  for (const Parameter& p : parameters) cuts.push_back(random_cut(p.shape, n, random));
  return cuts;
}

// Rank r of n saves slice r of every parameter.
void save_cut(const std::filesystem::path& root, int n, const std::vector<Cut>& cuts) {
  comm::run_thread_ranks(n, [&](comm::Communicator& world) {
    std::vector<StageContents> stages{{.stage = 0, .part = world.rank(), .parts = n, .files = {}},
                                      {.stage = 1, .part = world.rank(), .parts = n, .files = {}}};
    for (size_t i = 0; i < parameters.size(); ++i) {
      const nn::SliceShape& slice = cuts[i][static_cast<size_t>(world.rank())];
      auto& files = stages[static_cast<size_t>(parameters[i].stage)].files;
      for (const std::string& kind : kinds) {
        files[kind].push_back({parameters[i].name, slice, cut_out(whole(kind, parameters[i]), slice)});
      }
    }
    save(world, {.root = root, .job_toml = example_job}, example_state(1), stages);
  });
}

// The number of tensors for which rank r of m does not read back slice r.
int wrong_reads(const std::filesystem::path& step, int m, const std::vector<Cut>& cuts) {
  std::atomic<int> wrong{0};
  comm::run_thread_ranks(m, [&](comm::Communicator& world) {
    const Reader reader(step);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const nn::SliceShape& slice = cuts[i][static_cast<size_t>(world.rank())];
      for (const std::string& kind : kinds) {
        at::Tensor out = at::full({slice.numel()}, -1.0F, at::kFloat);
        reader.read(kind, parameters[i].name, slice, out);
        if (!out.equal(cut_out(whole(kind, parameters[i]), slice))) ++wrong;
      }
    }
  });
  return wrong;
}

bool whole_tensors_read_back(const Reader& reader) {
  for (const Parameter& p : parameters) {
    for (const std::string& kind : kinds) {
      at::Tensor out = at::full(p.shape, -1.0F, at::kFloat);
      reader.read(kind, p.name, out);
      if (reader.global_shape(kind, p.name) != p.shape || !out.equal(whole(kind, p))) return false;
    }
  }
  return true;
}

nn::SliceShape columns(int64_t first, int64_t last) {
  return {.global = {4, 6},
          .offset = {0, first},
          .box = {4, last - first},
          .begin = 0,
          .end = 4 * (last - first)};
}

nn::SliceShape range(int64_t begin, int64_t end) {
  return {.global = {4, 6}, .offset = {0, 0}, .box = {4, 6}, .begin = begin, .end = end};
}

// A [4, 6] tensor "w" in two kinds of file; rank 0 saves `first` of it and rank 1 `second`.
void save_two(comm::Communicator& world, const std::filesystem::path& root, const nn::SliceShape& first,
              const nn::SliceShape& second) {
  const at::Tensor w = at::arange(24, at::kFloat).view({4, 6});
  const nn::SliceShape own = world.rank() == 0 ? first : second;
  StageContents stage{.stage = 0, .part = world.rank(), .parts = 2, .files = {}};
  stage.files["model"] = {{"w", own, cut_out(w, own)}};
  const nn::SliceShape half = world.rank() == 0 ? range(0, 11) : range(11, 24);
  stage.files["adamw.exp_avg"] = {{"w", half, cut_out(w, half)}};
  save(world, {.root = root, .job_toml = example_job}, example_state(1), {stage});
}

}  // namespace

TEST_CASE("what n ranks saved in slices, m ranks read in others") {
  Random random(17);
  for (int n = 1; n <= 4; ++n) {
    for (int round = 0; round < 5; ++round) {
      CAPTURE(n, round);
      const ScratchFolder folder;
      save_cut(folder.path(), n, random_cuts(n, random));
      CHECK(verify(folder / "step_1").empty());
      CHECK(whole_tensors_read_back(Reader(folder / "step_1")));
      for (int m = 1; m <= 4; ++m) CHECK(wrong_reads(folder / "step_1", m, random_cuts(m, random)) == 0);
    }
  }
}

TEST_CASE("a slice is stored in its box's shape or flat, in a file of its rank") {
  const ScratchFolder folder;
  comm::run_thread_ranks(2,
                         [&](auto& world) { save_two(world, folder.path(), columns(0, 2), columns(2, 6)); });
  CHECK(entries(folder / "step_1/stage_0") ==
        std::set<std::string>{"model.00001-of-00002.safetensors", "model.00002-of-00002.safetensors",
                              "adamw.exp_avg.00001-of-00002.safetensors",
                              "adamw.exp_avg.00002-of-00002.safetensors"});
  const at::Tensor w = at::arange(24, at::kFloat).view({4, 6});
  const io::SafetensorsReader right(folder / "step_1/stage_0/model.00002-of-00002.safetensors");
  CHECK(right.view("w").equal(w.narrow(1, 2, 4)));
  const io::SafetensorsReader flat(folder / "step_1/stage_0/adamw.exp_avg.00001-of-00002.safetensors");
  CHECK(flat.view("w").equal(w.view({-1}).narrow(0, 0, 11)));
}

TEST_CASE("slices are read into any shape and stride, of the right size") {
  const ScratchFolder folder;
  comm::run_thread_ranks(2,
                         [&](auto& world) { save_two(world, folder.path(), columns(0, 2), columns(2, 6)); });
  const Reader reader(folder / "step_1");
  const at::Tensor w = at::arange(24, at::kFloat).view({4, 6});
  at::Tensor transposed = at::empty({6, 4}, at::kFloat).t();
  reader.read("model", "w", transposed);
  CHECK(transposed.equal(w));
  at::Tensor same = at::empty({2, 4, 2}, at::kFloat);  // a stored slice, in another shape
  reader.read("model", "w", columns(2, 6), same);
  CHECK(same.view({4, 4}).equal(w.narrow(1, 2, 4)));
  at::Tensor none = at::empty({0}, at::kFloat);
  reader.read("model", "w", range(5, 5), none);
  CHECK_THROWS_WITH(reader.read("model", "w", range(0, 5), at::empty({6}, at::kFloat)),
                    contains_text("'w'") && contains_text("5 elements") && contains_text("into 6"));
  CHECK_THROWS_WITH(reader.read("model", "w", range(20, 25), at::empty({5}, at::kFloat)),
                    contains_text("outside of its parameter"));
  CHECK_THROWS_WITH(reader.read("model", "w", nn::whole_slice({6, 4}), at::empty({24}, at::kFloat)),
                    contains_text("'w' is F32 [4, 6], but the model's is F32 [6, 4]"));
  CHECK_THROWS_WITH(reader.global_shape("model", "v"), contains_text("no tensor 'v'"));
}

TEST_CASE("one rank may save several slices of a tensor, as parts") {
  const ScratchFolder folder;
  const at::Tensor w = at::arange(24, at::kFloat).view({4, 6});
  comm::run_thread_ranks(1, [&](comm::Communicator& world) {
    std::vector<StageContents> parts;
    for (int i = 0; i < 3; ++i) {
      const nn::SliceShape slice = columns(2 * i, 2 * i + 2);
      parts.push_back(
          {.stage = 0, .part = i, .parts = 3, .files = {{"model", {{"w", slice, cut_out(w, slice)}}}}});
    }
    save(world, {.root = folder.path(), .job_toml = example_job}, example_state(1), parts);
  });
  at::Tensor out = at::empty({4, 6}, at::kFloat);
  Reader(folder / "step_1").read("model", "w", out);
  CHECK(out.equal(w));
}

TEST_CASE("slices that are not the tensor, once, are refused before anything is renamed") {
  const ScratchFolder folder;
  const auto refused_with = [&](const nn::SliceShape& first, const nn::SliceShape& second,
                                const std::string& text) {
    const auto messages = messages_of(2, [&](auto& world) { save_two(world, folder.path(), first, second); });
    for (const std::string& message : messages) CHECK_THAT(message, contains_text(text));
    CHECK(entries(folder.path()).empty());
  };
  refused_with(columns(0, 3), columns(4, 6),
               "the tensor 'w' of model: its elements [3, 4) of 24 are stored nowhere");
  refused_with(columns(0, 3), columns(2, 6),
               "the tensor 'w' of model: its elements [2, 3) of 24 are stored twice, in "
               "stage_0/model.00001-of-00002.safetensors and in stage_0/model.00002-of-00002.safetensors");
  refused_with(range(0, 13), range(13, 23), "its elements [23, 24) of 24 are stored nowhere");
  refused_with(range(1, 13), range(13, 24), "its elements [0, 1) of 24 are stored nowhere");
  refused_with(range(0, 24), range(7, 9), "its elements [7, 9) of 24 are stored twice");
  refused_with(columns(0, 6), columns(0, 6), "its elements [0, 24) of 24 are stored twice");
  refused_with(range(0, 0), range(0, 5), "its elements [5, 24) of 24 are stored nowhere");
  // The same division of a tensor with another shape.
  nn::SliceShape longer = range(13, 24);
  longer.global[0] = 5;
  refused_with(range(0, 13), longer,
               "it is F32 [4, 6] in stage_0/model.00001-of-00002.safetensors, but F32 [5, 6] in "
               "stage_0/model.00002-of-00002.safetensors");
  CHECK(messages_of(2, [&](auto& world) { save_two(world, folder.path(), range(0, 24), range(3, 3)); }) ==
        std::vector<std::string>(2));
}

TEST_CASE("a slice that is none is refused by the rank that passes it") {
  const ScratchFolder folder;
  const auto message = [&](const StageContents& stage) {
    return messages_of(1, [&](comm::Communicator& world) {
      save(world, {.root = folder.path(), .job_toml = example_job}, example_state(1), {stage});
    })[0];
  };
  const at::Tensor five = at::empty({5}, at::kFloat);
  CHECK_THAT(message({.stage = 0, .files = {{"model", {{"w", range(20, 25), five}}}}}),
             contains_text("the tensor 'w': a slice of elements [20, 25)"));
  CHECK_THAT(message({.stage = 0, .files = {{"model", {{"w", range(0, 6), five}}}}}),
             contains_text("the tensor 'w' has 5 elements, its slice 6"));
  for (const auto& [part, parts] :
       {std::pair(2, 2), std::pair(-1, 2), std::pair(0, 0), std::pair(0, 100000)}) {
    CHECK_THAT(message({.stage = 0, .part = part, .parts = parts, .files = {{"model", {}}}}),
               contains_text(fmt::format("part {} of {}", part, parts)));
  }
  CHECK(entries(folder.path()).empty());
}

TEST_CASE("a manifest whose slices are not the tensor, once, is refused") {
  const ScratchFolder folder;
  const auto step = folder / "step_1";
  comm::run_thread_ranks(2,
                         [&](auto& world) { save_two(world, folder.path(), range(0, 10), range(10, 24)); });
  const Manifest sound = read_manifest(step);
  const auto refused_with = [&](const std::function<void(nn::SliceShape&)>& change, const std::string& text) {
    Manifest manifest = sound;
    for (FileEntry& file : manifest.files) {
      if (file.file == "model" && file.part == 1) change(file.tensors.at("w").slice);
    }
    ScratchFolder::write_file(step / manifest_name, to_text(manifest));
    const auto problems = verify(step);
    REQUIRE(problems.size() == 1);
    CHECK_THAT(problems[0], contains_text("'w' of ") && contains_text(text));
    CHECK_THROWS_WITH(Reader(step), contains_text(problems[0]));
    CHECK_THROWS_WITH(find_resumable(folder.path(), [](const std::string&) {}), contains_text(problems[0]));
  };
  refused_with([](auto& s) { s.begin = 9, s.end = 23; }, "its elements [9, 10) of 24 are stored twice");
  refused_with(
      [](auto& s) {
        s.global = {4, 7}, s.box = {4, 7}, s.begin = 14, s.end = 28;
      },
      "but F32 [4, 7] in stage_0/model.00002-of-00002.safetensors");
  refused_with([](auto& s) { s.begin = 11, s.end = 25; }, "outside of its parameter");
  refused_with([](auto& s) { s.offset = {0}; }, "outside of its parameter");
  refused_with([](auto& s) { s.begin = -4, s.end = 10; }, "outside of its parameter");
  refused_with([](auto& s) { s.global = {-4, 6}; }, "cannot be the shape of a tensor");
  refused_with([](auto& s) { s.global = {INT64_MAX, 6}; }, "cannot be the shape of a tensor");
  ScratchFolder::write_file(step / manifest_name, to_text(sound));
  CHECK(verify(step).empty());
}

TEST_CASE("damage to one part is found where something of it is read") {
  const ScratchFolder folder;
  comm::run_thread_ranks(2,
                         [&](auto& world) { save_two(world, folder.path(), range(0, 10), range(10, 24)); });
  const auto step = folder / "step_1";
  const std::string part = "stage_0/model.00002-of-00002.safetensors";
  const Reader opened_before(step);
  at::Tensor out = at::empty({24}, at::kFloat);
  opened_before.read("model", "w", range(0, 24), out);
  overwrite(step / part, [](std::string& bytes) { bytes.back() ^= 1; });

  const auto problems = verify(step);
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], contains_text(part) && contains_text("the tensor 'w' is damaged"));
  const Reader reader(step);
  at::Tensor ten = at::empty({10}, at::kFloat);
  reader.read("model", "w", range(0, 10), ten);
  CHECK(ten.equal(at::arange(10, at::kFloat)));
  CHECK_THROWS_WITH(reader.read("model", "w", range(1, 11), ten),
                    contains_text(part) && contains_text("the tensor 'w' is damaged"));
  // A reader checks a stored slice once.
  opened_before.read("model", "w", range(0, 24), out);
  CHECK(out.narrow(0, 0, 23).equal(at::arange(23, at::kFloat)));
}

TEST_CASE("tensors of several pieces of the reader come back, whole, as ranges and as boxes") {
  const at::Tensor w = at::arange(700 * 1000, at::kFloat).view({700, 1000});  // 2.8 MB; a piece has 1 MiB
  const auto box = [](int64_t row, int64_t rows, int64_t column, int64_t columns) {
    return nn::SliceShape{.global = {700, 1000},
                          .offset = {row, column},
                          .box = {rows, columns},
                          .begin = 0,
                          .end = rows * columns};
  };
  const ScratchFolder folder;
  comm::run_thread_ranks(2, [&](comm::Communicator& world) {
    StageContents stage{.stage = 0, .part = world.rank(), .parts = 2, .files = {}};
    const nn::SliceShape own = world.rank() == 0 ? box(0, 700, 0, 600) : box(0, 700, 600, 400);
    stage.files["adamw.exp_avg"] = {{"w", own, cut_out(w, own)}};
    if (world.rank() == 0) stage.files["model"] = {whole_tensor("w", w)};
    save(world, {.root = folder.path()}, example_state(1), {stage});
  });
  nn::SliceShape range = box(0, 700, 0, 1000);
  range.begin = 200'003, range.end = 600'001;
  for (const char* kind : {"model", "adamw.exp_avg"}) {
    const Reader reader(folder / "step_1");
    for (int round = 0; round < 2; ++round) {  // in the second round the slices are checked already
      for (const nn::SliceShape& slice : {box(100, 500, 300, 400), range, nn::whole_slice({700, 1000})}) {
        at::Tensor out = at::full({slice.numel()}, -1.0F, at::kFloat);
        reader.read(kind, "w", slice, out);
        CHECK(out.equal(cut_out(w, slice)));
      }
    }
  }
}
