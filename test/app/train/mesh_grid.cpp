#include "test/app/train/mesh_grid.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <string_view>

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "test/support/covering.h"

namespace pptrain::test {
namespace {

constexpr int most_layers = 8;
constexpr int heads = 8;
constexpr int seq_len = 48;

struct Placement {
  const char* schedule;
  int stages_per_rank;
};

// Every training schedule, also V and zero-bubble ones.
constexpr std::array placements{Placement{"1f1b", 1},
                                Placement{"zbv", 2},
                                Placement{"zb_h1", 1},
                                Placement{"dualpipe_v", 2},
                                Placement{"gpipe", 1},
                                Placement{"v_half", 2},
                                Placement{"interleaved_1f1b", 2},
                                Placement{"zb_h2", 1},
                                Placement{"interleaved_zb", 2},
                                Placement{"looped_bfs", 2},
                                Placement{"v_min", 2}};

int microbatches_on(int ranks) {
  return ranks == 1 ? 2 : 2 * ranks;
}

bool schedule_exists(const Placement& placement, int ranks) {
  try {
    const auto made = schedule::make_schedule({.name = placement.schedule,
                                               .ranks = ranks,
                                               .microbatches = microbatches_on(ranks),
                                               .stages_per_rank = placement.stages_per_rank});
    return made.stages() <= most_layers;
  } catch (const UsageError&) {
    return false;
  }
}

// The rules of config/validate for a mesh.
bool legal(const mesh::MeshShape& mesh, const std::string& cp_kind) {
  if (heads % mesh.tp != 0) return false;
  if (cp_kind == "ulysses") return seq_len % mesh.cp == 0 && heads / mesh.tp % mesh.cp == 0;
  return mesh.cp == 1 || seq_len % (2 * mesh.cp) == 0;
}

// Indices of a combination's values.
enum Axis : size_t {
  pp,
  dp_replicate,
  dp_shard,
  cp,
  tp,
  ep,
  placement,
  packing,
  lengths,
  dtype,
  optimizer,
  recompute,
  post_validation,
  tied,
  reshard,
  reduce,
  cp_kind,
  generates,
  resumed,
  head,
  slices,
  axis_count
};

constexpr std::array sizes{1, 2, 3, 4, 8};
constexpr std::array power_sizes{1, 2, 4, 8};  // of tp and ep, which divide heads and experts
constexpr std::array packings{"", "sequential", "best_fit", "none"};  // "": rows without documents
constexpr std::array length_words{"fixed", "exact", "padded"};
constexpr std::array dtypes{"fp32", "bf16", "fp8"};
constexpr std::array optimizers{"adamw", "muon", "lion"};
constexpr std::array recomputes{"none", "cheap", "selective", "full:2/none:1"};
constexpr std::array reshards{"", "true", "false"};
constexpr std::array reduces{"step", "microbatch"};
constexpr std::array kinds{"ring", "ulysses"};
constexpr std::array slice_counts{1, 3};

constexpr std::array<size_t, axis_count> value_counts(bool experts) {
  return {sizes.size(),
          sizes.size(),
          sizes.size(),
          sizes.size(),
          power_sizes.size(),
          experts ? power_sizes.size() : 1,
          placements.size(),
          packings.size(),
          length_words.size(),
          dtypes.size(),
          optimizers.size(),
          recomputes.size(),
          2,
          2,
          reshards.size(),
          reduces.size(),
          kinds.size(),
          2,
          resumed_count,
          2,
          slice_counts.size()};
}

// The known values of a row with open ones. An open size counts as 1, the size that refuses least.
class Partial {
 public:
  explicit Partial(const Combination& row) : row_(row) {}

  bool has(Axis axis) const { return row_[axis] != open_value; }
  bool all(std::initializer_list<Axis> axes) const {
    return std::ranges::all_of(axes, [&](Axis axis) { return has(axis); });
  }
  size_t index(Axis axis) const { return has(axis) ? row_[axis] : 0; }
  template <typename Values>
  auto at(Axis axis, const Values& values) const {
    return values[index(axis)];
  }
  bool is(Axis axis, size_t value) const { return row_[axis] == value; }

  mesh::MeshShape mesh() const {
    return {.pp = at(pp, sizes),
            .dp_replicate = at(dp_replicate, sizes),
            .dp_shard = at(dp_shard, sizes),
            .cp = at(cp, sizes),
            .tp = at(tp, power_sizes),
            .ep = at(ep, power_sizes)};
  }

