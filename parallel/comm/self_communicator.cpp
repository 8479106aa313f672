// A group of one rank: no transport, no messages, nothing to set up.
#include <spdlog/fmt/fmt.h>

#include <memory>
#include <span>
#include <string>

#include "core/base/error.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/message_communicator.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::comm {
namespace {

class SelfCommunicator final : public MessageCommunicator {
 public:
  explicit SelfCommunicator(Communicator& job) : MessageCommunicator(default_timeout), job_(job) {}

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
  void abort(const std::string& message) override { job_.abort(message); }
  std::string failure() const override { return job_.failure(); }

 private:
  // Nothing is exchanged in a group of one.
  std::unique_ptr<Communicator> on_lane(Lane /*lane*/) const override {
    throw Error("a group of one rank has nobody to exchange with");
  }
  [[noreturn]] static void refuse(int peer, const char* what) {
    throw Error(fmt::format("{}: a group of one rank has no rank {}", what, peer));
  }

  Communicator& job_;
};

}  // namespace

std::unique_ptr<Communicator> make_self(Communicator& job) {
  return std::make_unique<SelfCommunicator>(job);
}

}  // namespace pptrain::comm
