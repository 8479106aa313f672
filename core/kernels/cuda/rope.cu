#include "core/kernels/cuda/rope.cuh"

#include <ATen/core/Tensor.h>

#include "core/kernels/cuda/math.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr int64_t most_rope_threads = 256;
// That a lane has on their way: so many bytes that the reads of some 25 warps hide the memory's latency.
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

// What one launch turns: of a token, the heads of the first part, then those of the second.
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

// The block of one token: as few turns as it can, and no more threads than share them evenly.
unsigned threads_for_heads(int64_t heads, int at_once, int lanes) {
  const int64_t turns = ceil_div(ceil_div(heads, at_once) * lanes, most_rope_threads);
  return threads_for(ceil_div(heads, at_once * turns) * lanes, most_rope_threads);
}

struct Turn {
  const RopeTable& table;
  const Tensor& positions;
  float direction;
};

// Parts without heads do nothing. All have weights, or none.
void run(const char* name, const std::vector<HeadsPart>& parts, double eps, const Turn& turn) {
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
    bool vector =
        shape.half % N == 0 && are_aligned(input<float>(turn.table.cos), input<float>(turn.table.sin));
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const HeadsPart& part = parts[i];
      views.parts[i] = {read_view<T>(part.x), write_view<T>(part.y), input<float>(part.weight),
                        part.weight ? output<float>(part.rstd) : nullptr, static_cast<int>(part.x.size(1))};
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
                 views, static_cast<float>(eps), view_of(turn.table, turn.positions), shape, turn.direction);
        });
      });
    });
  });
}

}  // namespace

void norm_rope(const std::vector<HeadsPart>& parts, double eps, const RopeTable& rope,
               const Tensor& positions) {
  run("norm_rope", parts, eps, {rope, positions, 1.0F});
}

void rotate_back(const std::vector<HeadsGradient>& parts, const RopeTable& rope, const Tensor& positions) {
  std::vector<HeadsPart> turned;
  for (const HeadsGradient& part : parts) {
    turned.push_back({.x = part.dy, .y = part.dx});
  }
  run("norm_rope_backward", turned, 0, {rope, positions, -1.0F});
}

void add_rope_kernels() {
  kernels::norm_rope.implement(BackEnd::cuda, norm_rope);
}

}  // namespace pptrain::kernels::cuda
