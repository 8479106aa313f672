// Updates that step each element by itself: AdamW, Lion, and the biases that balance experts. Muon, which
// needs whole matrices: muon.h.
#pragma once

#include <memory>

#include "core/config/job_config.h"
#include "core/optim/update.h"

namespace pptrain::optim {

// AdamW (Loshchilov & Hutter, arXiv 1711.05101), with betas and eps of `options`. State files
// "adamw.exp_avg" and "adamw.exp_avg_sq". Throws Error unless there are two betas.
std::unique_ptr<Update> make_adamw(const config::OptimizerSection& options);

// Lion (Chen et al., arXiv 2302.06675), with betas of `options`: half of AdamW's state, in the file
// "lion.exp_avg". The authors give it 3 to 10 times less learning rate and as much more weight decay than
// AdamW, and betas 0.9 and 0.99 (0.95 and 0.98 where training is unstable). Throws Error unless there are
// two betas.
std::unique_ptr<Update> make_lion(const config::OptimizerSection& options);

// The biases that balance experts without a loss (Wang et al., arXiv 2408.15664): each moves by `rate`
// against the sign of its "gradient", which is its expert's load less the mean load, times the experts.
// Neither learning rate nor decay nor gradient scale act on it, and it has no state.
std::unique_ptr<Update> make_balance(double rate);

}  // namespace pptrain::optim
