// Per-head RMSNorm and rotary embedding, and their gradients.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/math.h"
#include "core/kernels/cuda/partial_sums.h"
#include "core/kernels/kernels.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int most_parts = 2;       // of one launch: q and k
constexpr int64_t most_half = 512;  // of head_dim, that the lanes of a warp hold in registers

// A view [tokens, heads, head_dim] whose last stride is 1.
template <typename T>
struct Heads {
  T* data;
  int64_t token_stride;
  int64_t head_stride;

  __device__ T* at(int64_t token, int64_t head) const {
    return data + token * token_stride + head * head_stride;
  }
};

// A head is worked on by `lanes` neighbouring lanes of a warp, so several heads share a warp. Lane l takes
// packs l, l + lanes, ... of the first half, each as a pair with the pack head_dim / 2 further.
struct HeadShape {
  int64_t half;  // head_dim / 2
  int lanes;     // a power of two, at most 32
};

// The pairs that a lane holds of a wide head; of other heads it holds one.
template <typename T>
constexpr int most_pairs = static_cast<int>(most_half / (warp_size * pack_width<T>));

// What this thread takes of its group's heads.
struct Lane {
  int64_t half;
  int64_t first;   // element where its first pair begins
  int64_t stride;  // to the next pair
  int in_group;
  int group;
  int groups;  // of the block

  __device__ Lane(const HeadShape& shape, int width)
      : half(shape.half),
        stride(static_cast<int64_t>(shape.lanes) * width),
        in_group(static_cast<int>(threadIdx.x) % shape.lanes),
        group(static_cast<int>(threadIdx.x) / shape.lanes),
        groups(static_cast<int>(blockDim.x) / shape.lanes) {
    first = static_cast<int64_t>(in_group) * width;
  }
  __device__ int64_t at(int pair) const { return first + pair * stride; }
};

// A lane's pairs of one head, unconverted.
template <typename T, int kPairs>
struct HeadPacks {
  static constexpr int N = pack_width<T>;
  Pack<T, N> low[kPairs];
  Pack<T, N> high[kPairs];

  // Zeros if there is no head, or nothing left of it.
  template <bool kVector>
  __device__ void load(const T* head, const Lane& lane) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int64_t i = lane.at(p);
      const bool exists = head != nullptr && i < lane.half;
      low[p] = exists ? load_pack<kVector, N>(head + i, lane.half - i) : zero_pack<N, T>();
      high[p] = exists ? load_pack<kVector, N>(head + lane.half + i, lane.half - i) : zero_pack<N, T>();
    }
  }
};

struct RopeView {
  const float* cosine;  // [max_position, half]
  const float* sine;
  const int* positions;  // [tokens]
  int64_t max_position;
};

// Reads the table's angles for elements [i, i + N) of a half. A position outside the table gives NaN, never a
// read outside it.
template <bool kVector, int N>
__device__ inline void load_angles(const RopeView& rope, int64_t position, int64_t half, int64_t i,
                                   float (&cosine)[N], float (&sine)[N]) {
  if (position >= 0 && position < rope.max_position) {
    load<kVector>(rope.cosine + position * half + i, half - i, cosine);
    load<kVector>(rope.sine + position * half + i, half - i, sine);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      cosine[j] = sine[j] = NAN;
    }
  }
}

template <typename T>
Heads<const T> read_view(const Tensor& t) {
  return {input<T>(t), t.stride(0), t.stride(1)};
}

template <typename T>
Heads<T> write_view(const Tensor& t) {
  return {output<T>(t), t.stride(0), t.stride(1)};
}

RopeView view_of(const RopeTable& rope, const Tensor& positions) {
  return {input<float>(rope.cos), input<float>(rope.sin), input<int>(positions), rope.cos.size(0)};
}

// Errors: Error if a head is too wide for registers.
HeadShape head_shape(const Tensor& x, int width, const char* kernel) {
  const int64_t half = x.size(2) / 2;
  require(half <= most_half, kernel, "head_dim up to 1024");
  const auto packs = static_cast<uint64_t>(ceil_div(half, width));
  return {half, static_cast<int>(std::min<uint64_t>(std::bit_ceil(packs), warp_size))};
}

// Whether every head of a view begins on 16 bytes.
template <typename T>
bool has_aligned_heads(const Tensor& t) {
  constexpr int64_t width = pack_width<T>;
  return t.stride(0) % width == 0 && t.stride(1) % width == 0 && are_aligned(input<T>(t));
}

