// The options of [distributed].
#include <cstdint>
#include <string>
#include <vector>

#include "core/config/nearest.h"
#include "core/config/options/sections.h"

namespace pptrain::config {
namespace {

void add_axes(const SectionFields<DistributedSection>& distributed) {
  distributed("pp", &DistributedSection::pp,
              "Pipeline ranks. The world size is pp * dp_replicate * dp_shard * cp * tp, tp innermost.")
      .between(1, max_ranks);
  distributed("dp", &DistributedSection::dp, "Short for dp_shard; give one of the two.")
      .between(-1, max_ranks);
  distributed("dp_replicate", &DistributedSection::dp_replicate,
              "Data-parallel copies of the model. Each takes its own grad_accum_steps microbatches.")
      .between(1, max_ranks);
  distributed(
      "dp_shard", &DistributedSection::dp_shard,
      "Data-parallel ranks that share one copy of the model (FSDP). Each holds a shard of the weights, "
      "gradients and optimizer states, and takes its own grad_accum_steps microbatches. Results equal, to "
      "the bit, the results of as many dp_replicate ranks. -1: all ranks that the other axes leave.")
      .between(-1, max_ranks);
  distributed("cp", &DistributedSection::cp, "Context-parallel ranks, which divide each sequence.")
      .between(1, max_ranks);
  distributed("cp_kind", &DistributedSection::cp_kind,
              "How context-parallel ranks divide attention. \"ring\": keys and values travel from rank to "
              "rank; train.seq_len must be divisible by 2 * cp. \"ulysses\": an all-to-all turns token "
              "shards into head shards; train.seq_len and each tensor-parallel rank's heads must be "
              "divisible by cp.")
      .only_if("distributed.cp > 1", {"distributed.cp"},
               [](const JobConfig& j) { return j.distributed.cp > 1; });
  distributed("tp", &DistributedSection::tp, "Tensor-parallel ranks, which divide each layer.")
      .between(1, max_ranks);
  distributed("ep", &DistributedSection::ep, "Expert-parallel ranks; divides dp_shard * cp * tp.")
      .between(1, max_ranks);
}

int64_t shards(const DistributedSection& d) {
  return d.dp.value_or(d.dp_shard);
}

// Is a parameter, or an expert's parameter, sharded? Groups fsdp and efsdp of parallel/mesh.
bool shares_weights(const JobConfig& job) {
  const DistributedSection& d = job.distributed;
  return shards(d) * d.cp > 1 || (job.model.num_experts > 0 && d.tp > d.ep);
}

// Do several ranks have gradients of the same stage? Group stage of parallel/mesh.
bool sums_gradients(const JobConfig& job) {
  const DistributedSection& d = job.distributed;
  return d.dp_replicate > 1 || shards(d) > 1 || d.cp > 1 || d.tp > 1;
}

// How ranks that share a copy of the model (dp_shard, cp) exchange it.
void add_sharding(const SectionFields<DistributedSection>& distributed) {
  distributed(
      "reshard_after_forward", &DistributedSection::reshard_after_forward,
      "true: a block's gathered weights are freed after each forward pass and gathered again for the "
      "backward pass; two or three blocks are whole at a time. false: a stage's weights are gathered once a "
      "step and kept. Not set: false if pp > 1, since many microbatches use the weights, else true.")
      .only_if(
          "ranks that share weights: dp_shard or cp > 1, or with experts tp > ep",
          {"distributed.dp_shard", "distributed.dp", "distributed.cp", "distributed.tp", "distributed.ep"},
          shares_weights)
      .unless_given_as("false");
  distributed(
      "reduce_gradients", &DistributedSection::reduce_gradients,
      "When gradients are reduced over the ranks of a stage. step: once, after all microbatches; "
      "until then each rank holds whole gradients of its stages. microbatch: after each microbatch; "
      "a rank holds its shard, and whole gradients only of the blocks that it is computing. The two add in "
      "another order, so bits differ.")
      .only_if("several ranks to a stage: dp_replicate, dp_shard, cp or tp > 1",
               {"distributed.dp_replicate", "distributed.dp_shard", "distributed.dp", "distributed.cp",
                "distributed.tp"},
               sums_gradients);
}

// Is there a split to weigh? Other schedules than these two may have several stages on one rank.
bool splits_evenly(const JobConfig& job) {
  const DistributedSection& d = job.distributed;
  const std::string schedule = to_lower(d.pp_schedule);
  const bool one_stage =
      d.pp == 1 && d.pp_stages_per_rank <= 1 && (schedule == "1f1b" || schedule == "gpipe");
  return d.pp_split == PipelineSplit() && !one_stage;
}

// Do predictions see more than one host? CPU ranks are taken to share one, unless ranks_per_host is given.
bool has_hosts(const JobConfig& job) {
  const DistributedSection& d = job.distributed;
  return job.run.device == Device::cuda || d.ranks_per_host > 0 || !d.pp_costs.empty();
}

}  // namespace

void add_distributed(std::vector<Option>& options) {
  SectionFields<DistributedSection> distributed(
      options, "distributed", [](JobConfig& j) -> DistributedSection& { return j.distributed; },
      Effect::layout);
  const auto even_split = distributed.only_if(
      "an even split of several stages",
      {"distributed.pp_split", "distributed.pp", "distributed.pp_stages_per_rank", "distributed.pp_schedule"},
      splits_evenly);
  const auto hosts =
      distributed.only_if("several hosts: run.device = cuda, ranks_per_host or pp_costs",
                          {"distributed.ranks_per_host", "run.device", "distributed.pp_costs"}, has_hosts);
  add_axes(distributed);
  add_sharding(distributed);
  distributed("pp_schedule", &DistributedSection::pp_schedule,
              "Order of the passes on each rank: gpipe, 1f1b, interleaved_1f1b, looped_bfs, zb_h1, zb_h2, "
              "interleaved_zb, zbv, v_half, v_min or dualpipe_v (upper or lower case, or PyTorch's class "
              "name). A .csv file: a schedule in PyTorch's text form. auto: the fastest schedule that fits, "
              "by distributed.pp_costs, or an order found in seconds if it is at least 1 % faster. search: "
              "an order found for these costs and this memory, in up to a minute at the start. Orders found "
              "are kept as schedule.csv in run.dir.")
      .path(Names::read, ".csv")
      .such_as({"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "zb_h1", "zb_h2", "interleaved_zb", "zbv",
                "v_half", "v_min", "dualpipe_v", "auto", "search"});
  distributed("pp_stages_per_rank", &DistributedSection::pp_stages_per_rank,
              "Stages on each pipeline rank, for schedules that take several. 0: the schedule's usual "
              "number, 1 or 2.")
      .between(0, 64);
  distributed(
      "pp_split", &DistributedSection::pp_split,
      "Transformer blocks of each stage, first to last. \"even\": as equal as possible, more on the earlier "
      "stages. \"cost\": the shortest predicted step, including embedding and head. A list: a number for "
      "each stage. A layout: stages separated by |, each a number or * (the rest, divided evenly), such as "
      "\"1|*|*|1\"; or Megatron's letters, such as \"Ett|ttt|ttL\" or \"Et|(tt|)*6tL\".")
      .between(1, 1 << 16)
      .such_as({"even", "cost"});
  distributed(
      "pp_head", &DistributedSection::pp_head,
      "Where the head is computed. last: on the last stage. spread: each pipeline rank holds an equal shard "
      "of its vocabulary and computes it between its blocks, so that all ranks compute equally much. A rank "
      "then holds up to two microbatches more, and losses round as with tp ranks. The ranks also divide the "
      "embedding's float32 weights and optimizer state, except with tied or frozen weights, dp_shard, cp, "
      "optimizer.post_validation, gradients reduced by microbatch, or about 16 GPUs and more. auto: spread "
      "if the predicted step is 1 "
      "% shorter, or if the job fits only with spread.")
      .only_if("distributed.pp > 1", {"distributed.pp"},
               [](const JobConfig& j) { return j.distributed.pp > 1; });
  distributed("pp_sequence_slices", &DistributedSection::pp_sequence_slices,
              "Sequence slices of a microbatch, of equal cost. Slices go through the pipeline like "
              "microbatches: forward first to last, backward last to first. Keys and values of a sequence "
              "stay until its backward passes end. For steps of few, long sequences: the bubble is shorter "
              "and activations take less memory. Losses round as with cp ranks. 0: chosen with the schedule "
              "by pp_schedule = \"auto\" or \"search\".")
      .between(0, 256);
  even_split("pp_embedding_weight", &DistributedSection::pp_embedding_weight,
             "The embedding counts as this many blocks in an even split.")
      .between(0, 1 << 16);
  even_split("pp_head_weight", &DistributedSection::pp_head_weight,
             "The final norm and head count as this many blocks in an even split.")
      .between(0, 1 << 16);
  distributed("pp_costs", &DistributedSection::pp_costs,
              "Source of the pass times that pp_schedule, pp_split, pp_head, data.balance and pptrain plan "
              "use. Either a trace.json from an earlier run of this model (profile.trace), or a modelled "
              "device: cpu, a100, h100, h200 or b200. Empty: the device of run.device, h100 for cuda; "
              "pptrain plan measures the CPU that it runs on.")
      .path(Names::read, ".json")
      .such_as({"cpu", "a100", "h100", "h200", "b200"});
  distributed("pp_memory_gb", &DistributedSection::pp_memory_gb,
              "Memory limit of each rank for pp_schedule = \"auto\" or \"search\", in GB (1e9 bytes); "
              "pptrain plan --search has --memory-gb. 0: the memory of a known GPU, no limit on a CPU.")
      .between(0, 1e6)
      .only_if("distributed.pp_schedule = auto or search", {"distributed.pp_schedule"},
               [](const JobConfig& j) {
                 const std::string schedule = to_lower(j.distributed.pp_schedule);
                 return schedule == "auto" || schedule == "search";
               });
  distributed(
      "ranks_per_host", &DistributedSection::ranks_per_host,
      "Number of consecutive ranks on one host, for predictions. 0: 8 on GPUs, all on CPUs. On CPUs, pairs "
      "of dualpipe_v overlap communication of tp, cp and ep only if this number puts a stage on several "
      "hosts.")
      .between(0, max_ranks);
  hosts("host_link_gbps", &DistributedSection::host_link_gbps,
        "Gb/s from a rank to other hosts, for predictions. 0: 90 % of InfiniBand of the GPU's generation, on "
        "CPUs 90 % of 10 Gb/s Ethernet. pptrain doctor measures it with pp > 1 on CPUs.")
      .between(0, 1e6);
  hosts("host_latency_us", &DistributedSection::host_latency_us,
        "Microseconds of a short message to another host, for predictions. 0: 20 on GPUs, 60 on CPUs. "
        "pptrain doctor measures it with pp > 1 on CPUs.")
      .between(0, 1e9);
  distributed("timeout_s", &DistributedSection::timeout_s,
              "Seconds that a rank waits for another rank before the run ends with a report. It limits slow "
              "work; heartbeat_s finds dead ranks. On GPUs the time starts when the GPU begins an operation, "
              "and also limits the set-up of each NCCL group.")
      .above_up_to(0, 1e9)
      .decides(Effect::none);
  distributed("heartbeat_s", &DistributedSection::heartbeat_s,
              "Seconds without a heartbeat after which a rank counts as dead (stopped, unreachable, stuck in "
              "the kernel) and the run ends. A killed rank is found at once. 0: no heartbeats, for example "
              "under a debugger.")
      .between(0, 1e6)
      .decides(Effect::none);
  distributed("start_timeout_s", &DistributedSection::start_timeout_s,
              "Seconds that the start waits for all processes of the launch. Over TCP, the error names the "
              "missing processes.")
      .above_up_to(0, 1e6)
      .decides(Effect::none);
}

}  // namespace pptrain::config
