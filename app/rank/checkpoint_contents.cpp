#include "app/rank/checkpoint_contents.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace pptrain::app {
namespace {

using checkpoint::model_file;
using Stages = std::span<const RankModel::RankStage>;

bool is_stored_here(const RunContext& context, const nn::Slice& slice) {
  return slice.spec.counted && !slice.spec.frozen && !is_tied_copy(context, slice);
}

std::string stored_name(const RunContext& context, const nn::Slice& slice) {
  return is_tied_copy(context, slice) ? std::string("embed.weight") : slice.spec.name;
}

// A bias on the choice of experts that the checkpoint's job did not have yet (model.router_bias_update_rate)
// starts at zero.
bool starts_at_zero(const nn::ParameterSpec& spec, const std::vector<std::string>& stored) {
  return spec.role == nn::Role::balance && std::ranges::find(stored, spec.name) == stored.end();
}

// Calls visit(slice) for what the stage reads from the checkpoint, and zeros what it does not have yet.
template <typename Visit>
void for_each_stored(const RankModel::RankStage& own, const std::vector<std::string>& stored,
                     const Visit& visit) {
  for (nn::Slice* slice : own.stage->parameters().slices()) {
    if (starts_at_zero(slice->spec, stored)) {
      slice->master.zero_();
    } else if (!slice->spec.frozen) {
      visit(*slice);
    }
  }
}

// The number of parameters that learn and are `stored`, over all stages; each of their names once, although
// ranks shard experts.
size_t learning_parameters(RunContext& context, Stages stages, const std::vector<std::string>& stored) {
  std::vector<double> counts(2, 0.0);  // dense, experts
  for (const RankModel::RankStage& own : stages) {
    for (nn::ParameterGroup& group : own.stage->parameters().groups()) {
      if (&group == own.stage->embedding_group() && !own.stage->is_first()) continue;  // a shard
      for (const nn::ParameterSpec* spec : group.specs()) {
        if (spec->frozen || starts_at_zero(*spec, stored)) continue;
        const bool repeated = context.model.tied || (own.stage->has_head_part() && own.stage->index() > 0);
        if (spec->name == "head.weight" && repeated) continue;
        counts[group.of_experts() ? 1 : 0] += 1;
      }
    }
  }
  if (context.model.sparse.experts > 0)
    counts[1] = comm::all_reduce_sum(context.mesh.of(mesh::Group::ep), std::vector<double>{counts[1]})[0];
  counts = comm::all_reduce_sum(context.mesh.along(mesh::Axis::pp), counts);
  return static_cast<size_t>(counts[0] + counts[1]);
}

// Throws Error unless all that is stored has a place.
void check_size(RunContext& context, Stages stages, const std::vector<std::string>& names) {
  const size_t stored = names.size(), own = learning_parameters(context, stages, names);
  if (stored == own) return;
  throw Error(fmt::format(
      "the checkpoint holds {} parameters, of the job's model {} learn: it is another model's, or "
      "other parameters were frozen",
      stored, own));
}

}  // namespace

bool is_tied_copy(const RunContext& context, const nn::Slice& slice) {
  return context.model.tied && slice.spec.name == "head.weight";
}

std::vector<checkpoint::StageContents> contents_of(const RunContext& context, Stages stages) {
  if (context.mesh.coordinate(mesh::Axis::dp_replicate) != 0) return {};
  std::vector<checkpoint::StageContents> result;
  for (const RankModel::RankStage& own : stages) {
    checkpoint::StageContents& stage = result.emplace_back();
    stage.stage = own.stage->index();
    stage.part = context.mesh.place(mesh::Group::replica);
    stage.parts = context.mesh.size(mesh::Group::replica);
    for (const nn::Slice* slice : own.stage->parameters().slices()) {
      if (is_stored_here(context, *slice))
        stage.files[model_file].push_back({slice->spec.name, slice->shape, slice->master});
    }
    for (const optim::StateTensor& state : own.optimizer->state()) {
      const nn::Slice& slice = *state.slice;
      if (is_stored_here(context, slice))
        stage.files[state.file].push_back({slice.spec.name, slice.shape, state.tensor});
    }
  }
  return result;
}

void read_weights(RunContext& context, Stages stages, const checkpoint::Reader& reader) {
  const std::vector<std::string> stored = reader.names(model_file);
  check_size(context, stages, stored);
  for (const RankModel::RankStage& own : stages) {
    for_each_stored(own, stored, [&](nn::Slice& slice) {
      reader.read(model_file, stored_name(context, slice), slice.shape, slice.master);
    });
    own.stage->parameters().refresh_compute();
  }
}

void read_all(RunContext& context, Stages stages, const checkpoint::Reader& reader,
              comm::Communicator& comm) {
  const std::vector<std::string> stored = reader.names(model_file);
  check_size(context, stages, stored);
  const bool has_average = !reader.weights_alone() && !reader.names(optim::average_file).empty();
  checkpoint::Destinations wanted;
  for (const RankModel::RankStage& own : stages) {
    for_each_stored(own, stored, [&](nn::Slice& slice) {
      wanted[model_file].push_back({stored_name(context, slice), slice.shape, slice.master});
    });
    for (const optim::StateTensor& state : own.optimizer->state()) {
      if (reader.weights_alone() || starts_at_zero(state.slice->spec, stored)) {
        state.tensor.zero_();  // as in a new run, even after another checkpoint was partly loaded
      } else if (state.file != optim::average_file || has_average) {
        wanted[state.file].push_back({stored_name(context, *state.slice), state.slice->shape, state.tensor});
      }
    }
  }
  reader.read_shared(comm, wanted);
  for (const RankModel::RankStage& own : stages) {
    own.stage->parameters().refresh_compute();
    own.optimizer->set_step(reader.state().optimizer_step);
    if (!has_average) own.optimizer->start_average();
  }
}

}  // namespace pptrain::app
