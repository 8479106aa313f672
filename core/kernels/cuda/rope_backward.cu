#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>

#include "core/kernels/cuda/math.h"
#include "core/kernels/cuda/partial_sums.h"
#include "core/kernels/cuda/rope.cuh"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_rope_backward_threads = 128;
constexpr int blocks_at_once = 4;  // on a multiprocessor
// Of all strips: what an H200's 132 multiprocessors take at once, but for the last strip of each part.
constexpr int64_t most_backward_strips = 132 * blocks_at_once - most_parts;

template <typename T>
struct GradientView {
  Heads<const T> dy;
  Heads<const T> x;
  Heads<T> dx;
  const float* weight;
  const float* rstd;
  float* partials;  // [strips, head_dim]
  int64_t heads;
  int64_t items;  // tokens * heads
  int64_t strips;
};

// What one launch does: the strips of the first part, then those of the second, a block each.
template <typename T>
struct GradientViews {
  GradientView<T> parts[most_parts];
};

// A head of a token: number token * heads + head. Moves without dividing.
struct Item {
  int64_t token;
  int64_t head;

  __device__ Item(int64_t number, int64_t heads) : token(number / heads), head(number % heads) {}
  __device__ void move(const Item& step, int64_t heads) {
    token += step.token;
    head += step.head;
    if (head >= heads) {
      head -= heads;
      ++token;
    }
  }
};

// What a lane reads for one item, and where the result belongs: nowhere where there is no item.
template <typename T, int kPairs>
struct Operands {
  HeadPacks<T, kPairs> dy;
  HeadPacks<T, kPairs> x;
  float r = 0.0F;
  int position = -1;
  T* out = nullptr;

  template <bool kVector>
  __device__ void load(const GradientView<T>& part, const Item& item, bool exists, const int* positions,
                       const Lane& lane) {
    dy.template load<kVector>(exists ? part.dy.at(item.token, item.head) : nullptr, lane);
    x.template load<kVector>(exists ? part.x.at(item.token, item.head) : nullptr, lane);
    r = exists ? part.rstd[item.token * part.heads + item.head] : 0.0F;
    position = exists ? positions[item.token] : -1;
    out = exists ? part.dx.at(item.token, item.head) : nullptr;
  }
};

// A lane's columns of the weight, and the sums of their gradient.
template <int N, int kPairs>
struct Columns {
  float low[kPairs][N] = {};
  float high[kPairs][N] = {};
};

// One item: dx, and what it adds to the weight's gradient.
//   g = dy rotated back; dx = rstd * (g * w - x * rstd^2 * mean(g * w * x))
template <bool kVector, int N, typename T, int kPairs>
__device__ inline void step(const Operands<T, kPairs>& now, const RopeView& rope, const HeadShape& shape,
                            const Lane& lane, const Columns<N, kPairs>& weight, Columns<N, kPairs>& sums) {
  Columns<N, kPairs> g;
  float dot = 0.0F;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const int64_t i = lane.at(p);
    if (now.out == nullptr || i >= lane.half) {
      continue;
    }
    float cosine[N];
    float sine[N];
    load_angles<kVector>(rope, now.position, lane.half, i, cosine, sine);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const Pair turned =
          rotate({static_cast<float>(now.dy.low[p].v[j]), static_cast<float>(now.dy.high[p].v[j])}, cosine[j],
                 -sine[j]);
      g.low[p][j] = turned.first;
      g.high[p][j] = turned.second;
      dot = fmaf(turned.first * weight.low[p][j], static_cast<float>(now.x.low[p].v[j]),
                 fmaf(turned.second * weight.high[p][j], static_cast<float>(now.x.high[p].v[j]), dot));
    }
  }
  const float r = now.r;
  const float scale = group_sum(dot, shape.lanes) / static_cast<float>(2 * lane.half) * r * r;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const int64_t i = lane.at(p);
    if (now.out == nullptr || i >= lane.half) {
      continue;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const auto a = static_cast<float>(now.x.low[p].v[j]);
      const auto b = static_cast<float>(now.x.high[p].v[j]);
      sums.low[p][j] += g.low[p][j] * a * r;
      sums.high[p][j] += g.high[p][j] * b * r;
      g.low[p][j] = r * (g.low[p][j] * weight.low[p][j] - a * scale);
      g.high[p][j] = r * (g.high[p][j] * weight.high[p][j] - b * scale);
    }
    store<kVector>(now.out + i, lane.half - i, g.low[p]);
    store<kVector>(now.out + lane.half + i, lane.half - i, g.high[p]);
  }
}