// --- norm_rope ---

constexpr int64_t most_rope_threads = 256;
// Heads that a lane has on their way: enough bytes for the reads of some 25 warps to hide the memory's
// latency.
template <int kPairs>
constexpr int heads_at_once = kPairs == 1 ? 2 : 1;

template <typename T>
struct PartView {
  Heads<const T> x;
  Heads<T> y;
  const float* weight;
  float* rstd;
  int heads;
};

// What one launch rotates: for a token, the heads of the first part, then the heads of the second.
template <typename T>
struct PartViews {
  PartView<T> parts[most_parts];

  __device__ int heads() const { return parts[0].heads + parts[1].heads; }
  __device__ bool is_second(int place) const { return place >= parts[0].heads && place < heads(); }
  __device__ const PartView<T>& part(int place) const { return parts[is_second(place) ? 1 : 0]; }
  __device__ int head(int place) const { return is_second(place) ? place - parts[0].heads : place; }
};

// A lane's angles of one token.
template <int N, int kPairs>
struct Angles {
  float cosine[kPairs][N];
  float sine[kPairs][N];
};

template <typename T, int kPairs>
__device__ inline float sum_of_squares(const HeadPacks<T, kPairs>& held) {
  float squares = 0.0F;
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
#pragma unroll
    for (int j = 0; j < pack_width<T>; ++j) {
      const auto a = static_cast<float>(held.low[p].v[j]);
      const auto b = static_cast<float>(held.high[p].v[j]);
      squares = fmaf(a, a, fmaf(b, b, squares));
    }
  }
  return squares;
}

// out = held, times r and the weight with kNorm, rotated by the angles times `direction`.
template <bool kNorm, bool kVector, typename T, int N, int kPairs>
__device__ inline void turn_and_store(const HeadPacks<T, kPairs>& held, const Angles<N, kPairs>& angles,
                                      const Lane& lane, const float* weight, float r, float direction,
                                      T* out) {
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const int64_t i = lane.at(p);
    if (i >= lane.half) {
      continue;
    }
    float w[N];
    float v[N];
    if constexpr (kNorm) {
      load<kVector>(weight + i, lane.half - i, w);
      load<kVector>(weight + lane.half + i, lane.half - i, v);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      Pair x{static_cast<float>(held.low[p].v[j]), static_cast<float>(held.high[p].v[j])};
      if constexpr (kNorm) {
        x.first *= r * w[j];
        x.second *= r * v[j];
      }
      x = rotate(x, angles.cosine[p][j], direction * angles.sine[p][j]);
      w[j] = x.first;
      v[j] = x.second;
    }
    store<kVector>(out + i, lane.half - i, w);
    store<kVector>(out + lane.half + i, lane.half - i, v);
  }
}

