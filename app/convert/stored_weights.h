// What a conversion reads of a checkpoint: its weights, or their average.
#pragma once

#include <ATen/core/Tensor.h>
#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/optim/optimizer.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

class StoredWeights {
 public:
  // Throws Unusable if the checkpoint cannot be used, UsageError if an average is asked for and not there.
  StoredWeights(const std::filesystem::path& step_folder, bool average)
      : reader_(step_folder), file_(average ? optim::average_file : checkpoint::model_file) {
    if (average && names().empty())
      throw UsageError(
          fmt::format("--ema: {} holds no average of weights: it was saved without "
                      "optimizer.ema_decay",
                      step_folder.string()));
  }

  int64_t step() const { return reader_.state().step; }
  std::vector<std::string> names() const { return reader_.names(file_); }
  bool contains(const std::string& parameter) const { return reader_.contains(file_, parameter); }
  // Throws Error if there is no such parameter, as read() does.
  const std::vector<int64_t>& shape(const std::string& parameter) const {
    return reader_.global_shape(file_, parameter);
  }
  // The whole parameter, which has the shape of `out`; float32.
  void read(const std::string& parameter, at::Tensor& out) const { reader_.read(file_, parameter, out); }

 private:
  checkpoint::Reader reader_;
  std::string file_;
};

}  // namespace pptrain::app
