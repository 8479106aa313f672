#include "test/app/train/mesh_grid.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "test/support/covering.h"

namespace pptrain::test {
namespace {

constexpr int layers = 8;
constexpr int heads = 8;
constexpr int seq_len = 48;

struct Placement {
  const char* schedule;
  int stages_per_rank;
};

// Every schedule that trains; V and zero-bubble ones among them.
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

bool schedule_exists(const GridJob& job) {
  try {
    const auto made = schedule::make_schedule({.name = job.schedule,
                                               .ranks = job.mesh.pp,
                                               .microbatches = job.microbatches,
                                               .stages_per_rank = job.stages_per_rank});
    return made.stages() <= layers;
  } catch (const UsageError&) {
    return false;
  }
}

// What config/validate asks of a mesh.
bool legal(const mesh::MeshShape& mesh, const std::string& cp_kind) {
  if (heads % mesh.tp != 0) return false;
  if (cp_kind == "ulysses") return seq_len % mesh.cp == 0 && heads / mesh.tp % mesh.cp == 0;
  return mesh.cp == 1 || seq_len % (2 * mesh.cp) == 0;
}

// The schedule of the `turn`-th job, or the next one that this pipeline can run.
void choose_schedule(GridJob& job, size_t turn) {
  job.microbatches = job.mesh.pp == 1 ? 2 : 2 * job.mesh.pp;
  if (job.mesh.pp == 1) return;
  for (size_t i = 0; i < placements.size(); ++i) {
    const Placement& placement = placements[(turn + i) % placements.size()];
    job.schedule = placement.schedule;
    job.stages_per_rank = placement.stages_per_rank;
    if (schedule_exists(job)) return;
  }
  throw Error("no schedule for this pipeline");
}

// By what numbers depend on, so that jobs whose bits are to be equal have equal lengths.
void choose_lengths(GridJob& job) {
  struct Mode {
    const char *packing, *lengths;
  };
  constexpr std::array modes{Mode{"best_fit", "exact"}, Mode{"sequential", "fixed"}, Mode{"none", "exact"},
                             Mode{"sequential", "padded"}};
  const auto kind = static_cast<size_t>(job.data_ranks() + 2 * job.mesh.cp + 3 * job.mesh.tp);
  const Mode& mode = modes[kind % modes.size()];
  job.packing = mode.packing;
  job.lengths = mode.lengths;
}

void add_job(std::vector<GridJob>& jobs, const mesh::MeshShape& mesh, bool experts) {
  constexpr std::array recomputes{"none", "cheap", "selective", "full"};
  constexpr std::array reshards{"", "true", "false"};
  const size_t turn = jobs.size();
  GridJob job{.mesh = mesh};
  job.cp_kind = turn % 2 == 1 && legal(mesh, "ulysses") ? "ulysses" : "ring";
  if (!legal(mesh, job.cp_kind)) return;
  choose_schedule(job, turn);
  job.tied = turn % 3 == 1;
  job.documents = turn % 2 == 1;
  if (job.documents) choose_lengths(job);
  job.recompute = recomputes[turn % recomputes.size()];
  job.reshard = reshards[turn / 2 % reshards.size()];
  job.reduce_gradients = turn / 3 % 2 == 1 ? "microbatch" : "step";
  job.post_validation = turn % 5 == 2;
  job.experts = experts;
  jobs.push_back(job);
}

Combination axis_sizes(const GridJob& job) {
  Combination row;
  for (const int size :
       {job.mesh.pp, job.mesh.dp_replicate, job.mesh.dp_shard, job.mesh.cp, job.mesh.tp, job.mesh.ep}) {
    row.push_back(static_cast<size_t>(size));
  }
  return row;
}

class OptionRows {
 public:
  Combination row(const GridJob& job) {
    Combination row = axis_sizes(job);
    for (size_t& size : row) size = std::min<size_t>(size, 3);
    for (const std::string& value : {job.schedule, fmt::format("tied {}", job.tied),
                                     job.documents ? job.packing + " " + job.lengths : "no documents",
                                     job.recompute, "reshard " + job.reshard, job.reduce_gradients,
                                     job.cp_kind, fmt::format("post-validation {}", job.post_validation)}) {
      row.push_back(numbers_.try_emplace(value, numbers_.size()).first->second);
    }
    return row;
  }

