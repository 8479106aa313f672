// The inner loops of the CPU kernels: plain functions over raw pointers and a range of rows, without threads,
// tensors or argument checks. Their one source, loops.inc, is compiled once per instruction set
// (loops_*.cpp). The program chooses the best table that this processor can run when it starts. T is float,
// or uint16_t holding bfloat16 bits.
//
// What a function computes for a row (or a column) does not depend on the range it was called with, so that a
// caller may divide rows or columns among threads as it likes. Only `weight_sum` adds up over the range: its
// ranges must be fixed.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/kernels/activation.h"
#include "core/kernels/step_scalars.h"
#include "core/kernels/stochastic_rounding.h"

namespace pptrain::kernels::cpu {

// A row-major matrix; `stride` is the distance of its rows, in elements.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;
};

// For adamw, and for lion, which has no exp_avg_sq. T: of the moments.
template <class T>
struct StepLoopArgs {
  float* weight;
  const float* grad;
  T* exp_avg;
  T* exp_avg_sq;
  uint16_t* compute;  // bfloat16; may be null
  // What is overwritten goes here, past the caches; all may be null.
  float* previous_weight;
  T* previous_exp_avg;
  T* previous_exp_avg_sq;
  StepScalars scalars;
};

template <class T>
struct RmsNormArgs {
  const T* dy = nullptr;  // backward only
  const T* x;
  const T* added;  // may be null; forward: sum = x + added is normalised and stored; backward: added to dx
  const float* weight;
  float eps = 0;
  T* sum = nullptr;
  T* out;       // y, or dx
  float* rstd;  // backward only reads it
  int64_t dim;
};

// [tokens, heads, head_dim] with strides in elements; the last stride is 1.
template <class T>
struct HeadsView {
  T* data;
  int64_t stride_token, stride_head;
};

template <class T>
struct NormRopeArgs {
  HeadsView<const T> x;
  HeadsView<const T> dy = {};  // backward only
  HeadsView<T> out;            // y, or dx
  const float* weight;         // may be null: no norm
  float eps = 0;
  float* rstd;
  const float* cos;
  const float* sin;
  const int32_t* positions;
  int64_t tokens, heads, head_dim;
};

template <class T>
struct ActivateArgs {
  const T* dy = nullptr;  // backward only
  const T* x;             // [rows, dim], or with a gate [rows, 2 * dim]
  T* out;                 // y, or dx
  T* y = nullptr;         // backward only; may be null
  Activation activation = Activation::silu;
  bool gated = true;
  int64_t dim;
  const float* weights = nullptr;  // swiglu: of each row; may be null
  float* dweights = nullptr;       // swiglu_backward with weights
};

// Rows of logits of a whole vocabulary, or of the part of it that begins with `first`.
template <class T>
struct SoftmaxArgs {
  T* logits;  // [rows, width]; softmax_statistics only reads them
  const int64_t* labels;
  int64_t first = 0, width;
  float* loss = nullptr;       // cross_entropy
  bool want_gradient = false;  // cross_entropy
  // softmax_statistics: [rows, 3], the maximum, the sum of exp(x - maximum), the label's logit or 0
  float* statistics = nullptr;
  const float* maximum = nullptr;  // softmax_gradient: [rows], over the whole vocabulary
  const float* scale = nullptr;    // softmax_gradient: [rows], 1 / sum of exp(x - maximum) over all of it
};

// What becomes of the scores of a block of attention rows. Rows are queries first, first + 1, ...; each sees
// the keys up to its own position, or all keys if its position is beyond the last one. With a window it sees
// the last `window` of these, of which the block may hold none.
struct ScoreRule {
  int64_t first, rows, keys;
  int64_t window = 0;  // 0: none
  float scale;
  float softcap = 0;  // scale x becomes softcap * tanh(scale x / softcap); 0: it stays
};

template <class T>
struct AttentionGradientArgs {
  float* scores;          // [rows, keys], unscaled; with a softcap overwritten
  const float* dweights;  // [rows, keys]: dout v^T
  const float* logsumexp;
  Matrix<const T> dout, out;  // [rows, head_dim]
  T* weights;                 // [rows, keys]: softmax
  T* dscores;                 // [rows, keys]: gradient of the unscaled scores
  int64_t head_dim;
  ScoreRule rule;
};

