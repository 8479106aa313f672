// Is anything left to learn? Documents lose their targets if data.max_document_tokens truncates them before
// their answers.
#pragma once

#include <string>
#include <vector>

#include "app/data/datasets.h"

namespace pptrain::app {

struct TargetCount {
  int64_t documents = 0, without_targets = 0;
  bool whole = true;  // false: the first documents of the first and of the last file

  bool none() const { return documents > 0 && without_targets == documents; }
};

// For a stream of texts or token lists before it is tokenized, at a few places. Throws as tokenize_sample().
TargetCount look_for_targets(const config::JobConfig& job, const StreamFiles& stream);

// "54 of 60 documents have no token to learn: ..."; "" if all have one.
std::string target_text(const config::JobConfig& job, const TargetCount& count);

// For all data that are open. Throws CommonFault, with the key, if a source's training data have no target;
// returns warnings if some documents have none. The same on every rank.
std::vector<std::string> check_targets(const config::JobConfig& job, const std::vector<OpenSource>& sources);

}  // namespace pptrain::app
