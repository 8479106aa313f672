#include "parallel/comm/self_communicator.h"

#include <utility>

#include "parallel/comm/operands.h"

namespace pptrain::comm {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(Communicator& job) : job_(job) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Work> isend(const at::Tensor& /*tensor*/, int destination) override {
    refuse(destination, "isend");
  }
  std::unique_ptr<Work> irecv(at::Tensor /*tensor*/, int source) override { refuse(source, "irecv"); }
  std::unique_ptr<Communicator> subgroup(std::span<const int> members) override {
    place_in_group(members, 0, 1);
    return make_self(job_);
  }

  void all_reduce_sum(at::Tensor tensor) override { check_contiguous(tensor, "all_reduce_sum"); }
  void broadcast(at::Tensor tensor, int root) override {
    check_contiguous(tensor, "broadcast");
    check_root(root, 1);
  }
  void barrier() override {}
  void all_gather(at::Tensor out, const at::Tensor& tensor) override {
    check_contiguous(tensor, "all_gather");
    check_contiguous(out, "all_gather");
    check_rows(out, tensor, 1);
    iall_gather(std::move(out), tensor);
  }

  void abort(const std::string& message) override { job_.abort(message); }
  std::string failure() const override { return job_.failure(); }
  void set_timeout(std::chrono::milliseconds /*timeout*/) override {}

 protected:
  std::unique_ptr<Work> start_all_reduce_sum(at::Tensor /*tensor*/) override { not_alone(); }
  std::unique_ptr<Work> start_reduce_scatter_sum(at::Tensor /*out*/, at::Tensor /*tensor*/,
                                                 std::vector<int64_t> /*counts*/) override {
    not_alone();
  }
  std::unique_ptr<Work> start_all_gather(at::Tensor /*out*/, at::Tensor /*tensor*/,
                                         std::vector<int64_t> /*counts*/) override {
    not_alone();
  }
  std::unique_ptr<Work> start_all_to_all(at::Tensor /*out*/, std::vector<int64_t> /*from*/,
                                         at::Tensor /*tensor*/, std::vector<int64_t> /*to*/) override {
    not_alone();
  }

 private:
  [[noreturn]] static void refuse(int peer, const char* what) {
    throw Error(fmt::format("{}: a group of one rank has no rank {}", what, peer));
  }
  // Communicator does what there is to do in a group of one before it asks for a start.
  [[noreturn]] static void not_alone() { throw Error("a group of one rank has nobody to exchange with"); }

  Communicator& job_;
};

}  // namespace

std::unique_ptr<Communicator> make_self(Communicator& job) {
  return std::make_unique<SelfCommunicator>(job);
}

}  // namespace pptrain::comm
