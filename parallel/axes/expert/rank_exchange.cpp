#include "parallel/axes/expert/rank_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <numeric>
#include <vector>

#include "core/data/tokens/segments.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/expert_kernels.h"
#include "parallel/comm/hand_over.h"

namespace pptrain::expert {
namespace {

using Counts = std::vector<int64_t>;
using at::Tensor;

struct RankPlan final : nn::ExpertExchange::Plan {
  Counts to, from;      // rows for and from each rank
  Tensor order, place;  // int32: arrivals lie by rank, then by expert; their expert order, and its inverse
};

Counts counts_of(const Tensor& ends, int64_t rows) {
  const int64_t experts = ends.size(0);
  Counts counts(static_cast<size_t>(experts));
  if (kernels::is_dry(ends)) {
    for (int64_t e = 0; e < experts; ++e)
      counts[static_cast<size_t>(e)] = rows * (e + 1) / experts - rows * e / experts;
    return counts;
  }
  const Tensor host = ends.cpu();
  const auto* const end = host.const_data_ptr<int32_t>();
  for (int64_t e = 0; e < experts; ++e) counts[static_cast<size_t>(e)] = end[e] - (e == 0 ? 0 : end[e - 1]);
  return counts;
}

// Rows of each rank and expert of this one, [rank * own + expert], from the rows that this rank has for each
// expert.
Counts exchange_counts(comm::Communicator& ep, const Counts& counts, const Counts& experts_of) {
  comm::Communicator& host = ep.host();
  const auto own = static_cast<size_t>(experts_of[static_cast<size_t>(host.rank())]);
  const auto options = at::TensorOptions().dtype(at::kLong);
  const Tensor mine = at::tensor(counts, options);
  const Tensor theirs = at::empty({static_cast<int64_t>(own * experts_of.size())}, options);
  const Counts from(experts_of.size(), static_cast<int64_t>(own));
  const auto work = host.iall_to_all(theirs, from, mine, experts_of);
  // On a GPU the other half of a pair enqueues its work before the host waits here. On a CPU this waits for a
  // few bytes only: the other half's turn is better used in the exchange of rows that follows.
  if (&host != &ep) comm::hand_over();
  work->wait([] { return "the numbers of experts' rows"; });
  const auto* const values = theirs.const_data_ptr<int64_t>();
  return {values, values + theirs.numel()};
}

// Fills `order`, the expert order of the arrivals, and its inverse `place`. Returns the end of each expert's
// rows.
std::vector<int32_t> order_arrivals(const Counts& arriving, size_t own, std::vector<int32_t>& order,
                                    std::vector<int32_t>& place) {
  std::vector<int32_t> begins(arriving.size() + 1);
  std::partial_sum(arriving.begin(), arriving.end(), begins.begin() + 1);
  order.reserve(static_cast<size_t>(begins.back()));
  place.resize(static_cast<size_t>(begins.back()));
  std::vector<int32_t> ends;
  for (size_t expert = 0; expert < own; ++expert) {
    for (size_t at = expert; at < arriving.size(); at += own) {
      for (int32_t row = begins[at]; row < begins[at + 1]; ++row) {
        place[static_cast<size_t>(row)] = static_cast<int32_t>(order.size());
        order.push_back(row);
      }
    }
    ends.push_back(static_cast<int32_t>(order.size()));
  }
  return ends;
}

Tensor reordered(const Tensor& rows, const Tensor& order) {
  Tensor result = at::empty(rows.sizes(), rows.options());
  kernels::gather_rows(rows, order, 1, result);
  return result;
}

// Rows [sum of `to`, width], by rank -> [sum of `from`, width].
Tensor all_to_all(comm::Communicator& ep, const Tensor& rows, const Counts& to, const Counts& from) {
  const int64_t width = rows.size(1);
  const auto elements = [&](Counts counts) {
    for (int64_t& count : counts) count *= width;
    return counts;
  };
  Tensor result = at::empty({std::accumulate(from.begin(), from.end(), int64_t{0}), width}, rows.options());
  comm::wait_in_pass(*ep.iall_to_all(result, elements(from), rows, elements(to)),
                     [] { return "experts' rows"; });
  return result;
}

const RankPlan& own_plan(const nn::ExpertExchange::Plan& plan) {
  return static_cast<const RankPlan&>(plan);
}

class RankExchange final : public nn::ExpertExchange {
 public:
  RankExchange(comm::Communicator* ep, comm::Communicator* stage);

