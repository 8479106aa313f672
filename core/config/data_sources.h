// The sources of a job's data, whichever way the job gives them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/job_config.h"

namespace pptrain::config {

// [[data.sources]], or the one that data.path and its neighbours are short for, without a name (and without a
// path if the job has neither).
std::vector<DataSource> data_sources(const JobConfig& job);

// How a key of source number `index` is called in messages: "data.sources[1].path", or "data.path".
std::string source_key(const JobConfig& job, size_t index, std::string_view key);

// Are the source's documents written into a cache of token files first: texts, which a tokenizer makes
// tokens, or lists of tokens?
bool is_tokenized(const JobConfig& job, const DataSource& source);
// Is a token one of the file's bytes?
bool is_of_bytes(const JobConfig& job, const DataSource& source);
// The same of any, or of all, of the job's sources.
bool any_tokenized(const JobConfig& job);
bool any_of_texts(const JobConfig& job);  // tokenized ones that are no lists of tokens
bool any_random(const JobConfig& job);
bool all_of_bytes(const JobConfig& job);
// Does something say where the documents of every source end?
bool has_documents(const JobConfig& job);
// Is something kept for validation?
bool has_validation(const DataSource& source);
bool has_validation(const JobConfig& job);

}  // namespace pptrain::config
