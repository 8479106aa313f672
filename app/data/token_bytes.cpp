#include "app/data/token_bytes.h"

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <utility>

#include "app/data/text_codec.h"
#include "core/tokenizer/tokenizer.h"

namespace pptrain::app {

int64_t TokenBytes::of_labels(std::span<const data::Microbatch> microbatches) const {
  int64_t sum = 0;
  for (const data::Microbatch& microbatch : microbatches) {
    const at::Tensor labels = microbatch.labels.cpu().contiguous();
    for (const int64_t label :
         std::span(labels.const_data_ptr<int64_t>(), static_cast<size_t>(labels.numel()))) {
      if (label == data::ignore_label) continue;
      if (!bytes_) {
        ++sum;
      } else if (std::cmp_less(label, bytes_->size())) {
        sum += (*bytes_)[static_cast<size_t>(label)];
      }
    }
  }
  return sum;
}

std::optional<TokenBytes> read_token_bytes(const config::JobConfig& job) {
  const std::filesystem::path file = tokenizer_of(job);
  if (file.empty()) return std::nullopt;
  std::vector<uint32_t> bytes = tokenizer::Tokenizer::load(file).token_bytes();
  if (bytes.empty()) return std::nullopt;
  return TokenBytes(std::move(bytes));
}

}  // namespace pptrain::app
