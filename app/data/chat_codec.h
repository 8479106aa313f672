// Conversations as the token ids that a model goes on from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/config/job_config.h"
#include "core/corpus/chat.h"
#include "core/tokenizer/tokenizer.h"

namespace pptrain::app {

class ChatCodec {
 public:
  // With the job's chat template, or the model's own where [data.chat] says none. Throws UsageError where
  // there is no tokenizer or no template.
  explicit ChatCodec(const config::JobConfig& job);

  // Throws UsageError with the reason where the template does not take the messages.
  std::vector<int64_t> prompt(const std::vector<corpus::Message>& messages) const;
  // What ends an answer: a token, or where it ends without a special one a text.
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
