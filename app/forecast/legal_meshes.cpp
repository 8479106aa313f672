#include "app/forecast/legal_meshes.h"

#include <initializer_list>
#include <string>
#include <string_view>

#include "core/config/validate.h"

namespace pptrain::app {

namespace {

// Longer rings are left out: a rank's work in the dry run of a ring grows with the square of its ranks.
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

// Do these axes divide the model and the tokens of a microbatch of one sample evenly?
bool fits(const PlanBase& base, int cp, int tp) {
  if (cp > most_context_ranks) return false;
  config::JobConfig job = base.job;
  job.train.micro_batch_size = 1;
  job.distributed.cp = cp;
  job.distributed.tp = tp;
  job.distributed.ep = 1;
  job.distributed.settle_slices();  // one may be chosen
  bool fits = true;
  config::check_layout(job,
                       [&](std::initializer_list<std::string_view>, const std::string&) { fits = false; });
  return fits;
}

// The mesh, and for a model with experts the mesh with every number of ranks that can shard them.
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
  std::vector<mesh::MeshShape> meshes;
  for (const int pp : divisors(world)) {
    if (pp > base.model.layers) break;
    for (const int tp : divisors(world / pp)) {
      if (!fits(base, 1, tp)) continue;
      for (const int cp : divisors(world / pp / tp)) {
        if (!fits(base, cp, tp)) continue;
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
