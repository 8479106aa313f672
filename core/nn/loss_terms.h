#pragma once

namespace pptrain::nn {

// Terms of the training loss beside cross entropy.
struct LossTerms {
  // This fraction of each label is spread evenly over the vocabulary (PyTorch's
  // cross_entropy(label_smoothing)); from 0 to below 1.
  double label_smoothing = 0;
  // Times the square of each row's logsumexp (PaLM, arXiv 2204.02311, section 5): keeps logits near 0.
  double z = 0;

  bool operator==(const LossTerms&) const = default;
};

}  // namespace pptrain::nn
