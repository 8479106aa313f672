// The job's token streams, and how one rank reads them.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/plan/run_context.h"
#include "core/config/data_sources.h"
#include "core/corpus/cache.h"
#include "core/data/data_loader.h"
#include "core/data/token_dataset.h"

namespace pptrain::app {

// What of a job's sources is to be read.
enum class Wanted { all, training, validation };

// One stream of files that the job names: a source's path, or its val_path.
struct StreamFiles {
  size_t source = 0;  // its number
  bool validation = false;
  std::string key;  // that names it: "data.path"
  std::vector<std::string> paths;
  config::DataSource options;
  uint64_t seed = 0;  // of random tokens

  std::vector<std::filesystem::path> files() const;  // throws Error as source_files() does
};

// Those wanted, in the order of the sources, path before val_path. For validation that is cut from the
// training data these are wanted. A path that the job leaves out is no stream, but for random tokens.
std::vector<StreamFiles> streams_of(const config::JobConfig& job, Wanted wanted);

// The source as a token file's reader takes it. Not for tokenized ones.
data::Source data_source(const StreamFiles& stream);

// Of a stream that a tokenizer makes tokens of. Throws UsageError where the job has no tokenizer.
corpus::TokenizeRequest cache_request(const config::JobConfig& job, const StreamFiles& stream);

// Of the training data: what they hold, wherever they lie. For one source that of its files, if these are of
// tokens (data::fingerprint), or else of what its tokens are made of (corpus::fingerprint).
std::string data_fingerprint(const config::JobConfig& job);
std::string data_fingerprint(const config::JobConfig& job, const StreamFiles& stream);

// The token files of tokenized streams, by key; made by make_token_files().
using TokenFiles = std::map<std::string, std::filesystem::path>;

// One source, opened as far as it was wanted.
struct OpenSource {
  std::string name;  // "": the only one, from data.path
  double weight = 1;
  bool bytes = false;  // a token is a byte
  std::optional<data::TokenDataset> train = std::nullopt;
  std::optional<data::TokenDataset> validation = std::nullopt;
};
// Every source, whichever has something wanted. Throws Error that names the file.
std::vector<OpenSource> open_data(const config::JobConfig& job, int64_t vocab_size, const TokenFiles& caches,
                                  Wanted wanted);

std::vector<data::WeightedStream> training_streams(const std::vector<OpenSource>& sources);

// Of the first data rank, without tokens and labels: what lengths follow from.
data::LoaderOptions loader_options(const Plan& plan);
// Of this rank: tokens for the rank of the first stage, labels for the rank of the last.
data::LoaderOptions loader_options(const RunContext& context);

}  // namespace pptrain::app
