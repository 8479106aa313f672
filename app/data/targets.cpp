#include "app/data/targets.h"

#include <spdlog/fmt/fmt.h>

#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/metrics/progress_text.h"
#include "core/text/tokenizer/tokenizer.h"

namespace pptrain::app {

TargetCount look_for_targets(const config::JobConfig& job, const StreamFiles& stream) {
  corpus::TokenizeRequest request = cache_request(job, stream);
  std::optional<tokenizer::Tokenizer> tokenizer;
  if (request.format.marks_targets() && !request.format.has_tokens()) {
    tokenizer = tokenizer::Tokenizer::load(request.tokenizer);
    if (!request.end_id) request.end_id = tokenizer->eos_id();
  }
  const corpus::Sample sample = corpus::tokenize_sample(tokenizer ? &*tokenizer : nullptr, request);
  return {.documents = sample.progress.documents,
          .without_targets = sample.progress.without_targets,
          .whole = sample.whole};
}

std::string target_text(const config::JobConfig& job, const TargetCount& count) {
  if (count.without_targets == 0) return "";
  const int64_t longest = job.data.max_document_tokens;
  const std::string why =
      longest > 0
          ? fmt::format(": data.max_document_tokens = {} truncates them before their answers", longest)
          : "";
  const std::string number = count.none() ? "all" : metrics::with_commas(count.without_targets) + " of";
  return fmt::format("{}{} {} documents {} no token to learn{}", number, count.whole ? "" : " the first",
                     metrics::with_commas(count.documents),
                     count.without_targets == 1 && !count.none() ? "has" : "have", why);
}

std::vector<std::string> check_targets(const config::JobConfig& job, const std::vector<OpenSource>& sources) {
  std::vector<std::string> warnings;
  const std::vector<config::DataSource> given = config::data_sources(job);
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto look = [&](const std::optional<data::TokenDataset>& tokens, const char* key, bool trained) {
      if (!tokens || !tokens->has_index()) return;
      const auto [documents, without] = tokens->count_documents();
      if (without == 0) return;
      const TargetCount count{.documents = documents, .without_targets = without};
      std::string text = fmt::format("{}: {}", config::source_key(job, i, key), target_text(job, count));
      if (trained && count.none()) throw CommonFault(text);
      warnings.push_back(std::move(text));
    };
    look(sources[i].train, "path", true);
    look(sources[i].validation, given[i].val_path.empty() ? "val_fraction" : "val_path", false);
  }
  return warnings;
}

}  // namespace pptrain::app
