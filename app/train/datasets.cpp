#include "app/train/datasets.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "models/flops.h"
#include "models/seams.h"

namespace pptrain::app {

data::Source data_source(const config::JobConfig& job, const std::string& path) {
  return {.path = path,
          .format = data::parse_format(job.data.format),
          .token_bytes = data::parse_token_bytes(job.data.dtype)};
}

data::Split open_data(const config::JobConfig& job, int64_t vocab_size) {
  return data::open_split(data_source(job, job.data.path), vocab_size, job.data.val_fraction,
                          job.data.val_path);
}

namespace {

// As flops_per_token counts them: a causal document's attention against the products that its tokens meet.
int64_t attention_length(const models::ModelConfig& model) {
  const double products = models::flops_per_token(model, 0);
  const double attention = models::flops_per_token(model, 1) - products;
  return std::clamp(std::llround(products / attention), 1LL, 1LL << 24);
}

}  // namespace

data::LoaderOptions loader_options(const RunContext& context) {
  const config::TrainSection& train = context.job.train;
  const schedule::Schedule& schedule = context.plan.schedule;
  mesh::DeviceMesh& mesh = context.mesh;
  const int pp = mesh.coordinate(mesh::Axis::pp);
  return {.seq_len = train.seq_len,
          .micro_batch_size = train.micro_batch_size,
          .microbatches = train.grad_accum_steps,
          .dp_size = mesh.size(mesh::Group::batch),
          .dp_rank = mesh.of(mesh::Group::batch).rank(),
          .cp_size = mesh.size(mesh::Axis::cp),
          .cp_rank = mesh.coordinate(mesh::Axis::cp),
          .cp_order = models::order_of(models::parse_context_kind(context.job.distributed.cp_kind)),
          .document_end = context.job.data.document_end >= 0 ? std::optional(context.job.data.document_end)
                                                             : std::nullopt,
          .packing = data::parse_packing(context.job.data.packing),
          .lengths = data::parse_lengths(context.job.data.lengths),
          .pad_to_multiple_of = context.job.data.pad_to_multiple_of,
          .tp_size = mesh.size(mesh::Axis::tp),
          .attention_length = attention_length(context.model),
          .need_tokens = pp == schedule.rank_of(0),
          .need_labels = pp == schedule.rank_of(schedule.stages() - 1),
          .device = context.device};
}

}  // namespace pptrain::app