 private:
  std::map<std::string, size_t> numbers_;
};

template <typename Visit>
void each_mesh(const Visit& visit) {
  for (int ranks = 1; ranks <= most_ranks; ++ranks) {
    for (int pp = 1; pp <= ranks; ++pp) {
      for (int replicate = 1; replicate <= ranks; ++replicate) {
        for (int shard = 1; shard <= ranks; ++shard) {
          for (int cp = 1; cp <= ranks; ++cp) {
            for (int tp = 1; tp <= ranks; ++tp) {
              const mesh::MeshShape mesh{
                  .pp = pp, .dp_replicate = replicate, .dp_shard = shard, .cp = cp, .tp = tp};
              if (pp * replicate * shard * cp * tp == ranks) visit(mesh);
            }
          }
        }
      }
    }
  }
}

}  // namespace

std::string GridJob::name() const {
  return fmt::format("pp{}_r{}_s{}_cp{}_tp{}_ep{}_{}_{}{}{}_{}_{}_{}{}", mesh.pp, mesh.dp_replicate,
                     mesh.dp_shard, mesh.cp, mesh.tp, mesh.ep, schedule, recompute, tied ? "_tied" : "",
                     documents ? "_" + packing + "_" + lengths : "", reshard.empty() ? "unset" : reshard,
                     reduce_gradients, cp_kind, post_validation ? "_post_validation" : "");
}

std::vector<std::string> GridJob::common() const {
  return {fmt::format("train.grad_accum_steps={}", microbatches),
          fmt::format("model.tie_word_embeddings={}", tied),
          fmt::format("data.document_end={}", documents ? int{'\n'} : -1), "data.packing=" + packing,
          "data.lengths=" + lengths};
}

std::vector<std::string> GridJob::layout() const {
  std::vector<std::string> result = {fmt::format("distributed.pp={}", mesh.pp),
                                     fmt::format("distributed.dp_replicate={}", mesh.dp_replicate),
                                     fmt::format("distributed.dp_shard={}", mesh.dp_shard),
                                     fmt::format("distributed.cp={}", mesh.cp),
                                     fmt::format("distributed.tp={}", mesh.tp),
                                     fmt::format("distributed.ep={}", mesh.ep),
                                     "distributed.pp_schedule=" + schedule,
                                     fmt::format("distributed.pp_stages_per_rank={}", stages_per_rank),
                                     "train.recompute=" + recompute,
                                     fmt::format("optimizer.post_validation={}", post_validation)};
  // Where they have nothing to act on, the last two would be refused.
  const bool shares = mesh.dp_shard * mesh.cp > 1 || (experts && mesh.tp > mesh.ep);
  if (!reshard.empty() && shares) result.push_back("distributed.reshard_after_forward=" + reshard);
  if (mesh.size(mesh::Group::stage) > 1) result.push_back("distributed.reduce_gradients=" + reduce_gradients);
  if (mesh.cp > 1) result.push_back("distributed.cp_kind=" + cp_kind);
  return result;
}

std::vector<std::string> GridJob::one_rank() const {
  return {fmt::format("train.micro_batch_size={}", data_ranks())};
}

// Where experts are shared out over data ranks, their gradients are summed within these first.
std::string GridJob::bit_class() const {
  const int shards = mesh.cp * mesh.tp % mesh.ep == 0 ? 0 : mesh.dp_shard;
  return fmt::format(
      "{} data ranks ({} shards), {} microbatches, cp {} {}, tp {}, ep {}, {}, tied {}, documents {} {} {}",
      data_ranks(), shards, microbatches, mesh.cp, cp_kind, mesh.tp, mesh.ep, reduce_gradients, tied,
      documents, packing, lengths);
}

std::string grid_job_text(bool experts) {
  return fmt::format(
      R"([model]
arch = "{}"
hidden_size = 32
intermediate_size = 48
num_hidden_layers = {}
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
grad_clip = 0.5
dtype = "fp32"
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
      experts ? "qwen3_moe" : "llama", layers, heads,
      experts ? fmt::format("num_experts = {}\nnum_experts_per_tok = 2\nmoe_intermediate_size = 16\n"
                            "mlp_only_layers = [3]\nrouter_aux_loss_coef = 0.01\n"
                            "router_z_loss_coef = 0.001\nrouter_bias_update_rate = 0.001",
                            grid_experts)
              : "",
      seq_len, shakespeare.string());
}

std::vector<GridJob> grid_jobs(bool experts) {
  std::vector<GridJob> jobs;
  each_mesh([&](mesh::MeshShape mesh) {
    const int replica = mesh.dp_shard * mesh.cp * mesh.tp;
    for (mesh.ep = 1; mesh.ep <= (experts ? replica : 1); ++mesh.ep) {
      if (replica % mesh.ep == 0 && grid_experts % mesh.ep == 0) add_job(jobs, mesh, experts);
    }
  });
  return jobs;
}

std::vector<GridJob> covering_jobs(const std::vector<GridJob>& jobs) {
  if (all_wanted()) return jobs;
  std::vector<Combination> axes, options;
  OptionRows rows;
  for (const GridJob& job : jobs) {
    axes.push_back(axis_sizes(job));
    options.push_back(rows.row(job));
  }
  // All whose bits are to be those of another one.
  std::map<std::string, std::vector<size_t>> classes;
  for (size_t i = 0; i < jobs.size(); ++i) classes[jobs[i].bit_class()].push_back(i);
  std::set<size_t> taken;
  for (const auto& [name, members] : classes) {
    if (members.size() > 1) taken.insert(members.begin(), members.end());
  }
  const auto take = [&](const std::vector<Combination>& all, const std::vector<Combination>& given) {
    for (const Combination& row : covering_combinations(all, given)) {
      taken.insert(static_cast<size_t>(std::ranges::find(all, row) - all.begin()));
    }
  };
  const auto of_taken = [&](const std::vector<Combination>& all) {
    std::vector<Combination> result;
    for (const size_t index : taken) result.push_back(all[index]);
    return result;
  };
  take(axes, of_taken(axes));
  take(options, of_taken(options));
  if (missing_pairs(axes, of_taken(axes)) + missing_pairs(options, of_taken(options)) > 0)
    throw Error("the jobs that were taken lack pairs");
  std::vector<GridJob> result;
  for (const size_t index : taken) result.push_back(jobs[index]);
  return result;
}

}  // namespace pptrain::test
