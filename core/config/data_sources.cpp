#include "core/config/data_sources.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>

namespace pptrain::config {

std::vector<DataSource> data_sources(const JobConfig& job) {
  if (!job.data.sources.empty()) return job.data.sources;
  return {job.data};
}

std::string source_key(const JobConfig& job, size_t index, std::string_view key) {
  return job.data.sources.empty() ? fmt::format("data.{}", key)
                                  : fmt::format("data.sources[{}].{}", index, key);
}

bool is_tokenized(const JobConfig& job, const DataSource& source) {
  const bool text = source.format == DataFormat::text && !job.data.tokenizer.empty();
  return text || source.format == DataFormat::jsonl || source.format == DataFormat::parquet;
}

bool is_of_bytes(const JobConfig& job, const DataSource& source) {
  return source.format == DataFormat::text && !is_tokenized(job, source);
}

bool any_tokenized(const JobConfig& job) {
  return std::ranges::any_of(data_sources(job), [&](const DataSource& s) { return is_tokenized(job, s); });
}

bool any_of_texts(const JobConfig& job) {
  return std::ranges::any_of(
      data_sources(job), [&](const DataSource& s) { return is_tokenized(job, s) && s.tokens_key.empty(); });
}

bool any_random(const JobConfig& job) {
  return std::ranges::any_of(data_sources(job),
                             [](const DataSource& s) { return s.format == DataFormat::random; });
}

bool all_of_bytes(const JobConfig& job) {
  return std::ranges::all_of(data_sources(job), [&](const DataSource& s) { return is_of_bytes(job, s); });
}

bool has_documents(const JobConfig& job) {
  return job.data.document_end >= 0 || std::ranges::all_of(data_sources(job), [&](const DataSource& source) {
           return source.format == DataFormat::megatron || is_tokenized(job, source);
         });
}

bool has_validation(const DataSource& source) {
  return source.val_fraction > 0 || !source.val_path.empty();
}

bool has_validation(const JobConfig& job) {
  return std::ranges::any_of(data_sources(job), [](const DataSource& s) { return has_validation(s); });
}

}  // namespace pptrain::config
