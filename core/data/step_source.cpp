#include "core/data/step_source.h"

#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"
#include "core/tokens/context_split.h"

namespace pptrain::data {
namespace {

void check(const LoaderOptions& o) {
  if (o.seq_len < 1 || o.micro_batch_size < 1 || o.microbatches < 1 || o.dp_size < 1 || o.dp_rank < 0 ||
      o.dp_rank >= o.dp_size) {
    throw Error(fmt::format(
        "data loader: seq_len {}, micro_batch_size {}, microbatches {}, data rank {} of {} must be "
        "positive, and the rank below their number",
        o.seq_len, o.micro_batch_size, o.microbatches, o.dp_rank, o.dp_size));
  }
  if (o.pad_to_multiple_of < 1 || o.tp_size < 1 || o.attention_length < 1) {
    throw Error(
        fmt::format("data loader: pad_to_multiple_of {}, tp_size {}, attention_length {} must be positive",
                    o.pad_to_multiple_of, o.tp_size, o.attention_length));
  }
  // Throws where rows cannot be cut so.
  if (o.cp_size > 1) tokens::split_rows(o.cp_order, o.micro_batch_size, o.seq_len, o.cp_size, o.cp_rank);
}

}  // namespace

std::shared_ptr<const StepSource> make_step_source(std::vector<TokenDataset> streams,
                                                   const LoaderOptions& options) {
  check(options);
  return options.whole_documents() ? make_document_source(std::move(streams), options)
                                   : make_row_source(std::move(streams), options);
}

}  // namespace pptrain::data
