// The parameters that ranks hold and exchange, against sums made by hand; long stages against dry runs.
#include "app/forecast/sharding.h"

#include "app/forecast/cost_model.h"
#include "app/forecast/footprint.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::app;
using namespace pptrain::models;
using mesh::MeshShape;

namespace {

constexpr int64_t hidden = 64, inner = 192, heads = 4, kv_heads = 2, head_dim = 16, vocab = 256;

ModelConfig model_of(int64_t layers) {
  ModelConfig model;
  model.arch = "llama";
  model.layers = layers;
  model.hidden = hidden;
  model.intermediate = inner;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.head_dim = head_dim;
  model.vocab = vocab;
  model.max_seq = 32;
  return model;
}

// Elements of a block: matrices have bfloat16 copies, norms have none.
constexpr int64_t matrices =
    hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden + 3 * hidden * inner;
constexpr int64_t norms = 2 * hidden;
constexpr int64_t table = vocab * hidden;  // of the embedding or the head

StageFootprint first_stage() {  // embedding and three blocks
  return dry_run(model_of(4),
                 {.index = 0, .first_layer = 0, .end_layer = 3, .embedding = true, .head = false},
                 {.documents = 2, .length = 32});
}

constexpr schedule::ShardOptions kept_weights{.gather = schedule::Gather::kept,
                                              .reduce = schedule::Reduce::step};
constexpr schedule::ShardOptions streamed_weights{.gather = schedule::Gather::streamed,
                                                  .reduce = schedule::Reduce::microbatch};

}  // namespace

TEST_CASE("a rank that shares nothing holds whole weights and gradients") {
  const StageFootprint stage = first_stage();
  REQUIRE(stage.groups.size() == 4);
  const HeldBytes held = held_bytes(stage, {}, {});
  CHECK(held.parameters == table + 3 * (matrices + norms));
  CHECK(held.parameters == stage.parameters);
  CHECK(held.weights == 6 * (table + 3 * matrices) + 4 * 3 * norms);
  CHECK(held.weights == stage.weight_bytes);
  CHECK(held.gradients == 4 * held.parameters);
  CHECK(held.gathered == 0);
  CHECK(held.reducing == 0);
}

TEST_CASE("ranks that share parameters hold a part, and what they gather and reduce") {
  const StageFootprint stage = first_stage();
  const int64_t all = table + 3 * (matrices + norms);
  const int64_t part = (6 * (table + 3 * matrices) + 4 * 3 * norms) / 4;
  const HeldBytes kept = held_bytes(stage, {.dp_shard = 4}, kept_weights);
  CHECK(kept.parameters == all / 4);
  CHECK(kept.weights == part);
  CHECK(kept.gathered == 2 * (table + 3 * matrices) + 4 * 3 * norms);
  CHECK(kept.gradients == 4 * all);  // whole until the step's end
  CHECK(kept.reducing == 0);
  // A block is larger than the embedding, so the peak is two whole blocks at once.
  const HeldBytes streamed = held_bytes(stage, {.dp_shard = 4}, streamed_weights);
  CHECK(streamed.weights == part);
  CHECK(streamed.gathered == 2 * (2 * matrices + 4 * norms));
  CHECK(streamed.gradients == all);  // 4 bytes of a fourth
  CHECK(streamed.reducing == 2 * 4 * (matrices + norms));
}

