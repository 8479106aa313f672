// The seam around experts: how rows reach the ranks that hold their experts, and how results come back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace pptrain::nn {

// The experts [begin, end) of a layer.
struct ExpertRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// The base class is the identity: a rank holds all experts. Rows are in expert order (kernels/
// expert_kernels.h). dispatch() and combine() move rows to and fro along one plan, so that each is the
// gradient of the other. All calls are collective, in the same order on every rank.
class ExpertExchange {
 public:
  // Which rows go where: decided once, in the forward pass, and followed by every pass of these rows.
  struct Plan {
    virtual ~Plan() = default;
    // int32 [this rank's experts], of the rows that dispatch() gives. On the host, which must know how large
    // the products of experts are: so it waits for a GPU once a layer, in F.
    at::Tensor ends;
    int64_t rows = 0;  // how many these are
  };

  virtual ~ExpertExchange() = default;

  // Of `experts` experts, those that this rank holds.
  virtual ExpertRange own(int64_t experts) const { return {.begin = 0, .end = experts}; }
  // dispatch() gives its argument, and combine() does.
  virtual bool is_local() const { return true; }

  // For `rows` rows of this rank in expert order; ends: int32 [experts].
  virtual std::unique_ptr<const Plan> plan(const at::Tensor& ends, int64_t rows) const {
    auto plan = std::make_unique<Plan>();
    plan->ends = ends.is_cuda() ? ends.cpu() : ends;
    plan->rows = rows;
    return plan;
  }

  // This rank's rows [rows, ...], in expert order -> the rows of this rank's experts [plan.rows, ...] from
  // all ranks, ordered by expert, rank and place there; and back.
  virtual at::Tensor dispatch(const Plan& /*plan*/, at::Tensor rows) const { return rows; }
  virtual at::Tensor combine(const Plan& /*plan*/, at::Tensor rows) const { return rows; }

  // loads (int64 [experts]) become their sum over all ranks that see a part of the same global microbatch.
  virtual void sum_loads(at::Tensor& /*loads*/) const {}
};

}  // namespace pptrain::nn
