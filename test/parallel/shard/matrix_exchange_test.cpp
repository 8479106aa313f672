// Matrices gathered from slices on thread ranks, and Muon on them: the bits of one rank on every layout.
#include "parallel/shard/matrix_exchange.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/optim/optimizer.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using at::Tensor;
using optim::MatrixPart;
using pptrain::test::contains_text;
using pptrain::test::same_bits;

namespace {

// Ranks of one stage: replicas outermost, tp innermost.
struct Layout {
  int replicas = 1, shards = 1, tp = 1;
  int size() const { return replicas * shards * tp; }
};

struct Place {
  Place(const Layout& layout, int rank) : shard(rank / layout.tp % layout.shards), tp(rank % layout.tp) {}
  int shard, tp;
};

nn::Cut cut(int dim, int64_t size, int index, int parts) {
  return {
      .dim = dim, .begin = size * index / parts, .size = size * (index + 1) / parts - size * index / parts};
}

// A block with tensor parallelism: q and up are sharded by rows, o and down by columns. There are two heads
// of keys; more than two ranks hold copies of them.
void declare(nn::ParameterGroup& group, int tp, int index) {
  const int heads = std::min(tp, 2);
  const int head = index * heads / tp;
  const auto copies = tp > heads ? nn::Copies::kv : nn::Copies::one;
  group.add({{.name = "q.weight", .shape = {24, 20}, .cut = cut(0, 24, index, tp)}});
  group.add({{.name = "k.weight", .shape = {8, 20}, .cut = cut(0, 8, head, heads), .copies = copies},
             {.name = "v.weight", .shape = {8, 20}, .cut = cut(0, 8, head, heads), .copies = copies}});
  group.add({{.name = "o.weight", .shape = {20, 24}, .cut = cut(1, 24, index, tp)}});
  group.add({{.name = "norm.weight",
              .shape = {20},
              .role = nn::Role::norm,
              .copies = tp > 1 ? nn::Copies::tp : nn::Copies::one}});
  group.add({{.name = "gate.weight", .shape = {40, 20}, .cut = cut(0, 40, index, tp)},
             {.name = "up.weight", .shape = {40, 20}, .cut = cut(0, 40, index, tp)}});
  group.add({{.name = "down.weight", .shape = {20, 40}, .cut = cut(1, 40, index, tp)}});
}

// The gradient of a whole parameter at a step.
Tensor gradient(const std::string& name, at::IntArrayRef shape, int step) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kFloat) * 0.37 +
                 static_cast<double>(name.size()) + static_cast<double>(name[0]) + 1.3 * step)
      .view(shape);
}

config::OptimizerSection muon_options() {
  config::OptimizerSection options{.name = "muon"};
  options.muon_lr_scale = 1.5;
  return options;
}

// The slice's elements in a flat tensor.
Tensor slice_of(const Tensor& whole, const nn::SliceShape& slice) {
  std::vector<Tensor> runs;
  for (const nn::ElementRun& run : nn::element_runs(slice))
    runs.push_back(whole.reshape({-1}).narrow(0, run.global, run.length));
  return test::cat(runs);
}

void take_steps(nn::ParameterGroup& group, optim::Optimizer& optimizer) {
  for (int step = 0; step < 3; ++step) {
    for (nn::Slice* p : group.slices())
      p->grad.view({-1}).copy_(slice_of(gradient(p->spec.name, p->spec.shape, step), p->shape));
    optimizer.step(1e-2, 0.5);
  }
}

struct Trained {
  std::map<std::string, Tensor> masters, states;  // states: by file and name
};

Trained train_alone(at::ScalarType type) {
  nn::ParameterGroup group("layers.0");
  declare(group, 1, 0);
  group.materialise(at::kCPU, type);
  group.initialise(5);
  const auto muon = optim::make_optimizer(muon_options(), group.buffers());
  take_steps(group, *muon);
  Trained trained;
  for (const nn::Slice* p : group.slices()) trained.masters[p->spec.name] = p->master.clone();
  for (const optim::StateTensor& s : muon->state())
    trained.states[s.file + "/" + s.slice->spec.name] = s.tensor.clone();
  return trained;
}

void check_slice(const Tensor& whole, const nn::Slice& slice, const Tensor& own) {
  CHECK(same_bits(own, slice_of(whole, slice.shape).view(own.sizes())));
}

std::mutex mutex;  // Catch's assertions are not for several threads at once

