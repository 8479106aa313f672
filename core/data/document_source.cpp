// Whole documents, packed into steps.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/data/context_part.h"
#include "core/data/documents.h"
#include "core/data/step_plan.h"
#include "core/data/step_source.h"
#include "core/data/token_list.h"

namespace pptrain::data {
namespace {

class DocumentSource final : public StepSource {
 public:
  DocumentSource(TokenDataset dataset, const LoaderOptions& options)
      : dataset_(std::move(dataset)),
        options_(options),
        pieces_(document_starts(dataset_, options.document_end), options.seq_len) {}

  int64_t checked_samples() const override {
    if (pieces_.size() == 0)
      throw Error(fmt::format("data: '{}' has no tokens for training", dataset_.path().string()));
    return pieces_.size();
  }
  int64_t all_samples() const override { return pieces_.size(); }
  int64_t samples_from(int64_t next) const override {
    return plan(next, [](int64_t place) { return place; }).pieces;
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
        microbatch.global_tokens += list.tokens();
        microbatch.global_targets += list.targets();
      }
    }
    return step;
  }

 private:
  StepPlan plan(int64_t next, const Order& order) const {
    return plan_step(options_, [&](int64_t i) -> std::optional<Piece> {
      const int64_t piece = order(next + i);
      return piece < pieces_.size() ? std::optional(pieces_[piece]) : std::nullopt;
    });
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

  // The piece's tokens go to the list's from `first` on, and each but the first of its document is a target.
  void read(const Piece& piece, int64_t first, TokenList& list) const {
    const int64_t targets = piece.targets();
    if (piece.length == 0) return;
    std::vector<int64_t> ids(static_cast<size_t>(std::max(piece.length, targets + 1)));
    dataset_.read(piece.first, ids);
    std::copy_n(ids.begin(), piece.length, list.tokens(first, piece.length).begin());
    std::copy_n(ids.begin() + 1, targets, list.labels(first, targets).begin());
  }

  // Rows are cut as rows, whatever documents they hold.
  std::shared_ptr<const kernels::ContextSplit> split(int64_t tokens) const {
    const LoaderOptions& o = options_;
    if (o.cp_size == 1) return nullptr;
    return std::make_shared<const kernels::ContextSplit>(
        o.lengths == Lengths::fixed
            ? kernels::split_rows(o.cp_order, o.micro_batch_size, o.seq_len, o.cp_size, o.cp_rank)
            : split_list(o.cp_order, tokens, o.cp_size, o.cp_rank));
  }

  TokenDataset dataset_;
  LoaderOptions options_;
  Pieces pieces_;
};

}  // namespace

std::shared_ptr<const StepSource> make_document_source(TokenDataset dataset, const LoaderOptions& options) {
  return std::make_shared<const DocumentSource>(std::move(dataset), options);
}

}  // namespace pptrain::data
