// Whole documents, packed into steps.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/data/documents.h"
#include "core/data/microbatch.h"
#include "core/data/step_plan.h"

namespace pptrain::data {
namespace {

class DocumentSource final : public StepSource {
 public:
  DocumentSource(std::vector<TokenDataset> streams, const LoaderOptions& options)
      : streams_(std::move(streams)), options_(options) {
    for (const TokenDataset& stream : streams_)
      pieces_.emplace_back(document_starts(stream, options.document_end), options.seq_len);
  }

  std::vector<int64_t> checked_samples() const override {
    std::vector<int64_t> samples;
    for (size_t i = 0; i < streams_.size(); ++i) {
      samples.push_back(pieces_[i].size());
      if (samples.back() == 0)
        throw Error(fmt::format("data: '{}' has no tokens for training", streams_[i].path()));
    }
    return samples;
  }
  int64_t all_samples() const override { return pieces_.front().size(); }
  int64_t samples_from(int64_t next) const override {
    return plan(next, [](int64_t place) { return Sample{0, place}; }).pieces;
  }

  Step step(int64_t next, const Order& order) const override {
    const StepPlan planned = plan(next, order);
    Step step{.microbatches = {},
              .samples = planned.pieces,
              .targets = planned.targets(),
              .tokens = planned.tokens(),
              .padding = planned.filling()};
    for (const std::vector<ListPlan>& ranks : planned.microbatches) {
      const ListPlan& own = ranks[static_cast<size_t>(options_.dp_rank)];
      Microbatch& microbatch = step.microbatches.emplace_back(read(own));
      microbatch.targets = own.targets();
      for (const ListPlan& list : ranks) {
        microbatch.global_tokens += list.tokens() - list.filling();
        microbatch.global_targets += list.targets();
      }
    }
    return step;
  }

 private:
  StepPlan plan(int64_t next, const Order& order) const {
    return plan_step(options_, [&](int64_t i) -> std::optional<Piece> {
      const Sample sample = order(next + i);
      if (sample.index >= pieces_[sample.stream].size()) return std::nullopt;
      return piece_of(sample);
    });
  }

  Piece piece_of(const Sample& sample) const {
    Piece piece = pieces_[sample.stream][sample.index];
    piece.part = sample.stream;
    piece.prompt = streams_[sample.stream].prompt_tokens(piece.first + 1, piece.first + 1 + piece.followed());
    return piece;
  }

  Microbatch read(const ListPlan& planned) const {
    TokenList list(options_, planned.tokens());
    int64_t first = 0;
    for (const PlacedPiece& document : planned.documents) {
      if (options_.need_tokens || options_.need_labels) read(document.piece, first, list);
      list.add_document(document.piece.length, document.filling);
      first += document.tokens();
    }
    return list.finish(split(planned.tokens()));
  }

  // The piece's tokens go to the list's from `first` on, and each but the first of its document and those of
  // its prompt is a target.
  void read(const Piece& piece, int64_t first, TokenList& list) const {
    const int64_t followed = piece.followed();
    if (piece.length == 0) return;
    std::vector<int64_t> ids(static_cast<size_t>(std::max(piece.length, followed + 1)));
    const TokenDataset& stream = streams_[piece.part];
    stream.read(piece.first, ids);
    std::copy_n(ids.begin(), piece.length, list.tokens(first, piece.length).begin());
    const std::span<int64_t> labels = list.labels(first, followed);
    std::copy_n(ids.begin() + 1, followed, labels.begin());
    stream.ignore_prompts(piece.first + 1, labels);
  }

  // Rows are cut as rows, whatever documents they hold.
  std::shared_ptr<const tokens::ContextSplit> split(int64_t tokens) const {
    const LoaderOptions& o = options_;
    if (o.cp_size == 1) return nullptr;
    return std::make_shared<const tokens::ContextSplit>(
        o.lengths == Lengths::fixed
            ? tokens::split_rows(o.cp_order, o.micro_batch_size, o.seq_len, o.cp_size, o.cp_rank)
            : split_list(o.cp_order, tokens, o.cp_size, o.cp_rank));
  }

  std::vector<TokenDataset> streams_;
  LoaderOptions options_;
  std::vector<Pieces> pieces_;  // of each stream
};

}  // namespace

std::shared_ptr<const StepSource> make_document_source(std::vector<TokenDataset> streams,
                                                       const LoaderOptions& options) {
  return std::make_shared<const DocumentSource>(std::move(streams), options);
}

}  // namespace pptrain::data
