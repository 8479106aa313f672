// Steps of whole documents. Which documents lie where in a step's microbatches is known before a token is
// read: every rank derives all of it, and so the length of every microbatch on every data rank.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/data/balance.h"
#include "core/data/documents.h"
#include "core/data/microbatch.h"
#include "core/data/packing.h"
#include "core/data/step_source.h"
#include "core/data/tokens/context_split.h"

namespace pptrain::data {

// A list is cut into 2 * cp pieces (zigzag; a rank has two), or into cp, or into sequence slices. Shards of
// tensor-parallel ranks differ by one row at most.
int64_t least_tokens(const LoaderOptions& options) {
  const int64_t cp = options.cp_size, tp = options.tp_size;
  const bool zigzag = cp > 1 && options.cp_order == tokens::ContextOrder::zigzag;
  return zigzag ? 2 * cp * ((tp + 1) / 2) : options.parts();
}

namespace {

template <typename Items, typename Count>
int64_t sum_over(const Items& items, const Count& count) {
  return std::accumulate(items.begin(), items.end(), int64_t{0},
                         [&](int64_t sum, const auto& item) { return sum + count(item); });
}

// A document of a microbatch: a slice, or none (length 0), and tokens of filling behind it.
struct PlacedSlice {
  DocumentSlice slice = {};
  int64_t filling = 0;

  int64_t tokens() const { return slice.length + filling; }
};

// A microbatch of one data rank.
struct ListPlan {
  std::vector<PlacedSlice> documents = {};  // none of them empty

  int64_t tokens() const {
    return sum_over(documents, [](const PlacedSlice& d) { return d.tokens(); });
  }
  int64_t filling() const {
    return sum_over(documents, [](const PlacedSlice& d) { return d.filling; });
  }
  int64_t targets() const {
    return sum_over(documents, [](const PlacedSlice& d) { return d.slice.targets(); });
  }
};

struct StepPlan {
  std::vector<std::vector<ListPlan>> microbatches;  // [number][data rank]
  int64_t slices = 0;                               // that it took
  int64_t end = 0;                                  // by LoaderOptions::step_end

  // Over all lists.
  template <typename Count>
  int64_t sum(const Count& count) const {
    return sum_over(microbatches, [&](const auto& ranks) { return sum_over(ranks, count); });
  }
};

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

// Tokens of the whole step's microbatches, as `offered` slices come: the i-th, or nothing after the last.
//
// Packing into D*m*b rows of seq_len decides which slices are taken, so that a step takes the same documents
// on any layout with as many rows. With fixed lengths, row r goes to microbatch r / (D*b), data rank r %
// (D*b) / b. With other lengths, microbatches should cost alike: documents of packed rows are levelled over
// the rows. Then rows are divided among microbatches, and a microbatch's D*b rows equally among data ranks.
// The result may then be balanced by the schedule's end, without regard to rows.
//
// Filling belongs to the last document of a row (fixed) or list (others) up to seq_len tokens; what is
// missing then becomes separate documents. Lists of exact lengths have no filling unless they would be
// shorter than least_tokens().
class StepPlanner {
 public:
  // `offered`: the i-th slice, or nothing after the last.
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
          ListPlan whole = list_of(rows_[row++]);
          fill_up(whole, o_.seq_len, o_.seq_len);
          list.documents.insert(list.documents.end(), whole.documents.begin(), whole.documents.end());
        }
      }
    }
    return plan;
  }

  StepPlan levelled() {
    const int64_t attention_length = o_.lengths == Lengths::padded ? 0 : o_.attention_length;
    if (o_.packing != Packing::none)
      rows_ = level_rows(std::move(rows_), lengths(), o_.seq_len, attention_length);
    Lists lists = alike(attention_length);
    StepPlan plan = empty_plan();
    if (o_.step_end) {
      if (o_.balance_schedule) lists = balanced(lengths(), o_, std::move(lists));
      plan.end = last_end(lengths(), o_, lists);
    }
    for (size_t d = 0; d < lists.size(); ++d) {
      for (size_t j = 0; j < lists[d].size(); ++j) plan.microbatches[j][d] = list_of(lists[d][j]);
    }
    return plan;
  }

  std::vector<int64_t> lengths() const {
    std::vector<int64_t> lengths;
    for (const DocumentSlice& slice : slices_) lengths.push_back(slice.length);
    return lengths;
  }

  // Rows to microbatches and data ranks, such that these cost alike.
  Lists alike(int64_t attention_length) const {
    std::vector<int64_t> costs;
    for (const auto& row : rows_)
      costs.push_back(sum_over(row, [&](int64_t i) {
        return document_cost(slices_[static_cast<size_t>(i)].length, attention_length);
      }));
    const auto microbatches = share_equally(costs, o_.microbatches);
    Lists lists(static_cast<size_t>(o_.dp_size), Rows(microbatches.size()));
    for (size_t j = 0; j < microbatches.size(); ++j) {
      std::vector<int64_t> own;
      for (const int64_t row : microbatches[j]) own.push_back(costs[static_cast<size_t>(row)]);
      const auto ranks = share_equally(own, o_.dp_size);
      for (size_t d = 0; d < ranks.size(); ++d) {
        for (const int64_t i : ranks[d]) {
          const auto& row = rows_[static_cast<size_t>(microbatches[j][static_cast<size_t>(i)])];
          lists[d][j].insert(lists[d][j].end(), row.begin(), row.end());
        }
      }
    }
    return lists;
  }

  StepPlan empty_plan() const {
    const std::vector<ListPlan> ranks(static_cast<size_t>(o_.dp_size));
    return {.microbatches = std::vector(static_cast<size_t>(o_.microbatches), ranks), .slices = 0, .end = 0};
  }

  ListPlan list_of(const std::vector<int64_t>& documents) const {
    ListPlan list;
    for (const int64_t i : documents) list.documents.push_back({.slice = slices_[static_cast<size_t>(i)]});
    return list;
  }

  // The length of the longest list of all ranks, rounded up so that each context-parallel rank has a
  // multiple, but no longer than full rows.
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

