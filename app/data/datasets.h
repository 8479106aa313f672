// The job's token streams, and the loader options of one rank.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/plan/run_context.h"
#include "core/config/data_sources.h"
#include "core/data/data_loader.h"
#include "core/data/token_dataset.h"
#include "core/text/corpus/cache.h"

namespace pptrain::app {

// The part of a job's sources to read.
enum class Wanted { all, training, validation };

// One stream of files that the job names: a source's path, or its val_path.
struct StreamFiles {
  size_t source = 0;  // its number
  bool validation = false;
  std::string key;  // its option: "data.path"
  std::vector<std::string> paths;
  config::DataSource options;
  uint64_t seed = 0;  // of random tokens

  std::vector<std::filesystem::path> files() const;  // throws Error as source_files() does
};

// The wanted streams, in the order of the sources, path before val_path. If validation data are cut from the
// training data, these are wanted for it. A path that the job leaves out gives no stream, except with random
// tokens.
std::vector<StreamFiles> streams_of(const config::JobConfig& job, Wanted wanted);

// The source as a token file's reader takes it. Not for tokenized sources.
data::Source data_source(const StreamFiles& stream);

// The request for a stream that a tokenizer turns into tokens. Throws UsageError if the job has no tokenizer.
corpus::TokenizeRequest cache_request(const config::JobConfig& job, const StreamFiles& stream);

// Fingerprint of the training data's contents, independent of their paths. For one source it is the
// fingerprint of its files, if they hold tokens (data::fingerprint), else of what its tokens are made from
// (corpus::fingerprint).
std::string data_fingerprint(const config::JobConfig& job);
std::string data_fingerprint(const config::JobConfig& job, const StreamFiles& stream);

// The token files of tokenized streams, by key; made by make_token_files().
using TokenFiles = std::map<std::string, std::filesystem::path>;

// One source, with its wanted streams open.
struct OpenSource {
  std::string name;  // "": the only one, from data.path
  double weight = 1;
  bool bytes = false;  // a token is a byte
  std::optional<data::TokenDataset> train = std::nullopt;
  std::optional<data::TokenDataset> validation = std::nullopt;
};
// Every source of which something is wanted. Throws Error that names the file.
std::vector<OpenSource> open_data(const config::JobConfig& job, int64_t vocab_size, const TokenFiles& caches,
                                  Wanted wanted);

std::vector<data::WeightedStream> training_streams(const std::vector<OpenSource>& sources);

// For the first data rank, without tokens and labels: enough to find lengths.
data::LoaderOptions loader_options(const Plan& plan);
// For this rank: tokens if it has the first stage, labels if it has the last.
data::LoaderOptions loader_options(const RunContext& context);

}  // namespace pptrain::app
