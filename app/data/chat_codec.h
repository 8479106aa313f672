// Conversations as token ids that a model continues.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config/job_config.h"
#include "core/text/corpus/chat.h"
#include "core/text/tokenizer/tokenizer.h"

namespace pptrain::app {

class ChatCodec {
 public:
  // With the job's chat template, or the model's own if [data.chat] names none. Throws UsageError if there is
  // no tokenizer or no template.
  explicit ChatCodec(const config::JobConfig& job);

  // Throws UsageError with the reason if the template does not take the messages.
  std::vector<int64_t> prompt(const std::vector<corpus::Message>& messages) const;
  // The end of an answer: a token, or a text if it ends without a special token.
  const std::vector<int64_t>& stop_ids() const { return stop_ids_; }
  const std::vector<std::string>& stop_texts() const { return stop_texts_; }

 private:
  void find_end();

  tokenizer::Tokenizer tokenizer_;
  std::shared_ptr<const corpus::ChatTemplate> template_;
  std::vector<int64_t> stop_ids_;
  std::vector<std::string> stop_texts_;
};

}  // namespace pptrain::app