class DocumentSource final : public StepSource {
 public:
  DocumentSource(std::vector<TokenDataset> streams, const LoaderOptions& options)
      : streams_(std::move(streams)), options_(options) {
    for (const TokenDataset& stream : streams_)
      slices_.emplace_back(document_starts(stream, options.document_end), options.seq_len);
  }

  std::vector<int64_t> checked_samples() const override {
    std::vector<int64_t> samples;
    for (size_t i = 0; i < streams_.size(); ++i) {
      samples.push_back(slices_[i].size());
      if (samples.back() == 0)
        throw Error(fmt::format("data: '{}' has no tokens for training", streams_[i].path()));
    }
    return samples;
  }
  int64_t all_samples() const override { return slices_.front().size(); }
  int64_t samples_from(int64_t next) const override {
    return plan(next, [](int64_t place) { return Sample{0, place}; }).slices;
  }

  Step step(int64_t next, const Order& order) const override {
    const StepPlan planned = plan(next, order);
    Step step{.microbatches = {},
              .samples = planned.slices,
              .targets = planned.sum([](const ListPlan& list) { return list.targets(); }),
              .tokens = planned.sum([](const ListPlan& list) { return list.tokens(); }),
              .padding = planned.sum([](const ListPlan& list) { return list.filling(); }),
              .end = planned.end};
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
    const auto offered = [&](int64_t i) -> std::optional<DocumentSlice> {
      const Sample sample = order(next + i);
      if (sample.index >= slices_[sample.stream].size()) return std::nullopt;
      return slice_of(sample);
    };
    return StepPlanner(options_, offered).plan();
  }

  DocumentSlice slice_of(const Sample& sample) const {
    DocumentSlice slice = slices_[sample.stream][sample.index];
    slice.part = sample.stream;
    slice.prompt = streams_[sample.stream].prompt_tokens(slice.first + 1, slice.first + 1 + slice.followed());
    return slice;
  }

  Microbatch read(const ListPlan& planned) const {
    TokenList list(options_, planned.tokens());
    int64_t first = 0;
    for (const PlacedSlice& document : planned.documents) {
      if (options_.need_tokens || options_.need_labels) read(document.slice, first, list);
      list.add_document(document.slice.length, document.filling);
      first += document.tokens();
    }
    return list.finish(split(planned.tokens()));
  }

  // Writes the slice's tokens to the list's from `first` on. Each is a target, except the first of its
  // document and those of its prompt.
  void read(const DocumentSlice& slice, int64_t first, TokenList& list) const {
    const int64_t followed = slice.followed();
    if (slice.length == 0) return;
    std::vector<int64_t> ids(static_cast<size_t>(std::max(slice.length, followed + 1)));
    const TokenDataset& stream = streams_[slice.part];
    stream.read(slice.first, ids);
    std::copy_n(ids.begin(), slice.length, list.tokens(first, slice.length).begin());
    const std::span<int64_t> labels = list.labels(first, followed);
    std::copy_n(ids.begin() + 1, followed, labels.begin());
    stream.ignore_prompts(slice.first + 1, labels);
    list.set_places(first, followed, slice.first + 1);
  }

  // Rows are cut as rows, whatever documents they hold.
  std::shared_ptr<const tokens::ContextSplit> split(int64_t tokens) const {
    const LoaderOptions& o = options_;
    if (o.cp_size == 1) return nullptr;
    return std::make_shared<const tokens::ContextSplit>(
        o.lengths == Lengths::fixed
            ? tokens::split_rows(o.cp_order, o.micro_batch_size, o.seq_len, o.cp_size, o.cp_rank)
            : tokens::split_list(o.cp_order, tokens, o.cp_size, o.cp_rank));
  }

  std::vector<TokenDataset> streams_;
  LoaderOptions options_;
  std::vector<DocumentSlices> slices_;  // of each stream
};

}  // namespace

std::shared_ptr<const StepSource> make_document_source(std::vector<TokenDataset> streams,
                                                       const LoaderOptions& options) {
  return std::make_shared<const DocumentSource>(std::move(streams), options);
}

}  // namespace pptrain::data
