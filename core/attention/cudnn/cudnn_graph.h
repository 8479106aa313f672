// The two graphs of cudnn_attention.cpp: what cuDNN's frontend is told of one size of attention.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/attention/cudnn/cudnn_shape.h"

namespace cudnn_frontend {
class DeviceProperties;
namespace graph {
class Graph;
}
}  // namespace cudnn_frontend

namespace pptrain::attention {

// Elements between the tokens, and between the heads, of a [tokens, heads, head_dim].
struct HeadLayout {
  int64_t token = 0, head = 0;
  bool operator==(const HeadLayout&) const = default;
};

enum class CudnnPass { forward, backward };

// All that a pair of graphs depends on.
struct CudnnSizes {
  int64_t device = 0;
  CudnnShape shape;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  HeadLayout q, k, v;
  bool in_order = true;        // sums_in_order
  int64_t backward_parts = 1;  // runs of the backward graph, each of so much of the heads (cudnn_shape.h)

  int64_t parts(CudnnPass pass) const { return pass == CudnnPass::backward ? backward_parts : 1; }

  // Layout of the output and its gradient.
  HeadLayout output() const { return {heads * head_dim, head_dim}; }
  // Layout of dq, and of dk and dv: views of one fused tensor, or contiguous if documents are ragged.
  HeadLayout query_gradient() const {
    return {(shape.ragged ? heads : heads + 2 * kv_heads) * head_dim, head_dim};
  }
  HeadLayout key_gradient() const {
    return {(shape.ragged ? kv_heads : heads + 2 * kv_heads) * head_dim, head_dim};
  }
  bool operator==(const CudnnSizes&) const = default;
};

// The tensors that a graph takes when it runs.
enum class CudnnUid : int64_t {
  q = 1,
  k,
  v,
  out,
  logsumexp,
  dout,
  dq,
  dk,
  dv,
  // For ragged documents: int32 [documents], and [documents + 1] offsets in elements of each tensor's
  // documents.
  q_lengths,
  k_lengths,
  q_offsets,
  k_offsets,
  v_offsets,
  out_offsets,  // of out, dout and dq
  logsumexp_offsets,
  key_gradient_offsets,  // of dk and dv
};

// Each kind of offsets that the graph of a pass takes, and the elements between the tokens there.
std::vector<std::pair<CudnnUid, int64_t>> ragged_strides(const CudnnSizes& sizes, CudnnPass pass);

// With a plan that is ready to run. Null if there is none yet.
using CudnnGraph = std::shared_ptr<cudnn_frontend::graph::Graph>;

// Device that a plan is made for: a handle's or, without a handle, one that is described.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  std::shared_ptr<const cudnn_frontend::DeviceProperties> properties = nullptr;
  int capability = 0;  // of `properties`: 90 is 9.0
};

// A device that need not be there: cuDNN makes and sizes its plans, which nothing can then run. json: as
// CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION. Throws Error if cuDNN does not take it.
CudnnTarget describe_device(const std::string& json, int capability);

// The backward graph takes one part of the heads. Both throw Error if cuDNN has no plan, with its message.
// The device of a handle is current.
CudnnGraph make_forward_graph(const CudnnSizes& sizes, const CudnnTarget& target);
CudnnGraph make_backward_graph(const CudnnSizes& sizes, const CudnnTarget& target);

int64_t workspace_bytes(const CudnnGraph& graph);

// On the stream of `handle`. `pointers`: by CudnnUid, the graph's own and no others, since the frontend gives
// other numbers to tensors inside the graph. Throws Error.
void run_graph(const CudnnGraph& graph, cudnnHandle_t handle, std::unordered_map<int64_t, void*>& pointers,
               void* workspace);

}  // namespace pptrain::attention