// A strip of one part's items a block; the block's groups of lanes take them in turns. A lane owns the same
// columns in every head: their weights and the sums of their gradient stay in its registers, and so does the
// item, whose successor is on its way meanwhile. At the end the block adds the groups' sums in order.
template <typename T, bool kVector, int kPairs>
__global__ void __launch_bounds__(most_rope_backward_threads, kVector&& kPairs == 1 ? blocks_at_once : 1)
    norm_rope_backward_kernel(const __grid_constant__ GradientViews<T> views, RopeView rope, HeadShape shape,
                              int64_t items_per_block) {
  constexpr int N = pack_width<T>;
  const Lane lane(shape, N);
  const bool is_second = blockIdx.x >= views.parts[0].strips;
  const GradientView<T>& part = views.parts[is_second ? 1 : 0];
  const int64_t strip = blockIdx.x - (is_second ? views.parts[0].strips : 0);
  const int64_t half = lane.half;
  Columns<N, kPairs> weight;
  Columns<N, kPairs> sums;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    if (const int64_t i = lane.at(p); i < half) {
      load<kVector>(part.weight + i, half - i, weight.low[p]);
      load<kVector>(part.weight + half + i, half - i, weight.high[p]);
    }
  }
  const int64_t begin = strip * items_per_block;
  const int64_t end = begin + items_per_block < part.items ? begin + items_per_block : part.items;
  const int64_t heads = part.heads;
  const Item turn(lane.groups, heads);
  Item item(begin + lane.group, heads);
  Operands<T, kPairs> now;
  now.template load<kVector>(part, item, begin + lane.group < end, rope.positions, lane);
  // Every lane makes the same number of turns, since group_sum needs whole warps.
  for (int64_t first = begin; first < end; first += lane.groups) {
    item.move(turn, heads);
    Operands<T, kPairs> next;
    next.template load<kVector>(part, item, first + lane.groups + lane.group < end, rope.positions, lane);
    step<kVector, N>(now, rope, shape, lane, weight, sums);
    now = next;
  }
  float* const all_sums = dynamic_shared<float>();  // [groups, head_dim]
  float* const own_sums = all_sums + static_cast<int64_t>(lane.group) * 2 * half;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    if (const int64_t i = lane.at(p); i < half) {
      store_anywhere<kVector>(own_sums + i, half - i, sums.low[p]);
      store_anywhere<kVector>(own_sums + half + i, half - i, sums.high[p]);
    }
  }
  __syncthreads();
  for (int64_t column = threadIdx.x; column < 2 * half; column += blockDim.x) {
    float total = 0.0F;
    for (int group = 0; group < lane.groups; ++group) {
      total += all_sums[group * 2 * half + column];
    }
    part.partials[strip * 2 * half + column] = total;
  }
}

struct Split {
  unsigned threads;
  int64_t items_per_block;
};

// Whole turns of a block, at least four, and strips of one length for all parts: a function of the shapes.
Split split_items(int64_t items, int lanes) {
  const unsigned threads = threads_for(items * lanes, most_rope_backward_threads);
  const int64_t groups = threads / lanes;
  return {threads, groups * std::max<int64_t>(4, ceil_div(ceil_div(items, most_backward_strips), groups))};
}

template <typename T>
void run(const std::vector<HeadsGradient>& parts, const RopeTable& rope, const Tensor& positions) {
  const char* const name = "norm_rope_backward";
  constexpr int N = pack_width<T>;
  const HeadShape shape = head_shape(parts.front().dy, N, name);
  int64_t items = 0;
  for (const HeadsGradient& part : parts) {
    items += part.dy.size(0) * part.dy.size(1);
  }
  const Split split = split_items(items, shape.lanes);
  GradientViews<T> views{};
  std::vector<PartialSums> sums;
  int64_t strips = 0;
  bool vector = shape.half % N == 0 && are_aligned(input<float>(rope.cos), input<float>(rope.sin));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const HeadsGradient& part = parts[i];
    const int64_t heads = part.dy.size(1), own = part.dy.size(0) * heads;
    const int64_t count = ceil_div(own, split.items_per_block);
    sums.push_back({empty_partial_sums(part.dy, count, 2 * shape.half), *part.weight_grad});
    views.parts[i] = {read_view<T>(part.dy),
                      read_view<T>(part.x),
                      write_view<T>(part.dx),
                      input<float>(part.weight),
                      input<float>(part.rstd),
                      output<float>(sums.back().partials),
                      heads,
                      own,
                      count};
    strips += count;
    vector = vector && has_aligned_heads<T>(part.dy) && has_aligned_heads<T>(part.x) &&
             has_aligned_heads<T>(part.dx) && are_aligned(input<float>(part.weight));
  }
  const int64_t shared_bytes =
      split.threads / shape.lanes * 2 * shape.half * static_cast<int64_t>(sizeof(float));
  with_bool(vector, [&](auto is_vector) {
    with_bool(shape.half > warp_size * N, [&](auto is_wide) {
      constexpr int kPairs = decltype(is_wide)::value ? most_pairs<T> : 1;
      launch(name, norm_rope_backward_kernel<T, decltype(is_vector)::value, kPairs>, grid_size(strips, name),
             split.threads, shared_bytes, views, view_of(rope, positions), shape, split.items_per_block);
    });
  });
  add_partial_sums(sums);
}

}  // namespace

void norm_rope_backward(const std::vector<HeadsGradient>& parts, const RopeTable& rope,
                        const Tensor& positions) {
  const Tensor& dy = parts.front().dy;
  if (!parts.front().weight) {
    rotate_back(parts, rope, positions);
    return;
  }
  if (std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.dy.numel() == 0; })) {
    return;
  }
  const DeviceGuard guard(dy.device());
  with_type(dy.scalar_type(), "norm_rope_backward",
            [&](auto tag) { run<decltype(tag)>(parts, rope, positions); });
}

void add_rope_backward_kernels() {
  kernels::norm_rope_backward.implement(BackEnd::cuda, norm_rope_backward);
}

}  // namespace pptrain::kernels::cuda
