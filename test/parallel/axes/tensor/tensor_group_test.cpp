#include "parallel/axes/tensor/tensor_group.h"

#include <c10/core/InferenceMode.h>

#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/dry_run.h"
#include "parallel/comm/dry/dry_communicator.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/sum_in_pairs.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

TEST_CASE("chunks of rows: each row of each rank's share once, as many from every rank as can be") {
  for (const int size : {1, 2, 3, 5}) {
    for (const int64_t rows : {5, 6, 17, 64}) {
      for (const int64_t step : {1, 2, 7, 100}) {
        INFO(size << " ranks, " << rows << " rows, step " << step);
        std::multiset<int64_t> seen;
        for (int rank = 0; rank < size; ++rank) {
          const nn::TensorShard cut{.rank = rank, .size = size};
          const nn::RowChunks chunks(cut, rows, step);
          int64_t own = 0;
          for (int64_t c = 0; c < chunks.count(); ++c) {
            CHECK(chunks.own_first(c) == own);
            own += chunks.own_rows(c);
            int64_t in_chunk = 0;
            for (const auto& piece : chunks.pieces(c)) {
              CHECK(piece.local == in_chunk);
              in_chunk += piece.length;
              for (int64_t i = 0; rank == 0 && i < piece.length; ++i) seen.insert(piece.global + i);
            }
            CHECK(in_chunk == chunks.total(c));
            CHECK(chunks.rows(c)[static_cast<size_t>(rank)] == chunks.own_rows(c));
          }
          CHECK(own == cut.count(rows));
        }
        CHECK(static_cast<int64_t>(seen.size()) == rows);
        CHECK(std::set<int64_t>(seen.begin(), seen.end()).size() == seen.size());
      }
    }
  }
}

TEST_CASE("entering gathers the shares, leaving sums and scatters") {
  const int size = GENERATE(1, 2, 3, 4);
  const int64_t rows = 11;
  at::manual_seed(test::seed(1));
  const Tensor whole = at::randn({rows, 3});
  std::vector<Tensor> partials, entered(static_cast<size_t>(size)), left(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) partials.push_back(at::randn({rows, 3}));
  comm::run_thread_ranks(size, [&](comm::Communicator& tp) {
    const c10::InferenceMode inference;
    const auto group = tensor::make_tensor_group(&tp);
    const auto r = static_cast<size_t>(tp.rank());
    const nn::TensorShard& cut = group->cut();
    entered[r] =
        group->enter(whole.narrow(0, cut.begin(rows, cut.rank), cut.count(rows)).clone(), rows).clone();
    left[r] = group->leave(partials[r]).clone();
  });
  const Tensor sum = test::sum_in_pairs([&](int r) { return partials[static_cast<size_t>(r)]; }, size);
  CHECK(same_bits(test::cat(left), sum));
  for (const Tensor& all : entered) CHECK(same_bits(all, whole));
}

TEST_CASE("ranks with copies of a key-value head are neighbours") {
  const auto [size, kv_heads, expected] =
      GENERATE(std::tuple{4, 2, 2}, std::tuple{4, 1, 4}, std::tuple{4, 4, 1}, std::tuple{2, 6, 1});
  comm::run_thread_ranks(size,
                         [&, size = size, kv_heads = kv_heads, expected = expected](comm::Communicator& tp) {
                           const auto group = tensor::make_kv_group(tp, kv_heads);
                           if (group->size() != expected || group->rank() != tp.rank() % expected)
                             throw Error("another group");
                           Tensor sum = at::full({1}, static_cast<double>(tp.rank()));
                           group->all_reduce_sum(sum);
                           double ranks = 0;
                           for (int r = 0; r < size; ++r)
                             ranks += r / expected == tp.rank() / expected ? r : 0;
                           if (sum.item<double>() != ranks) throw Error("another sum");
                         });
  comm::run_thread_ranks(3, [&](comm::Communicator& tp) {
    try {
      tensor::make_kv_group(tp, 2);
    } catch (const Error&) {
      return;
    }
    throw Error("2 key-value heads on 3 ranks were taken");
  });
}

TEST_CASE("a dry group records what a rank would send") {
  const c10::InferenceMode inference;
  const auto tp = comm::make_dry(kernels::Wire::tp, 1, 4);
  const auto group = tensor::make_tensor_group(tp.get());
  const Tensor share = at::empty({3, 8}, at::TensorOptions().device(at::kMeta).dtype(at::kFloat));
  kernels::DryRun run;
  const Tensor all = group->enter(share, 12);
  CHECK(all.sizes() == at::IntArrayRef({12, 8}));
  CHECK(run.cost().on(kernels::Wire::tp).bytes == 3 * 3 * 8 * 4);
  CHECK(group->leave(all).sizes() == at::IntArrayRef({3, 8}));
  CHECK(run.cost().on(kernels::Wire::tp).bytes == 2 * 3 * 3 * 8 * 4);
}
