// One rank of a world of any size without the other ranks. Counts the messages and bytes that it sends.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/message_communicator.h"
#include "parallel/comm/operands.h"

namespace pptrain::comm::test {

struct Sent {
  int64_t messages = 0;
  int64_t bytes = 0;
  std::map<int, int64_t> bytes_to;  // by peer
  std::set<int> peers;              // ranks that it sends to or receives from, in the communicator's numbers
  std::vector<std::pair<int, int>> links;  // connected: sender and receiver, in the communicator's numbers
};

// It receives zeros, so it is for code whose messages do not depend on what it receives.
class CountingCommunicator final : public MessageCommunicator {
 public:
  CountingCommunicator(int rank, int size, Sent& sent)
      : MessageCommunicator(std::chrono::seconds(1)), rank_(rank), size_(size), sent_(sent) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Work> isend(const at::Tensor& tensor, int destination) override {
    check_peer(destination, rank_, size_, "isend");
    ++sent_.messages;
    sent_.bytes += static_cast<int64_t>(tensor.nbytes());
    sent_.bytes_to[destination] += static_cast<int64_t>(tensor.nbytes());
    sent_.peers.insert(destination);
    return join();
  }
  std::unique_ptr<Work> irecv(at::Tensor tensor, int source) override {
    check_peer(source, rank_, size_, "irecv");
    tensor.zero_();
    sent_.peers.insert(source);
    return join();
  }
  std::unique_ptr<Communicator> subgroup(std::span<const int> members) override {
    return std::make_unique<CountingCommunicator>(place_in_group(members, rank_, size_),
                                                  static_cast<int>(members.size()), sent_);
  }
  void connect(std::span<const std::pair<int, int>> pairs, int /*blocks*/) override {
    sent_.links.insert(sent_.links.end(), pairs.begin(), pairs.end());
  }
  void abort(const std::string& message) override { throw Error(message); }

 private:
  std::unique_ptr<Communicator> on_lane(Lane /*lane*/) const override {
    return std::make_unique<CountingCommunicator>(rank_, size_, sent_);
  }

  int rank_, size_;
  Sent& sent_;
};

}  // namespace pptrain::comm::test