// One query for each head of a group that shares its keys; it sees all of them.
template <class T>
struct DecodeAttentionArgs {
  Matrix<const T> q;  // [heads, head_dim]
  const T* k;         // [keys, head_dim]; v likewise
  const T* v;
  Matrix<T> out;  // [heads, head_dim]
  float* scores;  // scratch: [keys]
  int64_t heads, keys, head_dim;
  float scale, softcap;  // as in ScoreRule
  const float* sinks;    // [heads]: one more score without a key; may be null
};

// A GEMM of few rows with a weight, which is read once for four of them.
template <class T>
struct LinearRowsArgs {
  Matrix<const T> x;  // [rows, in]
  const T* weight;    // [out, in]
  const T* bias;      // [out]; may be null
  Matrix<T> out;      // [rows, out]
  int64_t rows, in;
};

// route_backward reads what route wrote.
struct RouteArgs {
  float* probabilities;
  float* logsumexp;
  int32_t* chosen;
  int64_t experts, k;
  bool normalise;
  // route
  const float* logits = nullptr;
  const float* bias = nullptr;  // may be null
  float* weights = nullptr;
  // route_backward
  const float* dweights = nullptr;
  const float* slopes = nullptr;  // may be null
  const bool* filling = nullptr;  // may be null
  float* dlogits = nullptr;
  float z_slope = 0;
};

template <class T>
struct SumRowsArgs {
  const T* x;
  const int32_t* place;
  const float* residual;  // may be null
  T* out;
  int64_t k, dim;
};

// c [rows, columns] (+)= a b, of packed blocks whose panels are a_panel and b_panel values apart.
struct GemmBlocks {
  const uint32_t *a, *b;
  int64_t a_panel, b_panel, steps;
  bool add;  // otherwise c is written, unread
  float* c;
  int64_t stride, rows, columns;
};

// The parts of gemm.cpp's GEMMs. A packed panel has `rows` rows of the first operand, or `columns` columns of
// the second. For each step it holds 32 bits of each row (column): `inner` inner indices, one float32 or two
// bfloat16.
template <class T>
struct GemmLoops {
  int64_t rows, columns, inner;
  // Packs rows (columns) of an operand into panels that are `panel` values apart. The operand begins with the
  // first row (column) and the first inner index. With `along`, inner indices run along memory's rows, else
  // across them. Overwrites 16 values after the last panel.
  void (*pack_rows)(Matrix<const T>, bool along, int64_t inner, int64_t rows, int64_t panel, uint32_t* to);
  void (*pack_columns)(Matrix<const T>, bool along, int64_t inner, int64_t columns, int64_t panel,
                       uint32_t* to);
  void (*multiply)(const GemmBlocks&);
};