  std::unique_ptr<const Plan> plan(const Tensor& ends, int64_t rows) const override;
  Tensor dispatch(const Plan& plan, Tensor rows) const override;
  Tensor combine(const Plan& plan, Tensor rows) const override;
  void sum_loads(Tensor& loads) const override;

 private:
  comm::Communicator* ep_;
  comm::Communicator* stage_;
};

RankExchange::RankExchange(comm::Communicator* ep, comm::Communicator* stage)
    : ExpertExchange(ep == nullptr ? nn::TensorShard{}
                                   : nn::TensorShard{.rank = ep->rank(), .size = ep->size()}),
      ep_(ep),
      stage_(stage) {}

std::unique_ptr<const nn::ExpertExchange::Plan> RankExchange::plan(const Tensor& ends, int64_t rows) const {
  if (is_local()) return ExpertExchange::plan(ends, rows);
  const int64_t experts = ends.size(0);
  const Counts counts = counts_of(ends, rows);
  auto plan = std::make_unique<RankPlan>();
  Counts experts_of;
  for (int rank = 0; rank < cut().size; ++rank) {
    experts_of.push_back(cut().count(experts, rank));
    const auto first = counts.begin() + cut().begin(experts, rank);
    plan->to.push_back(std::accumulate(first, first + experts_of.back(), int64_t{0}));
  }
  const auto own_experts = static_cast<size_t>(cut().count(experts));
  const auto options = ends.options();
  if (kernels::is_dry(ends)) {
    plan->from.assign(experts_of.size(), plan->to[static_cast<size_t>(cut().rank)]);
    plan->rows = std::accumulate(plan->from.begin(), plan->from.end(), int64_t{0});
    plan->ends = at::empty({static_cast<int64_t>(own_experts)}, options);
    plan->order = plan->place = at::empty({plan->rows}, options);
    return plan;
  }
  const Counts arriving = exchange_counts(*ep_, counts, experts_of);
  for (int rank = 0; rank < cut().size; ++rank) {
    const auto first = arriving.begin() + static_cast<std::ptrdiff_t>(own_experts) * rank;
    plan->from.push_back(
        std::accumulate(first, first + static_cast<std::ptrdiff_t>(own_experts), int64_t{0}));
  }
  std::vector<int32_t> order, place;
  const std::vector<int32_t> own_ends = order_arrivals(arriving, own_experts, order, place);
  const auto on_device = [&](const std::vector<int32_t>& values) {
    return tokens::to_device(at::tensor(values, at::kInt), options.device());
  };
  plan->rows = static_cast<int64_t>(order.size());
  plan->ends = at::tensor(own_ends, at::kInt);
  plan->order = on_device(order);
  plan->place = on_device(place);
  return plan;
}

Tensor RankExchange::dispatch(const Plan& plan, Tensor rows) const {
  if (is_local()) return rows;
  const RankPlan& p = own_plan(plan);
  return reordered(all_to_all(*ep_, rows, p.to, p.from), p.order);
}

Tensor RankExchange::combine(const Plan& plan, Tensor rows) const {
  if (is_local()) return rows;
  const RankPlan& p = own_plan(plan);
  return all_to_all(*ep_, reordered(rows, p.place), p.from, p.to);
}

void RankExchange::sum_loads(Tensor& loads) const {
  if (stage_ != nullptr && stage_->size() > 1) stage_->all_reduce_sum(loads);
}

}  // namespace

std::shared_ptr<const nn::ExpertExchange> make_rank_exchange(comm::Communicator* ep,
                                                             comm::Communicator* stage) {
  return std::make_shared<RankExchange>(ep, stage);
}

}  // namespace pptrain::expert
