// The job's token streams, and how one rank reads them.
#pragma once

#include <string>

#include "app/train/run_context.h"
#include "core/data/data_loader.h"
#include "core/data/token_dataset.h"

namespace pptrain::app {

// A file or folder in the job's format.
data::Source data_source(const config::JobConfig& job, const std::string& path);

data::Split open_data(const config::JobConfig& job, int64_t vocab_size);

// Tokens for the rank of the first stage, labels for the rank of the last.
data::LoaderOptions loader_options(const RunContext& context);

}  // namespace pptrain::app