// Loops whose tensors have the compute type T. begin and end count rows (tokens for norm_rope) or columns, as
// said.
template <class T>
struct TypedLoops {
  void (*rms_norm)(const RmsNormArgs<T>&, int64_t begin, int64_t end);
  // weight_sum (float [dim]) += the weight's gradient over these rows, in row order.
  void (*rms_norm_backward)(const RmsNormArgs<T>&, float* weight_sum, int64_t begin, int64_t end);
  void (*norm_rope)(const NormRopeArgs<T>&, int64_t begin, int64_t end);
  // scratch: float [head_dim]. weight_sum (float [head_dim]) += the weight's gradient over these tokens, in
  // token order. Both are used only with weight.
  void (*norm_rope_backward)(const NormRopeArgs<T>&, float* scratch, float* weight_sum, int64_t begin,
                             int64_t end);
  void (*swiglu)(const ActivateArgs<T>&, int64_t begin, int64_t end);
  void (*swiglu_backward)(const ActivateArgs<T>&, int64_t begin, int64_t end);
  void (*activate)(const ActivateArgs<T>&, int64_t begin, int64_t end);
  void (*activate_backward)(const ActivateArgs<T>&, int64_t begin, int64_t end);
  // scratch: float [width], read and written only with want_gradient.
  void (*cross_entropy)(const SoftmaxArgs<T>&, float* scratch, int64_t begin, int64_t end);
  void (*softmax_statistics)(const SoftmaxArgs<T>&, int64_t begin, int64_t end);
  // logits = softmax - one-hot; 0 in rows that do not count.
  void (*softmax_gradient)(const SoftmaxArgs<T>&, int64_t begin, int64_t end);
  // Elements [begin, end), in place.
  void (*softcap)(T* logits, float scale, float cap, int64_t begin, int64_t end);
  void (*softcap_backward)(const T* capped, T* dlogits, float scale, float cap, int64_t begin, int64_t end);
  // scores: [rows, keys], unscaled; with a softcap overwritten. weights: [rows, keys], exp(score - row
  // maximum) of scaled scores; 0 if masked. sums: [rows], of the weights; 1 if a row sees no key. logsumexp:
  // [rows], of the scaled scores; the lowest number if a row sees no key.
  void (*attention_softmax)(const ScoreRule&, float* scores, T* weights, float* sums, float* logsumexp);
  void (*attention_gradient)(const AttentionGradientArgs<T>&);
  // Gradient of the sink's score of one head, summed in the order of the rows. dout, out: [rows, head_dim];
  // logsumexp: of the rows' scores and the sink.
  double (*sink_gradient)(Matrix<const T> dout, Matrix<const T> out, const float* logsumexp, float sink,
                          int64_t rows, int64_t head_dim);
  void (*decode_attention)(const DecodeAttentionArgs<T>&);
  // Columns [begin, end) of the result. Each element has the same bits as in a GEMM of its row alone.
  void (*linear_rows)(const LinearRowsArgs<T>&, int64_t begin, int64_t end);
  // out = x [rows, dim] rounded, each row divided by its divisor if `divisors` is given.
  void (*divide_rows)(const float* x, const float* divisors, Matrix<T> out, int64_t rows, int64_t dim);
  // weight_grad[tokens[r] - first] += dy[r] of the tokens in [first, first + held), for columns [begin, end),
  // in row order.
  void (*embedding_backward)(const int64_t* tokens, int64_t first, int64_t held, const T* dy,
                             float* weight_grad, int64_t rows, int64_t dim, int64_t begin, int64_t end);
  // sums (float [cols]) += column sums over all rows, columns [begin, end) only, in row order.
  void (*column_sums)(const T* x, float* sums, int64_t rows, int64_t cols, int64_t begin, int64_t end);
  void (*sum_rows)(const SumRowsArgs<T>&, int64_t begin, int64_t end);
  // Elements [begin, end). words: of element `begin`, for bfloat16 moments.
  void (*adamw)(const StepLoopArgs<T>&, RandomWords words, int64_t begin, int64_t end);
  void (*lion)(const StepLoopArgs<T>&, RandomWords words, int64_t begin, int64_t end);
  // Elements [begin, end); next may be `average`.
  void (*momentum)(const float* average, const float* grad, T* next, float grad_scale, float one_minus_beta,
                   int64_t begin, int64_t end);
  // Elements [begin, end); compute: bfloat16, may be null.
  void (*descend)(float* weight, const T* direction, uint16_t* compute, float decay, float negative_step,
                  int64_t begin, int64_t end);
  GemmLoops<T> gemm;
};

struct Loops {
  const char* isa;
  bool tiles;  // the loops of amx.h go with it
  TypedLoops<float> f32;
  TypedLoops<uint16_t> bf16;
  double (*sum_of_squares)(const float* x, int64_t size);
  void (*route)(const RouteArgs&, int64_t begin, int64_t end);  // begin and end count tokens
  void (*route_backward)(const RouteArgs&, int64_t begin, int64_t end);
  // Merges attention of rows over further keys into their attention over other keys. part: [rows, head_dim],
  // weights v; weights, part_sums and part_logsumexp, [rows], are as attention_softmax gave them. out: [rows,
  // head_dim], softmax(...) v; logsumexp: [rows]. Before the first keys logsumexp is minus infinity and out
  // is zero.
  void (*attention_merge)(const float* part, const float* part_sums, const float* part_logsumexp,
                          Matrix<float> out, float* logsumexp, int64_t rows, int64_t head_dim);
};

template <class T>
const TypedLoops<T>& typed(const Loops& loops) {
  if constexpr (std::is_same_v<T, float>) {
    return loops.f32;
  } else {
    return loops.bf16;
  }
}

// What loops_*.cpp define; all but the first on x86-64 alone.
extern const Loops baseline_table, avx2_table, avx512_table, avx512bf16_table;

// The tables that this processor can run, the fastest first: amx (avx512bf16 with tiles), avx512bf16, avx512,
// avx2, baseline. On Intel's cores whose products of bfloat16 are slow avx512 comes before avx512bf16.
std::vector<const Loops*> available_loops();

// By name; "" is the best. Throws UsageError for any other name.
const Loops& choose_loops(std::string_view name);

// The loops that the environment variable PPTRAIN_ISA names, or the best.
const Loops& loops();

}  // namespace pptrain::kernels::cpu
