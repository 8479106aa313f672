#include "core/attention/cudnn/cudnn_attention.h"

#include <ATen/cudnn/Handle.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <unordered_map>
#include <vector>

#include "core/attention/cudnn/cudnn_graph.h"
#include "core/attention/cudnn/cudnn_shape.h"
#include "core/base/error.h"
#include "core/kernels/device_name.h"

namespace pptrain::attention {
namespace {

using at::Tensor;

// That a thread keeps: padded lists of one document have seq_len / data.pad_to_multiple_of lengths.
constexpr size_t kMostPlans = 256;

HeadLayout layout_of(const Tensor& x) {
  return {.token = x.stride(0), .head = x.stride(1)};
}

CudnnSizes sizes_of(const AttentionCall& x) {
  const tokens::Segments& s = x.documents;
  const CudnnShape shape = cudnn_shape(s.documents(), s.longest, s.tokens(), s.equal_lengths());
  const int64_t parts = backward_parts(shape, x.q.size(1), x.k.size(1), x.deterministic,
                                       kernels::compute_capability(x.q.device()));
  return {.device = x.q.device().index(),
          .shape = shape,
          .heads = x.q.size(1),
          .kv_heads = x.k.size(1),
          .head_dim = x.q.size(2),
          .q = layout_of(x.q),
          .k = layout_of(x.k),
          .v = layout_of(x.v),
          .in_order = sums_in_order(shape, x.deterministic),
          .backward_parts = std::max<int64_t>(parts, 1)};
}

// Both passes of one size, or why cuDNN has none.
struct Plans {
  CudnnSizes sizes;
  CudnnGraph forward, backward;
  std::string refusal;
};

Plans make_plans(const CudnnSizes& sizes) {
  Plans plans{.sizes = sizes, .forward = {}, .backward = {}, .refusal = {}};
  try {
    const CudnnTarget target{.handle = at::native::getCudnnHandle()};
    plans.forward = make_forward_graph(sizes, target);
    plans.backward = make_backward_graph(sizes, target);
  } catch (const Error& error) {  // the frontend's message; a fault of the device has none
    plans.refusal = error.what();
    static_cast<void>(cudaGetLastError());  // what trying left behind is no later kernel's fault
  }
  return plans;
}

// The plans of this thread, the last used first. The device of `sizes` is current.
const Plans& plans_of(const CudnnSizes& sizes) {
  thread_local std::list<Plans> kept;
  for (auto plans = kept.begin(); plans != kept.end(); ++plans) {
    if (plans->sizes != sizes) continue;
    kept.splice(kept.begin(), kept, plans);
    return kept.front();
  }
  kept.push_front(make_plans(sizes));
  if (kept.size() > kMostPlans) kept.pop_back();
  return kept.front();
}

// Throws Error if cuDNN refuses the sizes.
const Plans& usable_plans_of(const CudnnSizes& sizes) {
  const Plans& plans = plans_of(sizes);
  if (!plans.refusal.empty()) throw Error(plans.refusal);
  return plans;
}

// What a graph reads and writes, by its uids.
class Arguments {
 public:
  Arguments& add(CudnnUid uid, const Tensor& x) {
    pointers_[static_cast<int64_t>(uid)] = x.data_ptr();
    kept_.push_back(x);
    return *this;
  }

  // A part of the heads, [*, heads, *].
  Arguments& add_part(CudnnUid uid, const Tensor& x, int64_t part, int64_t parts) {
    const int64_t heads = x.size(1) / parts;
    return add(uid, x.narrow(1, part * heads, heads));
  }

  // For ragged documents: their lengths, and their first elements in each tensor.
  Arguments& add_index(const CudnnSizes& z, CudnnPass pass, const tokens::Segments& segments) {
    if (!z.shape.ragged) return *this;
    const RaggedIndex index(segments.starts, z.shape.documents, segments.tokens());
    add(CudnnUid::q_lengths, index.lengths).add(CudnnUid::k_lengths, index.lengths);
    std::map<int64_t, Tensor> offsets;  // by the elements between tokens
    for (const auto& [uid, stride] : ragged_strides(z, pass)) {
      Tensor& at_stride = offsets[stride];
      if (!at_stride.defined()) at_stride = index.offsets(stride);
      add(uid, at_stride);
    }
    return *this;
  }

  void run(const CudnnGraph& graph, const Tensor& like) {
    const Tensor workspace = at::empty({workspace_bytes(graph)}, like.options().dtype(at::kByte));
    run_graph(graph, at::native::getCudnnHandle(), pointers_, workspace.data_ptr());
  }

 private:
  std::unordered_map<int64_t, void*> pointers_;
  std::vector<Tensor> kept_;  // until the work is in the stream's queue
};

bool is_aligned(const Tensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

}  // namespace

bool has_cudnn_attention() {
  return true;
}

std::string why_not_cudnn(const AttentionCall& x) {
  if (!is_aligned(x.q) || !is_aligned(x.k) || !is_aligned(x.v)) return "operands not aligned to 16 bytes";
  const c10::cuda::CUDAGuard guard(x.q.device());
  return plans_of(sizes_of(x)).refusal;
}

void cudnn_attention(Saved& saved) {
  const AttentionCall& x = saved.call;
  const c10::cuda::CUDAGuard guard(x.q.device());
  const CudnnSizes z = sizes_of(x);
  const auto f32 = x.q.options().dtype(at::kFloat);
  saved.out = at::empty(x.q.sizes(), x.q.options());
  saved.logsumexp = z.shape.ragged ? at::empty({x.q.size(0), z.heads}, f32)
                                   : at::empty({z.shape.documents, z.heads, z.shape.longest}, f32);
  Arguments()
      .add(CudnnUid::q, x.q)
      .add(CudnnUid::k, x.k)
      .add(CudnnUid::v, x.v)
      .add(CudnnUid::out, saved.out)
      .add(CudnnUid::logsumexp, saved.logsumexp)
      .add_index(z, CudnnPass::forward, x.documents)
      .run(usable_plans_of(z).forward, x.q);
}

void cudnn_attention_backward(const Tensor& dout, const Saved& saved, const Gradients& grads) {
  const AttentionCall& x = saved.call;
  const c10::cuda::CUDAGuard guard(x.q.device());
  const CudnnSizes z = sizes_of(x);
  const bool fits = layout_of(grads.dq) == z.query_gradient() && layout_of(grads.dk) == z.key_gradient() &&
                    layout_of(grads.dv) == z.key_gradient() && dout.is_contiguous() &&
                    saved.out.is_contiguous();
  if (!fits) throw Error("cuDNN attention: gradients or outputs do not lie as cudnn_attention.h says");
  const CudnnGraph& graph = usable_plans_of(z).backward;
  Arguments arguments;
  arguments.add_index(z, CudnnPass::backward, x.documents);
  for (int64_t part = 0; part < z.backward_parts; ++part) {
    const auto add = [&](CudnnUid uid, const Tensor& t) {
      arguments.add_part(uid, t, part, z.backward_parts);
    };
    add(CudnnUid::q, x.q);
    add(CudnnUid::k, x.k);
    add(CudnnUid::v, x.v);
    add(CudnnUid::out, saved.out);
    add(CudnnUid::dout, dout);
    add(CudnnUid::dq, grads.dq);
    add(CudnnUid::dk, grads.dk);
    add(CudnnUid::dv, grads.dv);
    const int64_t heads = z.heads / z.backward_parts;
    arguments.add(CudnnUid::logsumexp, saved.logsumexp.narrow(1, part * heads, heads).contiguous());
    arguments.run(graph, x.q);
  }
}

}  // namespace pptrain::attention
