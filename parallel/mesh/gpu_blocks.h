// How the NCCL communicators of a rank share its GPU's multiprocessors.
#pragma once

#include "parallel/comm/nccl/gpu_ranks.h"
#include "parallel/mesh/device_mesh.h"

namespace pptrain::mesh {

// Thread blocks, one a multiprocessor. Communicators whose kernels wait for each other must fit on the GPU
// together, or none ends. A posted send or receive holds its blocks until the message has come.
struct GpuBlocks {
  static constexpr int most = comm::ThreadBlocks::most;
  static constexpr int most_of_group = 16;
  static constexpr int fewest_of_group = 4;

  int links = 0;     // of all links of the rank that has most
  int groups = 0;    // with collectives of CUDA tensors
  int of_group = 0;  // each of them: a power of two, or 0

  int all() const { return links + groups * of_group; }
  bool fit() const { return groups == 0 ? links <= most : of_group >= fewest_of_group; }
};

// What ranks exchange beside what the axes need.
struct GpuExchanges {
  int one_to_all = 0;    // kinds of messages between one pipeline rank and all others
  bool of_ends = false;  // the first and the last pipeline rank exchange messages
  bool ring = false;     // context-parallel ranks pass keys on, instead of exchanging heads
  bool experts = false;
  bool kv_copies = false;        // tensor-parallel ranks have the same key and value heads
  bool pipeline_gather = false;  // the pipeline ranks gather a tensor
};

GpuBlocks gpu_blocks(const MeshShape& shape, const GpuExchanges& exchanges);

}  // namespace pptrain::mesh
