// Matrices whose parts lie on several ranks, made whole on one of them and sent back.
#pragma once

#include <memory>
#include <vector>

#include "core/optim/matrix_exchange.h"
#include "parallel/comm/communicator.h"
#include "parallel/shard/matrix_rounds.h"

namespace pptrain::shard {

// Works in rounds (matrix_rounds.h). While a rank transforms the matrices of one round, operands of the next
// are on their way to it, and results of the one before on their way back. A rank holds at once, in elements:
// its own matrices of one round; its messages of operands of two rounds, and of results of two. A round is
// optim::round_elements over all ranks, or one matrix a rank where that is more.
class MatrixExchange final : public optim::MatrixExchange {
 public:
  // `ranks`: all that hold parts of the same matrices, whatever they hold. Collective; the communicator must
  // outlive this. Throws Error as plan_matrix_rounds does, on every rank.
  MatrixExchange(comm::Communicator& ranks, std::vector<optim::MatrixPart> parts,
                 int64_t elements = optim::round_elements);

  void run(const at::TensorOptions& options, const optim::MatrixOperation& operation) override;

  const std::vector<MatrixRound>& rounds() const { return rounds_; }

 private:
  // A transfer under way: the messages to and from parts and pieces.
  struct Flight {
    at::Tensor parts, pieces;
    std::unique_ptr<comm::Work> work;
  };
  Flight send_operands(const MatrixRound& round, const optim::MatrixOperation& operation);
  std::vector<at::Tensor> make_whole(const MatrixRound& round, Flight flight,
                                     const optim::MatrixOperation& operation);
  Flight send_results(const MatrixRound& round, const std::vector<at::Tensor>& results,
                      const optim::MatrixOperation& operation);
  void take_results(const MatrixRound& round, Flight flight, const optim::MatrixOperation& operation);
  Flight messages(const Transfer& transfer) const;
  at::Tensor empty(int64_t elements) const;

  comm::Communicator& ranks_;
  std::vector<optim::MatrixPart> parts_;
  std::vector<MatrixRound> rounds_;
  at::TensorOptions options_;  // of the run under way
};

}  // namespace pptrain::shard