 private:
  const Combination& row_;
};

bool admits_mesh(const Partial& row, bool experts, int most) {
  const mesh::MeshShape mesh = row.mesh();
  if (mesh.world_size() > most) return false;
  if (row.is(dtype, 2) && mesh.tp > 4) return false;  // widths of 8
  if (row.has(ep) && row.all({dp_shard, cp, tp}) && mesh.size(mesh::Group::replica) % mesh.ep != 0)
    return false;
  if (mesh.ep > most / mesh.pp / mesh.dp_replicate) return false;
  if (row.has(cp_kind)) {
    const std::string kind = row.at(cp_kind, kinds);
    if (kind == "ulysses" && row.is(cp, 0)) return false;  // it would be refused
    if (row.all({cp, tp}) && !legal(mesh, kind)) return false;
  }
  // A job is refused if reshard or reduce has nothing to act on.
  const bool whole = row.all({dp_replicate, dp_shard, cp, tp, ep});
  const bool shares = mesh.dp_shard * mesh.cp > 1 || (experts && mesh.tp > mesh.ep);
  if (whole && row.has(reshard) && !row.is(reshard, 0) && !shares) return false;
  return !whole || !row.is(reduce, 1) || mesh.size(mesh::Group::stage) > 1;
}

// The answers for pairs of sizes and placements are kept, since a search asks thousands of times.
bool admits_schedule(const Partial& row) {
  if (!row.all({pp, placement})) return true;
  if (row.is(pp, 0)) return row.is(placement, 0);  // all schedules are one
  static std::map<std::pair<size_t, size_t>, bool> known;
  const std::pair asked{row.index(pp), row.index(placement)};
  if (!known.contains(asked)) known[asked] = schedule_exists(placements[asked.second], sizes[asked.first]);
  return known[asked];
}

bool admits_documents(const Partial& row) {
  return !row.is(packing, 0) || !row.has(lengths) || row.is(lengths, 0);
}

// A spread head needs several pipeline ranks. With cp, lists are divided over the ranks, so there are no
// slices.
bool admits_parts(const Partial& row) {
  if (row.is(head, 1) && row.is(pp, 0)) return false;
  return !row.is(slices, 1) || !row.has(cp) || row.is(cp, 0);
}

bool admits(const Combination& values, bool experts, int most) {
  const Partial row(values);
  return admits_mesh(row, experts, most) && admits_documents(row) && admits_schedule(row) &&
         admits_parts(row);
}

GridJob job_of(const Combination& values, bool experts) {
  const Partial row(values);
  const Placement& chosen = placements[row.index(placement)];
  const std::string documents = row.at(packing, packings);
  GridJob job{.mesh = row.mesh()};
  job.schedule = chosen.schedule;
  job.stages_per_rank = job.mesh.pp == 1 ? 0 : chosen.stages_per_rank;
  job.microbatches = microbatches_on(job.mesh.pp);
  job.tied = row.is(tied, 1);
  job.documents = !documents.empty();
  if (job.documents) job.packing = documents;
  job.lengths = row.at(lengths, length_words);
  job.dtype = row.at(dtype, dtypes);
  job.optimizer = row.at(optimizer, optimizers);
  job.recompute = row.at(recompute, recomputes);
  job.reshard = row.at(reshard, reshards);
  job.reduce_gradients = row.at(reduce, reduces);
  job.cp_kind = row.at(cp_kind, kinds);
  job.post_validation = row.is(post_validation, 1);
  job.generates = row.is(generates, 1);
  job.resumed = static_cast<Resumed>(row.index(resumed));
  job.spread_head = row.is(head, 1);
  job.slices = row.at(slices, slice_counts);
  job.experts = experts;
  return job;
}

// Sizes that only a few meshes have: they meet the sizes of other axes, not every option.
bool is_rare(const Partial& row) {
  const mesh::MeshShape mesh = row.mesh();
  const int others = std::max({mesh.dp_replicate, mesh.dp_shard, mesh.cp, mesh.tp, mesh.ep});
  return mesh.pp == 3 || mesh.pp > 4 || others > 2;
}

// True if the pair of values must occur. Two options that are no axes of the mesh meet in the dense grid.
bool counts(const Combination& pair, bool experts) {
  const auto options = std::ranges::count_if(pair.begin() + placement, pair.end(),
                                             [](size_t value) { return value != open_value; });
  if (options == 0) return true;
  return !is_rare(Partial(pair)) && (options == 1 || !experts || all_wanted());
}

// Combinations of three options or more that need their own job.
std::vector<Combination> risky(bool experts) {
  using Values = std::map<Axis, size_t>;
  const auto schedule_at = [](std::string_view name) {
    size_t index = 0;
    while (placements.at(index).schedule != name) ++index;
    return index;
  };
  const size_t two = 1;  // index in a list of sizes
  const size_t no_packing = 3, bf16 = 1, muon = 1, lion = 2, ulysses = 1;
  std::vector<Values> wanted = {
      {{pp, two}, {cp, two}, {tp, two}, {packing, no_packing}},
      {{dp_shard, two}, {cp, two}, {tp, two}, {packing, 2}, {recompute, 0}},
      {{pp, two}, {tp, two}, {placement, schedule_at("zbv")}, {dtype, bf16}},
      {{pp, two}, {tp, two}, {placement, schedule_at("zb_h1")}, {recompute, 2}},
      {{pp, two}, {tp, two}, {placement, schedule_at("zb_h2")}, {post_validation, 1}},
      {{pp, two}, {tp, two}, {placement, schedule_at("dualpipe_v")}, {dtype, bf16}},
      {{cp, two}, {cp_kind, ulysses}, {packing, 0}, {dtype, bf16}},
      {{cp, two}, {tp, two}, {cp_kind, ulysses}, {packing, 1}, {lengths, 1}},
      {{dp_shard, two}, {optimizer, muon}, {dtype, bf16}, {resumed, 1}},
      {{dp_shard, two}, {tp, two}, {optimizer, muon}, {resumed, 2}},
      {{dp_shard, two}, {optimizer, lion}, {post_validation, 1}, {resumed, 2}},
      {{pp, two}, {tied, 1}, {dtype, bf16}, {optimizer, muon}, {placement, schedule_at("zbv")}},
      {{pp, two}, {head, 1}, {tied, 1}, {dp_shard, two}, {tp, two}, {generates, 1}}};
  if (experts) {
    for (Values& row : wanted) row.try_emplace(ep, row.contains(tp) || row.contains(cp) ? two : 0);
    wanted.push_back({{pp, two}, {dp_shard, two}, {tp, two}, {ep, 2}, {packing, no_packing}, {lengths, 1}});
    wanted.push_back({{dp_shard, two}, {cp, two}, {ep, 2}, {dtype, bf16}, {optimizer, muon}});
  }
  std::vector<Combination> rows;
  for (const Values& values : wanted) {
    Combination& row = rows.emplace_back(axis_count, open_value);
    for (const auto& [axis, value] : values) row[axis] = value;
  }
  return rows;
}

}  // namespace

std::string GridJob::name() const {
  std::string text =
      fmt::format("pp{}_r{}_s{}_cp{}_tp{}_ep{}_{}_{}_{}_{}", mesh.pp, mesh.dp_replicate, mesh.dp_shard,
                  mesh.cp, mesh.tp, mesh.ep, schedule, recompute, dtype, optimizer);
  if (tied) text += "_tied";
  if (documents) text += "_" + packing + "_" + lengths;
  text += "_reshard" + (reshard.empty() ? "unset" : reshard) + "_" + reduce_gradients + "_" + cp_kind;
  if (post_validation) text += "_post_validation";
  if (generates) text += "_generates";
  if (spread_head) text += "_spread";
  if (slices > 1) text += fmt::format("_slices{}", slices);
  return text + fmt::format("_resumed{}", static_cast<int>(resumed));
}

std::vector<std::string> GridJob::common() const {
  const int stages = mesh.pp * std::max(stages_per_rank, 1);
  Overrides result = {fmt::format("model.num_hidden_layers={}", stages > 4 ? most_layers : 4),
                      fmt::format("train.grad_accum_steps={}", microbatches),
                      fmt::format("model.tie_word_embeddings={}", tied),
                      fmt::format("data.document_end={}", documents ? int{'\n'} : -1),
                      "optimizer.name=" + optimizer};
  if (dtype == "fp8") {
    result.insert(result.end(), {"train.dtype=bf16", "train.fp8=rowwise", "model.head_dim=8",
                                 "model.intermediate_size=64"});
  } else {
    result.push_back("train.dtype=" + dtype);
  }
  // Without documents these keys are refused.
  if (documents) result.insert(result.end(), {"data.packing=" + packing, "data.lengths=" + lengths});
  // With this eps a step is not just the gradient's sign, so that weights can be compared.
  if (optimizer != "lion") result.emplace_back("optimizer.eps=1e-3");
  // In bfloat16 every token takes all experts, since rounding would choose among near-equal ones. In fp32 a
  // token takes two.
  if (experts && dtype != "fp32") result.push_back(fmt::format("model.num_experts_per_tok={}", grid_experts));
  // One batch may have documents of one token alone, which predict nothing.
  if (generates)
    result.insert(result.end(), {"data.val_fraction=0.1", "eval.interval=3", "eval.batches=4",
                                 "eval.generate_interval=3", "eval.generate_tokens=6"});
  return result;
}

std::vector<std::string> GridJob::layout() const {
  Overrides result = {fmt::format("distributed.pp={}", mesh.pp),
                      fmt::format("distributed.dp_replicate={}", mesh.dp_replicate),
                      fmt::format("distributed.dp_shard={}", mesh.dp_shard),
                      fmt::format("distributed.cp={}", mesh.cp),
                      fmt::format("distributed.tp={}", mesh.tp),
                      fmt::format("distributed.ep={}", mesh.ep),
                      "distributed.pp_schedule=" + schedule,
                      fmt::format("distributed.pp_stages_per_rank={}", stages_per_rank),
                      "train.recompute=" + recompute,
                      fmt::format("optimizer.post_validation={}", post_validation)};
  if (!reshard.empty()) result.push_back("distributed.reshard_after_forward=" + reshard);
  if (mesh.size(mesh::Group::stage) > 1) result.push_back("distributed.reduce_gradients=" + reduce_gradients);
  if (mesh.cp > 1) result.push_back("distributed.cp_kind=" + cp_kind);
  if (spread_head) result.emplace_back("distributed.pp_head=spread");
  if (slices > 1) result.push_back(fmt::format("distributed.pp_sequence_slices={}", slices));
  return result;
}

std::vector<std::string> GridJob::one_rank() const {
  return {fmt::format("train.micro_batch_size={}", data_ranks())};
}

std::vector<std::string> GridJob::layout_after() const {
  GridJob other{.mesh = {.pp = 2, .tp = 2}, .experts = experts};
  if (resumed == Resumed::context_sharded) other.mesh = {.dp_shard = data_ranks(), .cp = 2};
  if (experts) other.mesh.ep = 2;
  if (other.mesh.pp > 1) other.schedule = microbatches < 4 ? "1f1b" : "zbv";
  return with(other.layout(), resumed == Resumed::tensor ? one_rank() : Overrides{});
}

// If experts are sharded over data ranks, their gradients are summed within these first. A spread head is
// summed in its slices.
std::optional<GridJob> GridJob::twin() const {
  const bool shares_experts = mesh.ep > 1 && mesh.cp * mesh.tp % mesh.ep != 0;
  GridJob other = *this;
  if (!spread_head) other.mesh.pp = 1;
  if (!shares_experts && !experts) std::swap(other.mesh.dp_replicate, other.mesh.dp_shard);
  if (other.mesh == mesh && !spread_head) return std::nullopt;
  other.schedule = schedule == "1f1b" ? "gpipe" : "1f1b";
  other.stages_per_rank = 0;
  other.recompute = recompute == "none" ? "full" : "none";
  other.reshard.clear();
  other.post_validation = !post_validation;
  return other;
}

std::string grid_job_text(bool experts) {
  return fmt::format(
      R"([run]
seed = {}
[model]
arch = "{}"
hidden_size = 32
intermediate_size = 48
num_attention_heads = {}
num_key_value_heads = 2
head_dim = 4
vocab_size = 256
initializer_range = 0.1
{}
[train]
steps = 3
seq_len = {}
micro_batch_size = 1
grad_clip = {}
[data]
path = "{}"
[optimizer]
lr = 1e-3
[lr_schedule]
warmup_steps = 2
[checkpoint]
interval = 1
keep_last_n = 0
resume = "none"
[metrics]
peak_tflops = 1
)",
      experts ? 1 : 0, experts ? "qwen3_moe" : "llama", heads,
      experts ? fmt::format("num_experts = {}\nnum_experts_per_tok = 2\nmoe_intermediate_size = 16\n"
                            "mlp_only_layers = [3]\nrouter_aux_loss_coef = 0.01\n"
                            "router_z_loss_coef = 0.001\nrouter_bias_update_rate = 0.001",
                            grid_experts)
              : "",
      seq_len, grid_clip, shakespeare.string());
}

std::vector<GridJob> grid_jobs(bool experts, int most) {
  const auto values = value_counts(experts);
  const auto admitted = [&](const Combination& part) { return admits(part, experts, most); };
  const auto counted = [&](const Combination& pair) { return counts(pair, experts); };
  const auto wanted = most == most_ranks ? risky(experts) : std::vector<Combination>{};
  std::vector<GridJob> jobs;
  for (uint64_t seed = 1; seed <= (all_wanted() ? 8 : 1); ++seed) {
    for (const Combination& row : covering_rows(values, admitted, seed, wanted, counted))
      jobs.push_back(job_of(row, experts));
  }
  return jobs;
}

}  // namespace pptrain::test