// One block a token, so that q and k share its angles. Each lane asks for all that it needs of its heads
// before it computes. `direction` is 1, or -1 to rotate back.
template <typename T, bool kNorm, bool kVector, int kPairs>
__global__ void __launch_bounds__(most_rope_threads)
    norm_rope_kernel(const __grid_constant__ PartViews<T> views, float eps, RopeView rope, HeadShape shape,
                     float direction) {
  constexpr int N = pack_width<T>;
  constexpr int kHeads = heads_at_once<kPairs>;
  const Lane lane(shape, N);
  const int64_t token = blockIdx.x;
  const int64_t position = rope.positions[token];
  const int heads = views.heads();
  // Every lane makes the same number of turns, since group_sum needs whole warps.
  for (int turn = 0; turn < heads; turn += kHeads * lane.groups) {
    const auto place = [&](int h) { return turn + h * lane.groups + lane.group; };
    HeadPacks<T, kPairs> held[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const int at = place(h);
      held[h].template load<kVector>(at < heads ? views.part(at).x.at(token, views.head(at)) : nullptr, lane);
    }
    Angles<N, kPairs> angles;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      if (const int64_t i = lane.at(p); i < lane.half) {
        load_angles<kVector>(rope, position, lane.half, i, angles.cosine[p], angles.sine[p]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float r = 1.0F;
      if constexpr (kNorm) {
        const float squares = group_sum(sum_of_squares(held[h]), shape.lanes);
        r = 1.0F / sqrtf(squares / static_cast<float>(2 * lane.half) + eps);
      }
      if (const int at = place(h); at < heads) {
        const PartView<T>& part = views.part(at);
        if (kNorm && lane.in_group == 0) {
          part.rstd[token * part.heads + views.head(at)] = r;
        }
        turn_and_store<kNorm, kVector>(held[h], angles, lane, part.weight, r, direction,
                                       part.y.at(token, views.head(at)));
      }
    }
  }
}

// The block of one token: as few turns as it can, and no more threads than divide them evenly.
unsigned threads_for_heads(int64_t heads, int at_once, int lanes) {
  const int64_t turns = ceil_div(ceil_div(heads, at_once) * lanes, most_rope_threads);
  return threads_for(ceil_div(heads, at_once * turns) * lanes, most_rope_threads);
}

// Parts without heads do nothing. All have weights, or none. `direction` as the kernel takes it.
void turn_heads(const char* name, const std::vector<HeadsPart>& parts, double eps, const RopeTable& rope,
                const Tensor& positions, float direction) {
  const Tensor& x = parts.front().x;
  if (x.size(0) == 0 || x.size(2) == 0) {
    return;
  }
  const DeviceGuard guard(x.device());
  with_type(x.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    constexpr int N = pack_width<T>;
    const HeadShape shape = head_shape(x, N, name);
    PartViews<T> views{};
    int64_t heads = 0;
    bool vector = shape.half % N == 0 && are_aligned(input<float>(rope.cos), input<float>(rope.sin));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const HeadsPart& part = parts[i];
      views.parts[i] = {read_view<T>(part.x), write_view<T>(part.y), input<float>(part.weight),
                        output<float>(part.rstd), static_cast<int>(part.x.size(1))};
      heads += part.x.size(1);
      vector = vector && has_aligned_heads<T>(part.x) && has_aligned_heads<T>(part.y) &&
               are_aligned(input<float>(part.weight));
    }
    if (heads == 0) {
      return;
    }
    with_bool(vector, [&](auto is_vector) {
      with_bool(parts.front().weight.has_value(), [&](auto is_normed) {
        with_bool(shape.half > warp_size * N, [&](auto is_wide) {
          constexpr int kPairs = decltype(is_wide)::value ? most_pairs<T> : 1;
          launch(name, norm_rope_kernel<T, decltype(is_normed)::value, decltype(is_vector)::value, kPairs>,
                 grid_size(x.size(0), name), threads_for_heads(heads, heads_at_once<kPairs>, shape.lanes), 0,
                 views, static_cast<float>(eps), view_of(rope, positions), shape, direction);
        });
      });
    });
  });
}

// --- norm_rope_backward ---

constexpr int64_t most_rope_backward_threads = 128;
constexpr int blocks_at_once = 4;  // on a multiprocessor
// Most strips altogether: what an H200's 132 multiprocessors take at once, without the last strip of each
// part.
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

// What a lane reads for one item, and the place of the result: none if there is no item.
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
// columns in every head. Its registers hold their weights, the sums of their gradient and the item; the next
// item is on its way meanwhile. At the end the block adds the groups' sums in order.
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
void turn_back(const std::vector<HeadsGradient>& parts, const RopeTable& rope, const Tensor& positions) {
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

void norm_rope(const std::vector<HeadsPart>& parts, double eps, const RopeTable& rope,
               const Tensor& positions) {
  turn_heads("norm_rope", parts, eps, rope, positions, 1.0F);
}

// Without weights heads are only rotated back.
void norm_rope_backward(const std::vector<HeadsGradient>& parts, const RopeTable& rope,
                        const Tensor& positions) {
  const char* const name = "norm_rope_backward";
  if (!parts.front().weight) {
    std::vector<HeadsPart> turned;
    for (const HeadsGradient& part : parts) {
      turned.push_back({.x = part.dy, .y = part.dx});
    }
    turn_heads(name, turned, 0, rope, positions, -1.0F);
    return;
  }
  if (std::all_of(parts.begin(), parts.end(), [](const auto& part) { return part.dy.numel() == 0; })) {
    return;
  }
  const Tensor& dy = parts.front().dy;
  const DeviceGuard guard(dy.device());
  with_type(dy.scalar_type(), name, [&](auto tag) { turn_back<decltype(tag)>(parts, rope, positions); });
}

void add_rope_kernels() {
  kernels::norm_rope.implement(BackEnd::cuda, norm_rope);
  kernels::norm_rope_backward.implement(BackEnd::cuda, norm_rope_backward);
}

}  // namespace pptrain::kernels::cuda
