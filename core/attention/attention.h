// Causal scaled dot product attention of grouped heads over the documents of a token list: one description of
// a call, and the back ends that compute calls, with what each of them takes. CoreAttention separates a layer
// from the place of its keys.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/data/tokens/context_split.h"
#include "core/data/tokens/segments.h"

namespace pptrain::attention {

// softmax(scale q k^T) v; a query sees the keys of its own document up to itself. A back end refuses every
// member below `documents` that it does not declare (Takes), unless it has its default.
struct AttentionCall {
  at::Tensor q;                  // T [tokens, heads, head_dim], any strides with the last one 1, as k and v
  at::Tensor k, v;               // T [keys, kv_heads, head_dim]; kv_heads divides heads
  tokens::Segments documents{};  // of the whole token list
  // Over context-parallel ranks: this one has q, k and v of its part; null: the whole list is this rank's.
  std::shared_ptr<const tokens::ContextSplit> split{};
  std::optional<double> scale{};  // of the scores; 1 / sqrt(head_dim) unless given
  double softcap = 0;             // a score s becomes softcap * tanh(s / softcap); 0: it stays
  int64_t window = 0;             // a query sees this many keys, the last of them its own; 0: all
  // float32 [heads]: one more score of each head, without a value and scaled already; undefined: none
  at::Tensor sinks{};
  // The same operands give the same bits of gradients on a GPU too. Every back end takes both.
  bool deterministic = true;
  // The caller saves nothing of this pass and recomputes it before its backward pass: keys that the back end
  // keeps are copied, so that they do not hold the caller's memory.
  bool computed_again = false;
};

double scale_of(const AttentionCall& call);

enum class BackEnd {
  cpu,              // our kernel, whole documents
  cpu_blocks,       // our kernel, blocks of keys (blocks.h)
  cpu_decode,       // our kernel, one query a document over cached keys (cache.h)
  cudnn,            // cuDNN's graphs: the fastest on Hopper and later; gradients go straight into one tensor
  flash,            // FlashAttention-2 of LibTorch: every GPU since Ampere
  flash_blocks,     // the same on blocks of keys, also of whole documents: a call for each
  efficient,        // LibTorch's memory-efficient attention: float32 on a GPU
  library_decode,   // LibTorch's scaled_dot_product_attention over cached keys
  composed_blocks,  // LibTorch's plain operators, also of whole documents: slow, takes every type and device
  ring,             // parallel/axes/context: keys travel between context-parallel ranks
  ulysses,          // parallel/axes/context: ranks exchange tokens for heads
  sequence_slices,  // blocks, with kept keys of the slices before
};

// What a back end takes in addition to q, k, v and documents, or what a call asks for.
struct Takes {
  bool split = false, scale = false, softcap = false, window = false, sinks = false;
};

std::string_view name_of(BackEnd back_end);
Takes what_takes(BackEnd back_end);
Takes what_asks(const AttentionCall& call);
bool takes(BackEnd back_end, const Takes& asked);

// Throws Error that names what the call asks for and the back end does not declare. Also throws if sinks are
// not float32 [heads].
void require_taken(BackEnd back_end, const AttentionCall& call);

// What a forward pass saves for its backward pass.
struct Saved {
  // With the operands that the backward pass reads: the caller's, or what an exchange made of them. Sinks are
  // a copy, since weights may be freed between the passes.
  AttentionCall call;
  at::Tensor out{};
  at::Tensor logsumexp{};               // as the back end leaves it; our own: float32 [heads, tokens]
  at::Tensor rng_seed{}, rng_offset{};  // LibTorch's on a GPU, unused without dropout
  BackEnd back_end = BackEnd::cpu;      // of both passes
  int64_t kv_heads = 0;                 // of the caller's k, if an exchange made another number of them

  std::vector<at::Tensor> tensors() const;  // all of them; some share memory, some are undefined
};

struct Gradients {
  at::Tensor dq, dk, dv;
  // float32 [heads], of calls with sinks: either this rank's tokens' part, or all tokens' part for this
  // rank's heads and 0 in others. Context-parallel ranks sum it as they sum gradients of weights.
  at::Tensor dsinks{};
  // T [tokens, heads + 2 kv_heads, head_dim] if dq, dk and dv are views of one tensor in this order; else
  // undefined.
  at::Tensor fused{};
};

// Uninitialised gradients in the layout of a back end for whole documents. Our own, and cuDNN if documents
// are equal: one tensor. Else three.
Gradients empty_gradients(BackEnd back_end, const AttentionCall& call);

// Computes a call whose keys are all this rank's, by the best back end at hand: T [tokens, heads, head_dim],
// contiguous. On CUDA why_no_attention (gpu.h) must allow head_dim. On the meta device results have shapes
// alone: the CPU kernel's, or those of the dry run's GPU, whose libraries' memory is counted. Throws Error
// for what the back end does not take.
at::Tensor attend(AttentionCall call, Saved& saved);

// By one back end for whole documents, which the device must have.
at::Tensor attend_by(BackEnd back_end, AttentionCall call, Saved& saved);

// Gradients in the shapes of q, k and v, last stride 1, in one buffer (`fused`) or several, held only by the
// caller. dout: as q.
Gradients attend_backward(const at::Tensor& dout, const Saved& saved);

// The call's sinks as a backward pass may keep them: a copy. Undefined if it has none.
at::Tensor copy_sinks(const AttentionCall& call);

// Gradients::dsinks of a call whose queries have their final saved.out (T, as dout) and saved.logsumexp
// (float32 [heads, tokens], of the scores and the sink). Undefined if it has no sinks.
at::Tensor sink_gradient(const at::Tensor& dout, const Saved& saved);

// Separates a layer from the place of its keys. The layer projects, norms and rotates its own tokens and
// knows nothing else. An implementation may exchange tokens, keys or heads with other ranks in either pass,
// or keep keys of earlier calls. One object may serve many layers if it keeps nothing between calls.
class CoreAttention {
 public:
  virtual ~CoreAttention() = default;

  // call: of this rank's tokens, `documents` and `split` of the whole list; `deterministic` is the
  // implementation's. Returns T [tokens, heads, head_dim], contiguous. The layer does not write q, k, v or
  // the result before the backward pass.
  virtual at::Tensor forward(AttentionCall call, Saved& saved) = 0;

  // dout: as the result of forward. Gradients of this rank's q, k and v, last stride 1, in memory that the
  // layer may write. Takes `saved` over and frees it.
  virtual Gradients backward(const at::Tensor& dout, Saved saved) = 0;

  // Drops what calls have kept for later ones, after a failed step.
  virtual void discard() {}
};

// All keys are this rank's.
std::shared_ptr<CoreAttention> make_local_attention(bool deterministic = true);

// For one layer, for lists that may come in sequence slices (the call's `split`: a part is a slice), as a
// pipeline takes them (Seq1F1B, arXiv 2406.03488): forward slice after slice, backward in the other order. A
// slice's queries see the keys of its own and of earlier slices of its list; keys are kept until their
// backward pass. The gradients that keys get from later slices are summed in float32, the last slice's first.
// Other lists go through `inner`.
std::shared_ptr<CoreAttention> make_slice_attention(std::shared_ptr<CoreAttention> inner, bool deterministic);

}  // namespace pptrain::attention
