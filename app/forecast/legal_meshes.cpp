#include "app/forecast/legal_meshes.h"

#include "app/forecast/costs.h"

namespace pptrain::app {

namespace {

// Longer rings are left out: what a rank computes in a dry run of one grows with the square of the ranks.
constexpr int most_context_ranks = 64;

// Ascending.
std::vector<int> divisors(int n) {
  std::vector<int> small, large;
  for (int d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    small.push_back(d);
    if (d != n / d) large.push_back(n / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

bool has_dense_layers(const models::ModelConfig& model) {
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    if (!model.sparse.contains(layer)) return true;
  }
  return false;
}

// Tensor-parallel ranks cut the MLP of dense layers, and no expert.
bool cuts_model(const models::ModelConfig& model, int tp) {
  const bool key_values = model.kv_heads % tp == 0 || tp % model.kv_heads == 0;
  const bool mlp = !has_dense_layers(model) || model.intermediate % tp == 0;
  return model.heads % tp == 0 && key_values && mlp && tp <= model.vocab;
}

bool cuts_samples(const models::ModelConfig& model, int64_t length, models::ContextKind kind, int tp,
                  int cp) {
  if (cp > most_context_ranks || length / cp < tp) return false;  // each rank has a share of the tokens
  if (cp == 1) return true;
  if (kind == models::ContextKind::ulysses) return length % cp == 0 && model.heads / tp % cp == 0;
  return length % (2 * cp) == 0;
}

// The mesh, and for a model of experts the mesh with every number of ranks that can share them out.
void add_mesh(const PlanBase& base, mesh::MeshShape mesh, std::vector<mesh::MeshShape>& meshes) {
  meshes.push_back(mesh);
  const int64_t experts = base.model.sparse.experts;
  for (const int ep : divisors(mesh.size(mesh::Group::replica))) {
    if (ep == 1 || experts == 0 || experts % ep != 0) continue;
    mesh.ep = ep;
    meshes.push_back(mesh);
  }
}

}  // namespace

std::vector<mesh::MeshShape> legal_meshes(const PlanBase& base, int world, int64_t samples) {
  const models::ContextKind kind = context_kind(base.job.distributed);
  std::vector<mesh::MeshShape> meshes;
  for (const int pp : divisors(world)) {
    if (pp > base.model.layers) break;
    for (const int tp : divisors(world / pp)) {
      if (!cuts_model(base.model, tp)) continue;
      for (const int cp : divisors(world / pp / tp)) {
        if (!cuts_samples(base.model, base.job.train.seq_len, kind, tp, cp)) continue;
        const int data = world / pp / tp / cp;
        if (samples % data != 0) continue;
        for (const int shard : divisors(data))
          add_mesh(base, {.pp = pp, .dp_replicate = data / shard, .dp_shard = shard, .cp = cp, .tp = tp},
                   meshes);
      }
    }
  }
  return meshes;
}

int64_t samples_of_step(const PlanBase& base) {
  const config::TrainSection& train = base.job.train;
  return train.micro_batch_size * train.grad_accum_steps * base.mesh.size(mesh::Group::batch);
}

}  // namespace pptrain::app