void check_layout(const Layout& layout, int64_t elements, at::ScalarType type, const Trained& alone) {
  comm::run_thread_ranks(layout.size(), [&](comm::Communicator& world) {
    const Place place(layout, world.rank());
    nn::ParameterGroup group("layers.0");
    declare(group, layout.tp, place.tp);
    group.materialise(at::kCPU, type, true, {.index = place.shard, .count = layout.shards});
    group.initialise(5);
    const auto muon =
        optim::make_optimizer(muon_options(), group.buffers(), [&](std::vector<MatrixPart> parts) {
          return shard::make_matrix_exchange(world, std::move(parts), elements);
        });
    take_steps(group, *muon);
    const std::lock_guard lock(mutex);
    for (const nn::Slice* p : group.slices()) {
      INFO(p->spec.name << " on rank " << world.rank());
      check_slice(alone.masters.at(p->spec.name), *p, p->master);
      CHECK(same_bits(p->compute, p->master.to(p->compute.scalar_type())));
    }
    for (const optim::StateTensor& s : muon->state())
      check_slice(alone.states.at(s.file + "/" + s.slice->spec.name), *s.slice, s.tensor);
  });
}

MatrixPart part(std::string name, std::vector<int64_t> global, std::vector<int64_t> offset,
                std::vector<int64_t> box, int64_t begin, int64_t end) {
  return {std::move(name), {std::move(global), std::move(offset), std::move(box), begin, end}};
}

MatrixPart whole(std::string name, int64_t rows, int64_t cols) {
  return {std::move(name), nn::whole_slice({rows, cols})};
}

// [rank] elements that a list exchanges with it.
std::vector<int64_t> counts(const std::vector<shard::Transfer::Item>& items, int ranks) {
  std::vector<int64_t> result(static_cast<size_t>(ranks));
  for (const shard::Transfer::Item& item : items)
    result[static_cast<size_t>(item.rank)] += item.shape.numel();
  return result;
}

}  // namespace

TEST_CASE("Muon gives the bits of one rank on every layout, in one round or in many", "[matrices]") {
  at::set_num_threads(1);
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int64_t elements = GENERATE(int64_t{1}, optim::round_elements);
  const Trained alone = train_alone(type);
  for (const Layout& layout : std::vector<Layout>{{.shards = 2},
                                                  {.shards = 3},
                                                  {.shards = 4},
                                                  {.replicas = 2},
                                                  {.replicas = 2, .shards = 2},
                                                  {.tp = 2},
                                                  {.tp = 4},
                                                  {.shards = 2, .tp = 2},
                                                  {.replicas = 2, .shards = 2, .tp = 2}}) {
    CAPTURE(type, elements, layout.replicas, layout.shards, layout.tp);
    check_layout(layout, elements, type, alone);
  }
}

TEST_CASE("each matrix is transformed once, and every holder gets its part of it", "[matrices]") {
  // Rank 0 holds a slice of "a", ranks 1 and 2 the same rest of it; all three hold "b".
  const std::vector<std::vector<MatrixPart>> parts = {
      {part("a", {4, 6}, {0, 0}, {4, 6}, 0, 8), whole("b", 3, 2)},
      {part("a", {4, 6}, {0, 0}, {4, 6}, 8, 24), whole("b", 3, 2)},
      {whole("b", 3, 2), part("a", {4, 6}, {0, 0}, {4, 6}, 8, 24)},
      {}};
  std::map<double, int> transformed;  // by the matrix's first element
  std::vector<int> reads(4), writes(4);
  comm::run_thread_ranks(4, [&](comm::Communicator& world) {
    const int rank = world.rank();
    const auto& own = parts[rank];
    const auto exchange = shard::make_matrix_exchange(world, own);
    // Element i of "a" is i, of "b" 100 + i; the transform doubles.
    const auto values = [&](size_t i) {
      const double base = own[i].name == "a" ? 0 : 100;
      return at::arange(own[i].shape.begin, own[i].shape.end, at::kFloat) + base;
    };
    exchange(at::kFloat, {.read =
                              [&](size_t i, Tensor& to) {
                                to.copy_(values(i));
                                ++reads[rank];
                              },
                          .transform =
                              [&](const Tensor& matrix) {
                                const std::lock_guard lock(mutex);
                                ++transformed[matrix[0][0].item<double>()];
                                return matrix * 2;
                              },
                          .write =
                              [&](size_t i, const Tensor& from) {
                                const std::lock_guard lock(mutex);
                                CHECK(same_bits(from, values(i) * 2));
                                ++writes[rank];
                              }});
  });
  CHECK(transformed == std::map<double, int>{{0, 1}, {100, 1}});
  CHECK(std::accumulate(reads.begin(), reads.end(), 0) == 2 + 1);
  CHECK(writes == std::vector<int>{2, 2, 2, 0});
}

