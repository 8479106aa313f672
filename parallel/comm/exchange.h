// Every rank of a group tells all others some numbers, and takes theirs later.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::comm {

// One exchange is under way at a time. It has a communicator of its own, so that its messages meet no others.
class Exchange {
 public:
  // Collective over `group`. counts: how many numbers each rank of it tells.
  Exchange(Communicator& group, std::vector<size_t> counts);
  ~Exchange();

  // Sends this rank's numbers to all, without waiting.
  void start(std::span<const double> values);

  // Waits until all ranks have started the exchange. [rank] its numbers, this rank's included. `what`
  // describes the wait for a rank's numbers.
  std::vector<std::vector<double>> wait(const std::string& what);

 private:
  std::vector<size_t> counts_;
  std::unique_ptr<Communicator> group_;
  std::vector<at::Tensor> values_;            // [rank]; float64
  std::vector<std::unique_ptr<Work>> works_;  // of other ranks' numbers, then of the sends
};

}  // namespace pptrain::comm
