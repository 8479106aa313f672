// A communicator as NCCL's is, for tests without a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/communicator.h"

namespace pptrain::test {

// Receives occupy the device, and the rank often waits for the whole device. With `blocks` a receive waits as
// soon as it begins.
class HeldDevice final : public comm::Communicator {
 public:
  HeldDevice(comm::Communicator& inner, bool blocks) : inner_(inner), blocks_(blocks) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool holds_device() const override { return true; }
  std::unique_ptr<comm::Work> isend(const at::Tensor& tensor, int to) override {
    return inner_.isend(tensor, to);
  }
  std::unique_ptr<comm::Work> irecv(at::Tensor tensor, int from) override {
    auto work = inner_.irecv(std::move(tensor), from);
    if (blocks_) work->wait();
    return work;
  }
  std::unique_ptr<Communicator> subgroup(std::span<const int> members) override {
    auto group = inner_.subgroup(members);
    auto held = std::make_unique<HeldDevice>(*group, blocks_);
    held->owned_ = std::move(group);
    return held;
  }
  void all_reduce_sum(at::Tensor) override { throw Error("no sums"); }
  void broadcast(at::Tensor, int) override { throw Error("no broadcasts"); }
  void barrier() override { inner_.barrier(); }
  void all_gather(at::Tensor, const at::Tensor&) override { throw Error("no gathers"); }
  void abort(const std::string& message) override { inner_.abort(message); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }

 private:
  std::unique_ptr<comm::Work> start_all_reduce_sum(at::Tensor) override { throw Error("no sums"); }
  std::unique_ptr<comm::Work> start_reduce_scatter_sum(at::Tensor, at::Tensor,
                                                       std::vector<int64_t>) override {
    throw Error("no sums");
  }
  std::unique_ptr<comm::Work> start_all_gather(at::Tensor out, at::Tensor tensor,
                                               std::vector<int64_t>) override {
    return inner_.iall_gather(std::move(out), tensor);
  }
  std::unique_ptr<comm::Work> start_all_to_all(at::Tensor, std::vector<int64_t>, at::Tensor,
                                               std::vector<int64_t>) override {
    throw Error("no exchanges");
  }

  comm::Communicator& inner_;
  std::unique_ptr<comm::Communicator> owned_;  // for a subgroup
  bool blocks_;
};

}  // namespace pptrain::test