TEST_CASE("owners share out the products evenly, and rounds are bounded", "[matrices]") {
  constexpr int ranks = 4;
  std::vector<std::vector<MatrixPart>> parts(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int i = 0; i < 11; ++i)
      parts[rank].push_back(
          part("m" + std::to_string(i), {64, 32}, {0, 0}, {64, 32}, 512 * rank, 512 * (rank + 1)));
  }
  for (const int64_t elements : {int64_t{1}, int64_t{4} * 2 * 64 * 32, optim::round_elements}) {
    int total = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto rounds = shard::plan_matrix_rounds(parts, rank, elements);
      CHECK(rounds.size() == (elements == 1 ? 3 : elements == optim::round_elements ? 1 : 2));
      int owned = 0;
      for (const shard::MatrixRound& round : rounds) {
        owned += static_cast<int>(round.owned.size());
        CHECK(static_cast<int64_t>(round.owned.size()) * 64 * 32 <=
              std::max<int64_t>(elements / ranks, 64 * 32));
        const std::vector<int64_t> in = counts(round.in.parts, ranks);
        CHECK(in[static_cast<size_t>(rank)] == 0);
        CHECK(in == counts(round.out.parts, ranks));  // no two ranks hold the same slice
      }
      CHECK((owned == 2 || owned == 3));
      total += owned;
    }
    CHECK(total == 11);
  }
}

TEST_CASE("of parts that several ranks hold, the one next to the owner sends", "[matrices]") {
  // Two replicas of two shards: the matrix's owner gets the other half from its own replica.
  const MatrixPart first = part("m", {4, 4}, {0, 0}, {4, 4}, 0, 8),
                   second = part("m", {4, 4}, {0, 0}, {4, 4}, 8, 16);
  const std::vector<std::vector<MatrixPart>> parts = {{first}, {second}, {first}, {second}};
  const auto sent = [&](int rank) {
    return counts(shard::plan_matrix_rounds(parts, rank)[0].in.parts, /*ranks=*/4);
  };
  CHECK(sent(0) == std::vector<int64_t>(4, 0));
  CHECK(sent(1) == std::vector<int64_t>{8, 0, 0, 0});
  CHECK(sent(2) == std::vector<int64_t>(4, 0));
  CHECK(sent(3) == std::vector<int64_t>(4, 0));
}

TEST_CASE("a part is three rectangles at most", "[matrices]") {
  const nn::SliceShape shape = part("m", {10, 9}, {2, 3}, {6, 5}, 3, 22).shape;
  const auto found = shard::rectangles(shape);
  REQUIRE(found.size() == 3);
  int64_t elements = 0;
  for (const shard::Rectangle& r : found) {
    CHECK(r.local == elements);
    elements += r.rows * r.cols;
  }
  CHECK(elements == 19);
  CHECK((found[0].row == 2 && found[0].col == 6 && found[0].rows == 1 && found[0].cols == 2));
  CHECK((found[1].row == 3 && found[1].col == 3 && found[1].rows == 3 && found[1].cols == 5));
  CHECK((found[2].row == 6 && found[2].col == 3 && found[2].rows == 1 && found[2].cols == 2));
  CHECK(shard::rectangles(part("m", {10, 9}, {0, 0}, {10, 9}, 0, 90).shape).size() == 1);
  CHECK(shard::rectangles(part("m", {10, 9}, {0, 0}, {10, 9}, 4, 7).shape).size() == 1);
}

TEST_CASE("parts that are not the matrix are refused by its name", "[matrices]") {
  const auto plan = [](std::vector<std::vector<MatrixPart>> parts) {
    return [parts = std::move(parts)] { shard::plan_matrix_rounds(parts, 0); };
  };
  const MatrixPart first = part("layers.3.q", {4, 4}, {0, 0}, {4, 4}, 0, 8);
  CHECK_THROWS_WITH(plan({{first}, {}})(), contains_text("layers.3.q: the ranks hold 8 of its 16"));
  CHECK_THROWS_WITH(plan({{first}, {part("layers.3.q", {4, 4}, {0, 0}, {4, 4}, 7, 16)}})(),
                    contains_text("layers.3.q: ranks hold parts of it that overlap"));
  CHECK_THROWS_WITH(plan({{first}, {part("layers.3.q", {4, 5}, {0, 0}, {4, 5}, 0, 20)}})(),
                    contains_text("layers.3.q: ranks disagree"));
}
