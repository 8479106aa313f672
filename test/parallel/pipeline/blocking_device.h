// A communicator as NCCL's is while kernels wait for the whole device, for tests without a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/communicator.h"

namespace pptrain::test {

// A send ends when its receive is posted (as between threads), a receive when its send is; drain() waits for
// all that this rank has posted. For point-to-point messages alone.
class BlockingDevice final : public comm::Communicator {
 public:
  explicit BlockingDevice(comm::Communicator& inner) : inner_(inner) {}

  void drain() {
    for (const auto& work : *posted_) work->wait([] { return "the whole device"; });
    posted_->clear();
  }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<comm::Work> isend(const at::Tensor& tensor, int to) override {
    return held(inner_.isend(tensor, to));
  }
  std::unique_ptr<comm::Work> irecv(at::Tensor tensor, int from) override {
    return held(inner_.irecv(std::move(tensor), from));
  }
  std::unique_ptr<Communicator> subgroup(std::span<const int> members) override {
    auto group = inner_.subgroup(members);
    auto result = std::make_unique<BlockingDevice>(*group);
    result->owned_ = std::move(group);
    result->posted_ = posted_;
    return result;
  }
  void all_reduce_sum(at::Tensor) override { throw Error("no sums"); }
  void broadcast(at::Tensor, int) override { throw Error("no broadcasts"); }
  void barrier() override { inner_.barrier(); }
  void all_gather(at::Tensor, const at::Tensor&) override { throw Error("no gathers"); }
  void abort(const std::string& message) override { inner_.abort(message); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }

 private:
  using SharedWork = std::shared_ptr<comm::Work>;

  class Handle final : public comm::Work {
   public:
    explicit Handle(SharedWork work) : work_(std::move(work)) {}
    bool done() override { return work_->done(); }
    void wait(const std::function<std::string()>& what) override { work_->wait(what); }
    bool wait_for(std::chrono::milliseconds time) override { return work_->wait_for(time); }

   private:
    SharedWork work_;
  };

  std::unique_ptr<comm::Work> held(SharedWork work) {
    posted_->push_back(work);
    return std::make_unique<Handle>(std::move(work));
  }

  std::unique_ptr<comm::Work> start_all_reduce_sum(at::Tensor) override { throw Error("no sums"); }
  std::unique_ptr<comm::Work> start_reduce_scatter_sum(at::Tensor, at::Tensor, comm::Counts,
                                                       std::span<const int>) override {
    throw Error("no sums");
  }
  std::unique_ptr<comm::Work> start_all_gather(at::Tensor, at::Tensor, comm::Counts) override {
    throw Error("no gathers");
  }
  std::unique_ptr<comm::Work> start_all_to_all(at::Tensor, std::vector<int64_t>, at::Tensor,
                                               std::vector<int64_t>) override {
    throw Error("no exchanges");
  }

  comm::Communicator& inner_;
  std::unique_ptr<comm::Communicator> owned_;  // for a subgroup
  std::shared_ptr<std::vector<SharedWork>> posted_ = std::make_shared<std::vector<SharedWork>>();
};

}  // namespace pptrain::test
