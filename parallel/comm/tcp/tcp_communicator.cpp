#include "parallel/comm/tcp/tcp_communicator.h"

#include <algorithm>
#include <numeric>

#include "parallel/comm/message_communicator.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/patient_deadline.h"
#include "parallel/comm/split.h"
#include "parallel/comm/tcp/tcp_engine.h"
#include "parallel/comm/tcp/tcp_rendezvous.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::comm {
namespace {

using EnginePtr = std::shared_ptr<TcpEngine>;

class TcpWork final : public Work {
 public:
  TcpWork(EnginePtr engine, TcpEngine::OperationPtr operation, int rank, int peer, bool is_send,
          std::chrono::milliseconds timeout)
      : engine_(std::move(engine)),
        operation_(std::move(operation)),
        rank_(rank),
        peer_(peer),
        is_send_(is_send),
        timeout_(timeout) {}

  bool done() override {
    const auto outcome = engine_->poll(operation_);
    if (outcome == TcpEngine::Outcome::failed) engine_->throw_failure();
    return outcome == TcpEngine::Outcome::complete;
  }

  bool wait_for(std::chrono::milliseconds time) override {
    return engine_->wait(operation_, std::chrono::steady_clock::now() + time) != TcpEngine::Outcome::timeout;
  }

  void wait(const std::function<std::string()>& what) override {
    PatientDeadline deadline(timeout_);
    auto outcome = engine_->wait(operation_, deadline.next_look());
    while (outcome == TcpEngine::Outcome::timeout && !deadline.passed()) {
      outcome = engine_->wait(operation_, deadline.next_look());
    }
    if (outcome == TcpEngine::Outcome::failed) engine_->throw_failure();
    if (outcome == TcpEngine::Outcome::timeout) {
      throw WaitTimeout(timeout_message(rank_, timeout_, description(), what ? what() : ""));
    }
    if (operation_->error.empty()) return;
    const std::string message = fmt::format("rank {}, {}: {}{}{}", rank_, description(), operation_->error,
                                            what ? ": " : "", what ? what() : "");
    if (operation_->peer_ended) throw PeerFailure(message);
    throw Error(message);
  }

 private:
  std::string description() const {
    return fmt::format("{} rank {}", is_send_ ? "its message to be taken by" : "a message from", peer_);
  }

  EnginePtr engine_;
  TcpEngine::OperationPtr operation_;
  int rank_;
  int peer_;
  bool is_send_;
  std::chrono::milliseconds timeout_;
};

// Mixes bits so that the channels of different splits and lanes do not meet (the finaliser of SplitMix64,
// Steele et al. 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

class TcpCommunicator final : public MessageCommunicator {
 public:
  // members: world ranks of the group.
  TcpCommunicator(EnginePtr engine, uint64_t channel, std::vector<int> members, int rank,
                  std::chrono::milliseconds timeout)
      : MessageCommunicator(timeout),
        engine_(std::move(engine)),
        channel_(channel),
        members_(std::move(members)),
        rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }

  std::unique_ptr<Work> isend(const at::Tensor& tensor, int destination) override {
    check_peer(destination, rank_, size(), "isend");
    check_cpu(tensor, "TCP");
    const int peer = members_[destination];
    return work(engine_->send(channel_, tensor, peer), peer, /*is_send=*/true);
  }

  std::unique_ptr<Work> irecv(at::Tensor tensor, int source) override {
    check_peer(source, rank_, size(), "irecv");
    check_cpu(tensor, "TCP");
    const int peer = members_[source];
    return work(engine_->receive(channel_, std::move(tensor), peer), peer, /*is_send=*/false);
  }

  // Every rank computes the same channel from what it knows: the parent's, how many splits came before, the
  // colour.
  std::unique_ptr<Communicator> split(int color, int key) override {
    const std::vector<int> ranks = ranks_of_color(*this, color, key);
    std::vector<int> members;
    for (const int r : ranks) members.push_back(members_[r]);
    const int new_rank = static_cast<int>(std::ranges::find(ranks, rank_) - ranks.begin());
    const uint64_t channel =
        mix(mix(channel_ + ++splits_) + static_cast<uint64_t>(static_cast<uint32_t>(color)));
    return std::make_unique<TcpCommunicator>(engine_, channel, std::move(members), new_rank, timeout());
  }

  void abort(const std::string& message) override {
    engine_->fail(fmt::format("rank {} failed: {}", members_[rank_], message));
  }
  std::string failure() const override { return engine_->failure(); }

 private:
  // Splits count from 1 up, so a lane's number with the highest bit set is no split's.
  std::unique_ptr<Communicator> on_lane(Lane lane) const override {
    const uint64_t channel = mix(channel_ + ((uint64_t{1} << 63) | static_cast<uint64_t>(lane)));
    return std::make_unique<TcpCommunicator>(engine_, channel, members_, rank_, timeout());
  }

  std::unique_ptr<Work> work(TcpEngine::OperationPtr operation, int peer, bool is_send) const {
    return std::make_unique<TcpWork>(engine_, std::move(operation), members_[rank_], peer, is_send,
                                     timeout());
  }

  EnginePtr engine_;
  uint64_t channel_;
  std::vector<int> members_;
  int rank_;
  uint64_t splits_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_tcp_world(int rank, int size, const Rendezvous& rendezvous) {
  auto engine = std::make_shared<TcpEngine>(rank, meet(rank, size, rendezvous));
  std::vector<int> members(size);
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<TcpCommunicator>(std::move(engine), /*channel=*/0, std::move(members), rank,
                                           default_timeout);
}

}  // namespace pptrain::comm
