#include "parallel/comm/tcp/tcp_communicator.h"

#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "parallel/comm/message_communicator.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/split.h"
#include "parallel/comm/tcp/tcp_engine.h"
#include "parallel/comm/tcp/tcp_meeting.h"
#include "parallel/comm/timed_wait.h"
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

  bool done() override { return engine_->wait(operation_); }

  bool wait_for(std::chrono::milliseconds time) override {
    const TimedWait timed;
    return engine_->wait(operation_, std::chrono::steady_clock::now() + time);
  }

  void wait(const std::function<std::string()>& what) override {
    const TimedWait timed;
    PatientDeadline deadline(timeout_);
    while (!engine_->wait(operation_, deadline.next_look())) {
      if (!deadline.passed()) continue;
      throw WaitTimeout(
          timeout_message(rank_, timeout_, describe_message(is_send_, peer_), what ? what() : ""));
    }
    if (operation_->error.empty()) return;
    const std::string message = fmt::format("rank {}, {}: {}{}{}", rank_, describe_message(is_send_, peer_),
                                            operation_->error, what ? ": " : "", what ? what() : "");
    if (operation_->peer_ended) throw PeerFailure(message);
    throw Error(message);
  }

 private:
  EnginePtr engine_;
  TcpEngine::OperationPtr operation_;
  int rank_;
  int peer_;
  bool is_send_;
  std::chrono::milliseconds timeout_;
};

class TcpCommunicator final : public MessageCommunicator {
 public:
  // The world ranks of the group; its lanes share the list.
  using Members = std::shared_ptr<const std::vector<int>>;

  TcpCommunicator(EnginePtr engine, uint64_t channel, Members members, int rank,
                  std::chrono::milliseconds timeout)
      : MessageCommunicator(timeout),
        engine_(std::move(engine)),
        channel_(channel),
        members_(std::move(members)),
        rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_->size()); }

  std::unique_ptr<Work> isend(const at::Tensor& tensor, int destination) override {
    check_peer(destination, rank_, size(), "isend");
    check_cpu(tensor, "TCP");
    const int peer = (*members_)[destination];
    return work(engine_->send(channel_, tensor, peer), peer, /*is_send=*/true);
  }

  std::unique_ptr<Work> irecv(at::Tensor tensor, int source) override {
    check_peer(source, rank_, size(), "irecv");
    check_cpu(tensor, "TCP");
    const int peer = (*members_)[source];
    return work(engine_->receive(channel_, std::move(tensor), peer), peer, /*is_send=*/false);
  }

  // Every rank computes the same channel from what it knows.
  std::unique_ptr<Communicator> subgroup(std::span<const int> members) override {
    const int place = place_in_group(members, rank_, size());
    std::vector<int> ranks;
    for (const int member : members) ranks.push_back((*members_)[member]);
    return std::make_unique<TcpCommunicator>(engine_, split_mix(channel_ ^ next_group(members, groups_)),
                                             std::make_shared<const std::vector<int>>(std::move(ranks)),
                                             place, timeout());
  }

  void connect(std::span<const std::pair<int, int>> pairs, int /*blocks*/) override {
    const at::Tensor nothing = at::empty({0}, at::kByte);
    std::vector<std::unique_ptr<Work>> works;
    for (const auto& [from, to] : pairs) {
      if (from == rank_) works.push_back(isend(nothing, to));
      if (to == rank_) works.push_back(irecv(nothing, from));
    }
    for (const auto& work : works) work->wait([] { return "a first message along the pipeline"; });
  }

  void abort(const std::string& message) override {
    engine_->fail(fmt::format("rank {} failed: {}", world_rank(), message));
  }
  std::string failure() const override { return engine_->failure(); }

 private:
  int world_rank() const { return (*members_)[rank_]; }

  std::unique_ptr<Communicator> on_lane(Lane lane) const override {
    const uint64_t channel = split_mix(channel_ + ((uint64_t{1} << 63) | static_cast<uint64_t>(lane)));
    return std::make_unique<TcpCommunicator>(engine_, channel, members_, rank_, timeout());
  }

  std::unique_ptr<Work> work(TcpEngine::OperationPtr operation, int peer, bool is_send) const {
    return std::make_unique<TcpWork>(engine_, std::move(operation), world_rank(), peer, is_send, timeout());
  }

  EnginePtr engine_;
  uint64_t channel_;
  Members members_;
  int rank_;
  GroupCounts groups_;
};

}  // namespace

std::unique_ptr<Communicator> make_tcp_world(int rank, int size, const Rendezvous& rendezvous,
                                             std::shared_ptr<TcpNeighbours> neighbours) {
  EnginePtr engine;
  try {
    engine = std::make_shared<TcpEngine>(meet(rank, size, rendezvous));
    if (neighbours) engine->join(neighbours);
  } catch (...) {
    if (neighbours) neighbours->cannot_join();
    throw;
  }
  return std::make_unique<TcpCommunicator>(std::move(engine), /*channel=*/0,
                                           std::make_shared<const std::vector<int>>(all_ranks(size)), rank,
                                           default_timeout);
}

}  // namespace pptrain::comm
