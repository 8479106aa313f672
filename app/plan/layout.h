// How a job lies on its ranks, fact by fact.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/job_config.h"
#include "parallel/mesh/device_mesh.h"
#include "parallel/pipeline/split_layers.h"

namespace pptrain::app {

// What auto, cost and the searches choose. Each member but the mesh is a row of layout_facts().
struct Layout {
  mesh::MeshShape mesh;
  int64_t micro_batch_size = 1;
  int64_t grad_accum_steps = 1;
  config::Recomputation recompute{};
  bool reshard = false;           // after a forward pass
  bool every_microbatch = false;  // gradients are reduced after each microbatch, not once a step
  std::string schedule{};         // a name, or a file
  bool spread_head = false;
  int64_t sequence_slices = 1;
  int64_t stages_per_rank = 1;
  pipeline::LayerAssignment layers{};

  int64_t microbatches() const { return grad_accum_steps * sequence_slices; }  // slices counted
  // Has a step the bits of one of the other layout, which has the same mesh and microbatches?
  bool has_bits_of(const Layout& other) const {
    return spread_head == other.spread_head && sequence_slices == other.sequence_slices;
  }
  std::string schedule_text() const;  // "zbv, head spread, 4 slices"
  std::string recompute_text() const;
  // As --set takes it: "distributed.pp_split=6,2". A job with these keys has this layout. `whole`: all keys,
  // except the head's place and slices if the job has them already. Otherwise the schedule, the split, and
  // what differs from a job on this mesh.
  std::vector<std::string> overrides(const config::JobConfig& job, bool whole = false) const;
  bool operator==(const Layout&) const = default;
};

// One fact of a layout, and the option of a job that says it. Readers, writers, comparisons, rankings and
// what rank 0 tells the others follow from its row.
struct LayoutFact {
  // When --set needs it: `always`, if the job says something `other`, or with `whole` if its ranks exist.
  enum class Set { always, other, whole_or_other, whole_if_sharded, whole_if_reduced };

  std::string_view option;  // "train.micro_batch_size"
  std::string_view column;  // in rankings
  int set_place;            // among the --set of a layout
  Set set;
  bool chosen_at_start;  // by auto, cost or search at a run's start: rank 0 tells the others
  bool varies_on_mesh;   // among the layouts that `plan --search` lists for a mesh
  bool (*same)(const Layout&, const Layout&);
  // Does nothing for the layers, which need the schedule's stages.
  void (*read)(const config::JobConfig&, Layout&);
  // Does nothing for layers that are not known yet.
  void (*write)(const Layout&, config::JobConfig&);

  // Do rankings of meshes alone show it, since a ranking of schedules leaves it as the job says?
  bool of_mesh_rankings() const { return set == Set::whole_if_sharded || set == Set::whole_if_reduced; }
  // Is it the job's alone when a ranking of meshes varies the rest?
  bool of_job_alone() const { return set == Set::other; }
  // Its value in this layout, as TOML.
  std::string toml(const Layout& layout) const;
  // The same without quotes and brackets: "6,2".
  std::string text(const Layout& layout, std::string_view separator = ",") const;
};

// In the order of the rankings' columns.
std::span<const LayoutFact> layout_facts();

// The layout that a job with this mesh gives, without its layers.
Layout layout_of(const config::JobConfig& job, const mesh::MeshShape& mesh);

}  // namespace pptrain::app
