// The tensor-parallel group of ranks as the layers of a stage see it.
#pragma once

#include <cstdint>
#include <memory>

#include "core/nn/region.h"
#include "parallel/comm/communicator.h"

namespace pptrain::tensor {

// Gathers and sums are the communicator's, so that sums are taken in rank order and have the same bits on
// every transport. `tp` must outlive the region. chunks: nn::Region::chunks; it changes no bit of a result.
class TensorRegion final : public nn::Region {
 public:
  explicit TensorRegion(comm::Communicator& tp, int chunks = 1);

  std::unique_ptr<Work> gather(at::Tensor all, const at::Tensor& own,
                               std::span<const int64_t> rows) const override;
  std::unique_ptr<Work> sum(at::Tensor own, const at::Tensor& partial,
                            std::span<const int64_t> rows) const override;

 private:
  comm::Communicator& tp_;
};

// The region of a group; of a rank alone where the group is null or has one rank.
std::shared_ptr<const nn::Region> make_region(comm::Communicator* tp, int chunks = 1);

// The ranks of `tp` that hold copies of the same key-value heads (nn::Copies::kv), in rank order: neighbours,
// where tp is a multiple of kv_heads and larger; else each rank alone. Collective over `tp`, which must
// outlive the group. Throws Error where neither number divides the other.
std::unique_ptr<comm::Communicator> make_kv_group(comm::Communicator& tp, int64_t kv_heads);

}  // namespace pptrain::tensor
