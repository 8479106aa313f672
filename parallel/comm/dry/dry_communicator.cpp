#include "parallel/comm/dry/dry_communicator.h"

#include <utility>

#include "core/kernels/dry_run.h"
#include "parallel/comm/operands.h"

namespace pptrain::comm {
namespace {

class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(kernels::Wire wire, int rank, int size) : wire_(wire), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Work> isend(const at::Tensor& tensor, int destination) override {
    check_root(destination, size_);
    return sent(tensor, tensor.numel(), 1);
  }
  std::unique_ptr<Work> irecv(at::Tensor tensor, int source) override {
    check_root(source, size_);
    return sent(tensor, 0, 0);
  }
  std::unique_ptr<Communicator> subgroup(std::span<const int> /*members*/) override {
    throw Error("a dry group of ranks has no other groups: its other ranks say nothing");
  }

  // Like a ring: twice the other ranks' parts.
  void all_reduce_sum(at::Tensor tensor) override {
    check_contiguous(tensor, "all_reduce_sum");
    if (size_ > 1) start_all_reduce_sum(std::move(tensor));
  }
  void broadcast(at::Tensor tensor, int root) override {
    check_contiguous(tensor, "broadcast");
    check_root(root, size_);
    sent(tensor, tensor.numel(), 1);
  }
  void barrier() override {}
  void all_gather(at::Tensor out, const at::Tensor& tensor) override {
    check_rows(out, tensor, size_);
    if (size_ > 1) sent(tensor, tensor.numel() * (size_ - 1), size_ - 1);
  }

  void abort(const std::string& message) override { throw Error(message); }
  void set_timeout(std::chrono::milliseconds /*timeout*/) override {}

 protected:
  std::unique_ptr<Work> start_all_reduce_sum(at::Tensor tensor) override {
    return sent(tensor, 2 * (tensor.numel() - tensor.numel() / size_), 2 * (size_ - 1));
  }
  std::unique_ptr<Work> start_reduce_scatter_sum(at::Tensor /*out*/, at::Tensor tensor, Counts counts,
                                                 std::span<const int> /*order*/) override {
    return sent(tensor, tensor.numel() - counts[static_cast<size_t>(rank_)], size_ - 1);
  }
  std::unique_ptr<Work> start_all_gather(at::Tensor /*out*/, at::Tensor tensor, Counts /*counts*/) override {
    return sent(tensor, tensor.numel() * (size_ - 1), size_ - 1);
  }
  std::unique_ptr<Work> start_all_to_all(at::Tensor /*out*/, std::vector<int64_t> /*from*/, at::Tensor tensor,
                                         std::vector<int64_t> to) override {
    return sent(tensor, tensor.numel() - to[static_cast<size_t>(rank_)], size_ - 1);
  }

 private:
  std::unique_ptr<Work> sent(const at::Tensor& tensor, int64_t elements, int64_t messages) const {
    if (!kernels::is_dry(tensor))
      throw Error("a dry group of ranks exchanges tensors of the meta device alone");
    kernels::Cost cost;
    cost.traffic[static_cast<size_t>(wire_)] = {
        .bytes = static_cast<double>(elements) * static_cast<double>(tensor.element_size()),
        .messages = messages};
    kernels::record(cost);
    return join();
  }

  kernels::Wire wire_;
  int rank_, size_;
};

}  // namespace

std::unique_ptr<Communicator> make_dry(kernels::Wire wire, int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size)
    throw Error(fmt::format("rank {} of a dry group of {}", rank, size));
  return std::make_unique<DryCommunicator>(wire, rank, size);
}

}  // namespace pptrain::comm
