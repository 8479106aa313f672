#include "core/data/step_plan.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/data/packing.h"
#include "core/tokens/context_split.h"

namespace pptrain::data {

namespace {

void check(const LoaderOptions& o) {
  if (o.seq_len < 1 || o.micro_batch_size < 1 || o.microbatches < 1 || o.dp_size < 1 || o.dp_rank < 0 ||
      o.dp_rank >= o.dp_size) {
    throw Error(
        fmt::format("data loader: seq_len {}, micro_batch_size {}, microbatches {}, data rank {} of {} must "
                    "be positive, and the rank below their number",
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

namespace {

template <typename Items, typename Count>
int64_t sum_over(const Items& items, const Count& count) {
  return std::accumulate(items.begin(), items.end(), int64_t{0},
                         [&](int64_t sum, const auto& item) { return sum + count(item); });
}

template <typename Count>
int64_t sum_over_lists(const StepPlan& plan, const Count& count) {
  return sum_over(plan.microbatches, [&](const auto& ranks) { return sum_over(ranks, count); });
}

// Fills `list` up to `tokens`: its last document up to seq_len, and then further ones.
void fill_up(ListPlan& list, int64_t tokens, int64_t seq_len) {
  int64_t missing = tokens - list.tokens();
  if (missing > 0 && !list.documents.empty()) {
    PlacedSlice& last = list.documents.back();
    const int64_t grown = std::min(missing, seq_len - last.tokens());
    last.filling += grown;
    missing -= grown;
  }
  for (; missing > 0; missing -= std::min(missing, seq_len))
    list.documents.push_back({.slice = {}, .filling = std::min(missing, seq_len)});
}

// One step while it is planned.
class StepPlanner {
 public:
  StepPlanner(const LoaderOptions& options,
              const std::function<std::optional<DocumentSlice>(int64_t)>& offered)
      : o_(options) {
    rows_ = pack(o_.packing, o_.rows_per_step(), o_.seq_len, [&](int64_t i) -> std::optional<int64_t> {
      while (static_cast<int64_t>(slices_.size()) <= i) {
        const auto slice = offered(static_cast<int64_t>(slices_.size()));
        if (!slice) return std::nullopt;
        slices_.push_back(*slice);
      }
      return slices_[static_cast<size_t>(i)].length;
    });
    slices_.resize(static_cast<size_t>(
        sum_over(rows_, [](const auto& row) { return static_cast<int64_t>(row.size()); })));
  }

  StepPlan plan() {
    StepPlan plan = o_.lengths == Lengths::fixed ? in_rows() : levelled();
    plan.slices = static_cast<int64_t>(slices_.size());
    if (o_.lengths != Lengths::fixed) {
      const int64_t tokens = o_.lengths == Lengths::padded ? padded_length(plan) : least_tokens(o_);
      for (auto& ranks : plan.microbatches) {
        for (ListPlan& list : ranks) fill_up(list, tokens, o_.seq_len);
      }
    }
    return plan;
  }

 private:
  StepPlan in_rows() const {
    StepPlan plan = empty_plan();
    size_t row = 0;
    for (auto& ranks : plan.microbatches) {
      for (ListPlan& list : ranks) {
        for (int64_t i = 0; i < o_.micro_batch_size; ++i) {
          ListPlan whole = list_of({rows_[row++]});
          fill_up(whole, o_.seq_len, o_.seq_len);
          list.documents.insert(list.documents.end(), whole.documents.begin(), whole.documents.end());
        }
      }
    }
    return plan;
  }

  StepPlan levelled() {
    const DocumentCost cost{o_.lengths == Lengths::padded ? 0 : o_.attention_length};
    if (o_.packing != Packing::none) {
      std::vector<int64_t> lengths;
      for (const DocumentSlice& slice : slices_) lengths.push_back(slice.length);
      rows_ = level_rows(std::move(rows_), lengths, o_.seq_len, cost);
    }
    std::vector<int64_t> costs;
    for (const auto& row : rows_)
      costs.push_back(sum_over(row, [&](int64_t i) { return cost(slices_[static_cast<size_t>(i)].length); }));
    StepPlan plan = empty_plan();
    const auto microbatches = share_equally(costs, o_.microbatches);
    for (size_t j = 0; j < microbatches.size(); ++j) {
      std::vector<int64_t> own;
      for (const int64_t row : microbatches[j]) own.push_back(costs[static_cast<size_t>(row)]);
      const auto ranks = share_equally(own, o_.dp_size);
      for (size_t d = 0; d < ranks.size(); ++d) {
        Rows rows;
        for (const int64_t i : ranks[d])
          rows.push_back(rows_[static_cast<size_t>(microbatches[j][static_cast<size_t>(i)])]);
        plan.microbatches[j][d] = list_of(rows);
      }
    }
    return plan;
  }

  StepPlan empty_plan() const {
    const std::vector<ListPlan> ranks(static_cast<size_t>(o_.dp_size));
    return {.microbatches = std::vector(static_cast<size_t>(o_.microbatches), ranks), .slices = 0};
  }

  ListPlan list_of(const Rows& rows) const {
    ListPlan list;
    for (const auto& row : rows) {
      for (const int64_t i : row) list.documents.push_back({.slice = slices_[static_cast<size_t>(i)]});
    }
    return list;
  }

  // Of the longest list of all ranks, rounded up so that each context-parallel rank has a multiple, but no
  // longer than full rows.
  int64_t padded_length(const StepPlan& plan) const {
    int64_t longest = least_tokens(o_);
    for (const auto& ranks : plan.microbatches) {
      for (const ListPlan& list : ranks) longest = std::max(longest, list.tokens());
    }
    const int64_t multiple = o_.pad_to_multiple_of * o_.cp_size;
    const int64_t rounded = (longest + multiple - 1) / multiple * multiple;
    return std::min(rounded, o_.micro_batch_size * o_.seq_len);
  }

  const LoaderOptions& o_;
  std::vector<DocumentSlice> slices_;
  Rows rows_;
};

}  // namespace

int64_t ListPlan::tokens() const {
  return sum_over(documents, [](const PlacedSlice& d) { return d.tokens(); });
}
int64_t ListPlan::filling() const {
  return sum_over(documents, [](const PlacedSlice& d) { return d.filling; });
}
int64_t ListPlan::targets() const {
  return sum_over(documents, [](const PlacedSlice& d) { return d.slice.targets(); });
}

int64_t StepPlan::tokens() const {
  return sum_over_lists(*this, [](const ListPlan& list) { return list.tokens(); });
}
int64_t StepPlan::filling() const {
  return sum_over_lists(*this, [](const ListPlan& list) { return list.filling(); });
}
int64_t StepPlan::targets() const {
  return sum_over_lists(*this, [](const ListPlan& list) { return list.targets(); });
}

// A list is cut into 2 * cp pieces (zigzag), of which a rank has two, or into cp; shares of tensor-parallel
// ranks differ by one at most.
int64_t least_tokens(const LoaderOptions& options) {
  const int64_t cp = options.cp_size, tp = options.tp_size;
  const bool zigzag = cp > 1 && options.cp_order == tokens::ContextOrder::zigzag;
  return zigzag ? 2 * cp * ((tp + 1) / 2) : cp * tp;
}

StepPlan plan_step(const LoaderOptions& options,
                   const std::function<std::optional<DocumentSlice>(int64_t)>& offered) {
  return StepPlanner(options, offered).plan();
}

}  // namespace pptrain::data