// A block has a small group for attention, then one for experts. While one layer's experts are in use, the
// next layer's attention and experts are gathered.
TEST_CASE("a small group between two large ones is whole beside both where weights are streamed") {
  const auto group = [](int64_t elements) {
    GroupFootprint result;
    result.buffers.push_back({.elements = elements, .compute_bytes = 2});
    return result;
  };
  StageFootprint stage;
  for (int layer = 0; layer < 4; ++layer) {
    stage.groups.push_back(group(1000));
    stage.groups.push_back(group(80'000));
  }
  const HeldBytes held = held_bytes(stage, {.dp_shard = 4}, streamed_weights);
  CHECK(held.gathered == 2 * (80'000 + 1000 + 80'000));
  CHECK(held.reducing == 4 * (80'000 + 1000 + 80'000));
}

TEST_CASE("pipeline ranks that share out the embedding hold a shard of its state") {
  constexpr int ranks = 4;
  const auto held_by = [](const StageSlice& slice) {
    return held_bytes(Footprints(model_of(8), {.documents = 2, .length = 32}).of(slice), {.pp = ranks}, {});
  };
  const int64_t blocks = 4 * (matrices + norms), shard = table / ranks;
  const int64_t others = 6 * 4 * matrices + 4 * 4 * norms + 6 * shard;  // bytes of the blocks and the head
  const HeldBytes first =
      held_by({.end_layer = 4, .embedding = true, .head_parts = ranks, .embedding_in_shards = true});
  CHECK(first.parameters == blocks + 2 * shard);
  CHECK(first.weights == others + 6 * shard + 2 * table);
  CHECK(first.gradients == 4 * (blocks + shard + table));
  CHECK(first.gathered == 0);
  const HeldBytes second = held_by(
      {.index = 1, .first_layer = 4, .end_layer = 8, .head_parts = ranks, .embedding_in_shards = true});
  CHECK(second.parameters == blocks + 2 * shard);
  CHECK(second.weights == others + 6 * shard);
  CHECK(second.gradients == 4 * (blocks + 2 * shard));
  CHECK(second.gathered == 0);
}

TEST_CASE("exchanges of a stage take what their bytes take on the links of their groups") {
  DeviceModel device = find_device("cpu");
  device.within_host = {.bandwidth = 1e6, .latency = 0};
  device.between_hosts = {.bandwidth = 1e5, .latency = 0};
  device.ranks_per_host = 4;
  const StageFootprint stage = first_stage();
  const double compute = 2.0 * (table + 3 * matrices) + 4.0 * 3 * norms;
  const double gradients = 4.0 * (table + 3 * (matrices + norms));
  const auto exchange = [&](const MeshShape& mesh) { return stage_exchange(stage, MeshLinks(device, mesh)); };
  const StageExchange alone = exchange({.pp = 4});
  CHECK(alone.gather == 0);
  CHECK(alone.reduce() == 0);
  const StageExchange sharded = exchange({.dp_shard = 4});
  CHECK(sharded.gather == Approx(compute * 3 / 4 / 1e6));
  CHECK(sharded.sum == Approx(gradients * 3 / 4 / 1e6));
  CHECK(sharded.replicate == 0);
  const StageExchange replicated = exchange({.dp_replicate = 4});
  CHECK(replicated.gather == 0);
  CHECK(replicated.reduce() == Approx(2 * gradients * 3 / 4 / 1e6));
  // Two hosts: weights stay within a host; gradients go to its other ranks, then half of them over four
  // ranks' links; the sums over replicas use one rank's link.
  const StageExchange hybrid = exchange({.dp_replicate = 2, .dp_shard = 4});
  CHECK(hybrid.gather == Approx(sharded.gather));
  CHECK(hybrid.sum == Approx(gradients * 3 / 4 / 1e6 + gradients / 2 / 4e5));
  CHECK(hybrid.replicate == Approx(gradients / 4 / 2 / 1e5));
}

TEST_CASE("a long stage follows from short ones, exactly") {
  const bool overlap = GENERATE(false, true);
  for (const bool ends : {false, true}) {
    for (const config::Recompute recompute : config::all_recomputes) {
      const ModelConfig model = model_of(9);
      const StageSlice slice{.index = 0, .first_layer = 0, .end_layer = 9, .embedding = ends, .head = ends};
      const BatchShape batch{.documents = 3, .length = 32, .recompute = recompute, .overlap = overlap};
      const StageFootprint run = dry_run(model, slice, batch);
      const StageFootprint followed = Footprints(model, batch).of(slice);
      CHECK((followed.groups == run.groups));
      CHECK(followed.parameters == run.parameters);
      CHECK(followed.weight_bytes == run.weight_bytes);
      CHECK(followed.gradient_bytes == run.gradient_bytes);
      CHECK(followed.activation == run.activation);
      CHECK(followed.weight_operands == run.weight_operands);
      CHECK(followed.boundary == run.boundary);
      schedule::PerPass<bool>::each([&](schedule::ActionKind pass) {
        const PassFootprint &one = followed.passes.of(pass), &other = run.passes.of(pass);
        CHECK((one.cost == other.cost));
        CHECK(one.workspace == other.workspace);
        return true;
      });
    }
  }
}
