#include "parallel/pipeline/tied_gradient.h"

#include <ATen/ops/empty_like.h>

namespace pptrain::pipeline {

void sum_tied_gradient(comm::Communicator& pipeline, int first_rank, int last_rank, at::Tensor embedding_grad,
                       at::Tensor head_grad) {
  if (first_rank == last_rank) {
    if (pipeline.rank() != first_rank) return;
    embedding_grad.add_(head_grad);
    head_grad.copy_(embedding_grad);
    return;
  }
  if (pipeline.rank() != first_rank && pipeline.rank() != last_rank) return;
  const bool first = pipeline.rank() == first_rank;
  const int other = first ? last_rank : first_rank;
  at::Tensor own = first ? embedding_grad : head_grad;
  at::Tensor received = at::empty_like(own);
  auto receive = pipeline.irecv(received, other);
  auto send = pipeline.isend(own, other);
  receive->wait([] { return "tied embedding gradient"; });
  send->wait([] { return "tied embedding gradient"; });
  own.add_(received);  // a + b and b + a are the same bits
}

}  // namespace pptrain::pipeline
