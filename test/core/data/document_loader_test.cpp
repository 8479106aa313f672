// Whole documents as microbatches: no token is lost or read twice, and every rank knows all lengths.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "core/base/error.h"
#include "core/data/data_loader.h"
#include "core/data/document_index.h"
#include "core/data/microbatch.h"
#include "core/data/packing.h"
#include "core/data/step_source.h"
#include "test/core/data/token_files.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::data;
using pptrain::test::contains_text;

namespace {

constexpr int64_t end_id = 1;
constexpr int64_t row_length = 24;

// Every token is different except ends: 2, 3, 4, ...
struct DocumentCorpus {
  std::vector<uint16_t> ids;
  std::vector<int64_t> starts{0};  // the documents' starts, and the end

  // Long-tailed lengths; some are longer than row_length.
  DocumentCorpus(int documents, uint32_t seed) {
    std::mt19937 random(seed);
    std::lognormal_distribution<double> length(1.8, 1.0);
    for (int d = 0; d < documents; ++d) {
      const int64_t tokens = 1 + static_cast<int64_t>(length(random));
      for (int64_t i = 0; i + 1 < tokens; ++i) ids.push_back(static_cast<uint16_t>(2 + ids.size()));
      ids.push_back(end_id);
      starts.push_back(static_cast<int64_t>(ids.size()));
    }
  }
  TokenDataset dataset(const ScratchFolder& folder) const {
    return TokenDataset({{write_ids(folder, "tokens.bin", ids)}, Format::bin, 2}, 65536);
  }
};

struct Mode {
  Packing packing;
  Lengths lengths;
};
const std::vector<Mode> modes = {
    {Packing::none, Lengths::fixed},        {Packing::none, Lengths::exact},
    {Packing::none, Lengths::padded},       {Packing::sequential, Lengths::exact},
    {Packing::sequential, Lengths::padded}, {Packing::best_fit, Lengths::fixed},
    {Packing::best_fit, Lengths::exact},    {Packing::best_fit, Lengths::padded}};

LoaderOptions options_of(const Mode& mode, int64_t b = 2, int64_t m = 3, int64_t dp = 2) {
  return {.seq_len = row_length,
          .micro_batch_size = b,
          .microbatches = m,
          .dp_size = dp,
          .document_end = end_id,
          .packing = mode.packing,
          .lengths = mode.lengths,
          .pad_to_multiple_of = 8,
          .attention_length = 30};
}

std::vector<int64_t> values(const at::Tensor& list) {
  const at::Tensor all = list.to(at::kLong);
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

// The number of tokens in documents.
int64_t own_tokens(const Microbatch& microbatch) {
  const at::Tensor& filling = microbatch.filling;
  return microbatch.token_count() - (filling.defined() ? filling.sum().item<int64_t>() : 0);
}

// The contents of the steps of all data ranks.
struct Seen {
  std::map<int64_t, int> inputs, targets;  // token -> times; ends are counted separately
  int64_t ends = 0;
  int64_t filling = 0, tokens = 0;

  // A microbatch must hold pieces of the corpus's documents, each as its own document.
  void add(const Microbatch& microbatch) {
    const auto ids = values(microbatch.tokens), labels = values(microbatch.labels),
               positions = values(microbatch.positions);
    const std::vector<int64_t> marks =
        microbatch.filling.defined() ? values(microbatch.filling) : std::vector<int64_t>(ids.size(), 0);
    REQUIRE(std::ssize(ids) == microbatch.segments.tokens());
    REQUIRE(ids.size() == labels.size());
    int64_t counted = 0;
    for (int64_t d = 0; d < microbatch.segments.documents(); ++d) {
      const int64_t first = microbatch.segments.first(d), length = microbatch.segments.length(d);
      REQUIRE(length <= row_length);
      bool in_filling = false;
      for (int64_t i = 0; i < length; ++i) {
        const auto at = static_cast<size_t>(first + i);
        ++tokens;
        in_filling = in_filling || ids[at] == 0;
        REQUIRE(marks[at] == (in_filling ? 1 : 0));
        if (in_filling) {
          REQUIRE(ids[at] == 0);
          REQUIRE(labels[at] == ignore_label);
          REQUIRE(positions[at] == 0);
          ++filling;
          continue;
        }
        REQUIRE(positions[at] == i);
        if (ids[at] == end_id) {
          ++ends;
          REQUIRE(labels[at] == ignore_label);
          REQUIRE((i + 1 == length || ids[at + 1] == 0));  // nothing follows the end of a document
          continue;
        }
        ++inputs[ids[at]];
        ++counted;
        // Tokens of a document follow each other, also at the end of a piece.
        REQUIRE((labels[at] == ids[at] + 1 || labels[at] == end_id));
        if (i + 1 < length && ids[at + 1] != 0) REQUIRE(labels[at] == ids[at + 1]);
        if (labels[at] != end_id) ++targets[labels[at]];
      }
    }
    REQUIRE(microbatch.targets == counted);
  }
};

}  // namespace

TEST_CASE("an epoch of whole documents shows each token once, whatever the packing and the lengths") {
  const ScratchFolder folder;
  const DocumentCorpus corpus(300, 5);
  const TokenDataset dataset = corpus.dataset(folder);
  for (const Mode& mode : modes) {
    for (const bool shuffle : {false, true}) {
      CAPTURE(static_cast<int>(mode.packing), static_cast<int>(mode.lengths), shuffle);
      Seen seen;
      int64_t next = 0, told_tokens = 0, told_filling = 0, pieces = 0;
      std::vector<DataLoader> loaders;
      LoaderOptions options = options_of(mode);
      for (options.dp_rank = 0; options.dp_rank < options.dp_size; ++options.dp_rank)
        loaders.emplace_back(dataset, options, shuffle, 7);
      pieces = loaders[0].samples_per_epoch();
      while (next < pieces) {
        std::vector<Step> steps;
        for (const DataLoader& loader : loaders) steps.push_back(loader.step(next));
        // The ranks agree, also on the other ranks' counts.
        REQUIRE(steps[0].samples == steps[1].samples);
        REQUIRE(steps[0].targets == steps[1].targets);
        REQUIRE(steps[0].tokens == steps[1].tokens);
        for (size_t j = 0; j < 3; ++j) {
          const Microbatch &a = steps[0].microbatches[j], &b = steps[1].microbatches[j];
          REQUIRE(a.global_tokens == own_tokens(a) + own_tokens(b));
          REQUIRE(b.global_tokens == a.global_tokens);
          REQUIRE(a.global_targets == a.targets + b.targets);
          REQUIRE(b.global_targets == a.global_targets);
          REQUIRE(a.token_count() <= 2 * row_length);
          if (mode.lengths == Lengths::fixed) REQUIRE(a.token_count() == 2 * row_length);
          if (next + steps[0].samples <= pieces) {  // only this epoch
            seen.add(a);
            seen.add(b);
          }
        }
        if (next + steps[0].samples > pieces) break;
        next += steps[0].samples;
        told_tokens += steps[0].tokens;
        told_filling += steps[0].padding;
      }
      CHECK(seen.tokens == told_tokens);
      CHECK(seen.filling == told_filling);
      CHECK((mode.lengths == Lengths::exact) == (seen.filling == 0));
      for (const auto& [token, times] : seen.inputs) REQUIRE(times == 1);
      for (const auto& [token, times] : seen.targets) REQUIRE(times == 1);
      CHECK(next > pieces / 2);  // all samples except those of the step across the epoch's end
      const int64_t read = std::ssize(seen.inputs) + seen.ends;
      CHECK(seen.tokens - seen.filling == read);
      if (!shuffle) CHECK(seen.inputs.rbegin()->first < 2 + read);  // the file's first tokens
    }
  }
}

TEST_CASE("an epoch of validation in whole documents has every target once") {
  const ScratchFolder folder;
  for (const int documents : {1, 3, 50, 173}) {
    const DocumentCorpus corpus(documents, 9);
    const TokenDataset dataset = corpus.dataset(folder);
    if (dataset.size() < 2) continue;
    for (const Mode& mode : modes) {
      CAPTURE(documents, static_cast<int>(mode.packing), static_cast<int>(mode.lengths));
      Seen seen;
      LoaderOptions options = options_of(mode);
      for (options.dp_rank = 0; options.dp_rank < options.dp_size; ++options.dp_rank) {
        const ValidationLoader loader(dataset, options, 0);
        for (int64_t i = 0; i < loader.batches(); ++i) {
          for (const Microbatch& microbatch : loader.batch(i)) seen.add(microbatch);
        }
      }
      CHECK(seen.ends == documents);
      CHECK(std::ssize(seen.inputs) + seen.ends == std::ssize(corpus.ids));
      for (const auto& [token, times] : seen.inputs) REQUIRE(times == 1);
      for (const auto& [token, times] : seen.targets) REQUIRE(times == 1);
    }
  }
}

TEST_CASE("a step of whole documents begins anywhere, without those before it") {
  const ScratchFolder folder;
  const TokenDataset dataset = DocumentCorpus(200, 3).dataset(folder);
  for (const Mode& mode : modes) {
    const DataLoader loader(dataset, options_of(mode), true, 11), other(dataset, options_of(mode), true, 11);
    int64_t next = 0;
    for (int step = 0; step < 3; ++step) next += loader.step(next).samples;
    const Step a = loader.step(next), b = other.step(next);  // across the end of the epoch, in time
    for (size_t j = 0; j < a.microbatches.size(); ++j) {
      CHECK(at::equal(a.microbatches[j].tokens, b.microbatches[j].tokens));
      CHECK(a.microbatches[j].segments.host_starts == b.microbatches[j].segments.host_starts);
    }
  }
}

TEST_CASE("a step balanced by its schedule takes the same documents, begins anywhere and ends no later") {
  const ScratchFolder folder;
  const TokenDataset dataset = DocumentCorpus(300, 3).dataset(folder);
  const auto taken = [](const std::vector<Step>& ranks) {
    std::vector<int64_t> ids;
    for (const Step& step : ranks) {
      for (const Microbatch& microbatch : step.microbatches) {
        CHECK(microbatch.token_count() <= 2 * row_length);
        for (const int64_t id : values(microbatch.tokens)) ids.push_back(id);
      }
    }
    std::ranges::sort(ids);
    return ids;
  };
  for (const Packing packing : {Packing::none, Packing::sequential, Packing::best_fit}) {
    LoaderOptions options = options_of({packing, Lengths::exact}, /*b=*/2, /*m=*/6);
    options.step_end = [](std::span<const int64_t> tokens, std::span<const int64_t> squares) {
      int64_t first = 0, second = 0;  // two stages
      for (size_t j = 0; j < tokens.size(); ++j) {
        first += 30 * tokens[j] + squares[j];
        second = std::max(first, second) + 30 * tokens[j] + squares[j];
      }
      return second;
    };
    const auto step = [&](bool balance, int64_t next) {
      options.balance_schedule = balance;
      std::vector<Step> ranks;
      for (options.dp_rank = 0; options.dp_rank < 2; ++options.dp_rank)
        ranks.push_back(DataLoader(dataset, options, true, 11).step(next));
      CHECK(ranks[0].end == ranks[1].end);
      return ranks;
    };
    int64_t next = 0, sooner = 0;
    for (int i = 0; i < 4; ++i) {
      const auto plain = step(false, next), balanced = step(true, next);
      CHECK(taken(balanced) == taken(plain));
      CHECK(balanced[0].samples == plain[0].samples);
      CHECK(balanced[0].targets == plain[0].targets);
      CHECK(balanced[0].padding == 0);
      CHECK(balanced[0].end <= plain[0].end);
      sooner += plain[0].end - balanced[0].end;
      next += plain[0].samples;
    }
    CHECK(sooner > 0);
  }
}

TEST_CASE("packed rows of a step are level: no document is better off in another row") {
  const ScratchFolder folder;
  const TokenDataset dataset = DocumentCorpus(600, 5).dataset(folder);
  for (const Packing packing : {Packing::sequential, Packing::best_fit}) {
    const LoaderOptions options = options_of({packing, Lengths::exact}, /*b=*/1, /*m=*/5, /*dp=*/1);
    const DataLoader loader(dataset, options, true, 6);
    int64_t next = 0;
    for (int i = 0; i < 8; ++i) {
      const Step step = loader.step(next);
      next += step.samples;
      const auto cost = [&](int64_t length) { return document_cost(length, options.attention_length); };
      const auto cost_of_row = [&](const Microbatch& row) {
        int64_t sum = 0;
        for (int64_t d = 0; d < row.segments.documents(); ++d) sum += cost(row.segments.length(d));
        return sum;
      };
      const auto [cheapest, dearest] = std::ranges::minmax_element(step.microbatches, {}, cost_of_row);
      const int64_t low = cost_of_row(*cheapest), high = cost_of_row(*dearest);
      CAPTURE(i, low, high);
      for (int64_t d = 0; d < dearest->segments.documents() && dearest->segments.documents() > 1; ++d) {
        const int64_t length = dearest->segments.length(d);
        const bool has_room = cheapest->segments.tokens() + length <= row_length;
        CHECK_FALSE((has_room && low + cost(length) < high));
      }
    }
  }
}

TEST_CASE("a step takes the same documents into each microbatch, however many data ranks share it") {
  const ScratchFolder folder;
  const TokenDataset dataset = DocumentCorpus(400, 8).dataset(folder);
  for (const Mode& mode : modes) {
    if (mode.lengths == Lengths::padded) continue;  // the longest length depends on the ranks
    const DataLoader whole(dataset, options_of(mode, /*b=*/4, /*m=*/3, /*dp=*/1), true, 2);
    for (const int64_t dp : {2, 4}) {
      const Step expected = whole.step(30);
      std::vector<std::vector<int64_t>> tokens(3), together(3);
      for (size_t j = 0; j < 3; ++j) {
        for (const int64_t id : values(expected.microbatches[j].tokens)) tokens[j].push_back(id);
      }
      LoaderOptions options = options_of(mode, 4 / dp, 3, dp);
      for (options.dp_rank = 0; options.dp_rank < dp; ++options.dp_rank) {
        const Step share = DataLoader(dataset, options, true, 2).step(30);
        CHECK(share.samples == expected.samples);
        CHECK(share.targets == expected.targets);
        for (size_t j = 0; j < 3; ++j) {
          CHECK(share.microbatches[j].global_targets == expected.microbatches[j].targets);
          for (const int64_t id : values(share.microbatches[j].tokens)) together[j].push_back(id);
        }
      }
      for (auto* lists : {&tokens, &together}) {
        for (auto& list : *lists) std::ranges::sort(list);
      }
      CHECK(together == tokens);
    }
  }
}

TEST_CASE("padded microbatches are as long as the step's longest, exact ones compute fewer tokens") {
  const ScratchFolder folder;
  const TokenDataset dataset = DocumentCorpus(400, 4).dataset(folder);
  for (const Packing packing : {Packing::none, Packing::sequential, Packing::best_fit}) {
    const DataLoader exact(dataset, options_of({packing, Lengths::exact}), true, 1),
        padded(dataset, options_of({packing, Lengths::padded}), true, 1);
    int64_t of_exact = 0, of_padded = 0, next = 0;
    for (int i = 0; i < 4; ++i) {
      const Step a = exact.step(next), b = padded.step(next);
      REQUIRE(a.samples == b.samples);
      CHECK(a.padding == 0);
      CHECK(b.tokens == a.tokens + b.padding);
      int64_t longest = 0, own = 0;
      for (const Microbatch& microbatch : b.microbatches) {
        longest = std::max(longest, microbatch.token_count());
        own += microbatch.global_tokens;
        CHECK(microbatch.token_count() == b.microbatches[0].token_count());
      }
      CHECK((longest % 8 == 0 || longest == 2 * row_length));
      CHECK(b.tokens == 6 * longest);
      CHECK(own == a.tokens);
      of_exact += a.tokens;
      of_padded += b.tokens;
      next += a.samples;
    }
    CHECK(of_exact < of_padded);
  }
}

TEST_CASE("the last document grows over the filling, and none is longer than a row") {
  const ScratchFolder folder;
  const std::vector<uint16_t> ids = {5, 6, 1, 7, 1, 8, 9, 1};
  const TokenDataset dataset({{write_ids(folder, "t.bin", ids)}, Format::bin, 2}, 16);
  LoaderOptions options{.seq_len = 8,
                        .micro_batch_size = 1,
                        .document_end = end_id,
                        .packing = Packing::best_fit,
                        .lengths = Lengths::fixed};
  const auto microbatch = [&] { return ValidationLoader(dataset, options, 1).batch(0).at(0); };
  Microbatch all = microbatch();
  CHECK(values(all.tokens) == std::vector<int64_t>{5, 6, 1, 7, 1, 8, 9, 1});
  options.seq_len = 10;
  all = microbatch();
  CHECK(values(all.tokens) == std::vector<int64_t>{5, 6, 1, 7, 1, 8, 9, 1, 0, 0});
  CHECK(values(all.positions) == std::vector<int64_t>{0, 1, 2, 0, 1, 0, 1, 2, 0, 0});
  CHECK(values(all.filling) == std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1});
  CHECK(all.segments.host_starts == std::vector<int32_t>{0, 3, 5, 10});
  CHECK(values(all.labels) == std::vector<int64_t>{6, 1, -100, 1, -100, 9, 1, -100, -100, -100});
  // Two rows of five: padding beyond the last document's row is documents of its own.
  options.seq_len = 5;
  options.micro_batch_size = 3;
  options.lengths = Lengths::padded;
  options.pad_to_multiple_of = 15;
  all = microbatch();
  CHECK(all.token_count() == 15);
  CHECK(all.segments.longest <= 5);
  CHECK(all.targets == 5);
}

TEST_CASE("context-parallel ranks share out lists of any length") {
  const ScratchFolder folder;
  const TokenDataset dataset = DocumentCorpus(300, 6).dataset(folder);
  const auto order = GENERATE(tokens::ContextOrder::zigzag, tokens::ContextOrder::contiguous);
  for (const Mode& mode : modes) {
    LoaderOptions options = options_of(mode);
    options.cp_order = order;
    options.tp_size = 2;
    options.cp_size = 3;
    std::vector<Step> parts;
    for (options.cp_rank = 0; options.cp_rank < 3; ++options.cp_rank)
      parts.push_back(DataLoader(dataset, options, true, 1).step(12));
    for (size_t j = 0; j < 3; ++j) {
      const Microbatch& first = parts[0].microbatches[j];
      std::vector<int64_t> ids(static_cast<size_t>(first.segments.tokens()), -1);
      int64_t least = first.segments.tokens(), most = 0;
      for (const Step& part : parts) {
        const Microbatch& own = part.microbatches[j];
        CHECK(own.segments.host_starts == first.segments.host_starts);
        const bool full = own.segments.tokens() == options.micro_batch_size * options.seq_len;
        if (options.lengths == Lengths::padded && !full)
          CHECK(own.token_count() % options.pad_to_multiple_of == 0);
        CHECK_NOTHROW(tokens::check_split(*own.context, own.segments.tokens()));
        least = std::min(least, own.token_count());
        most = std::max(most, own.token_count());
        size_t local = 0;
        const auto mine = values(own.tokens);
        for (const auto& range : own.context->own()) {
          for (int64_t i = range.begin; i < range.end; ++i) ids[static_cast<size_t>(i)] = mine[local++];
        }
      }
      CHECK(least >= 2);  // a token for each tensor-parallel rank
      CHECK(most - least <= 2);
      CHECK(std::ranges::find(ids, -1) == ids.end());
    }
  }
  CHECK_THROWS_AS(tokens::split_list(tokens::ContextOrder::zigzag, 3, 2, 0), Error);
}

TEST_CASE("a list is long enough for every rank that shares it") {
  for (const auto order : {tokens::ContextOrder::zigzag, tokens::ContextOrder::contiguous}) {
    for (int cp = 1; cp <= 5; ++cp) {
      for (int64_t tp = 1; tp <= 5; ++tp) {
        LoaderOptions options{.seq_len = 1, .cp_size = cp, .cp_order = order, .tp_size = tp};
        const int64_t tokens = least_tokens(options);
        for (int rank = 0; rank < cp; ++rank) {
          const int64_t own = cp == 1 ? tokens : tokens::split_list(order, tokens, cp, rank).tokens(rank);
          CHECK(own >= tp);
        }
      }
    }
  }
  for (const int slices : {2, 3, 7}) {
    for (int64_t tp = 1; tp <= 5; ++tp) {
      const LoaderOptions options{.seq_len = 1, .tp_size = tp, .sequence_slices = slices};
      const tokens::ContextSplit split =
          tokens::split_by_cost(tokens::equal_segments(1, least_tokens(options), at::kCPU), slices, 1, tp, 0);
      for (int slice = 0; slice < slices; ++slice) CHECK(split.tokens(slice) == tp);
    }
  }
  // Documents of one token: the minimum, for any setting of lengths.
  const ScratchFolder folder;
  const TokenDataset dataset(
      {{write_ids(folder, "t.bin", std::vector<uint16_t>(40, end_id))}, Format::bin, 2}, 16);
  LoaderOptions options = options_of({Packing::none, Lengths::exact}, 1, 2, 1);
  options.cp_size = 2;
  options.tp_size = 3;
  const Step step = DataLoader(dataset, options, true, 1).step(0);
  CHECK(step.microbatches[0].segments.tokens() == 8);
  CHECK(step.padding == 14);
  CHECK(step.targets == 0);
  options.cp_size = 1;
  options.sequence_slices = 5;
  const Step in_slices = DataLoader(dataset, options, true, 1).step(0);
  REQUIRE(in_slices.microbatches.size() == 10);
  for (const Microbatch& slice : in_slices.microbatches) CHECK(slice.token_count() == 3);
}

TEST_CASE("rows of a file with an index are cut at its documents") {
  const ScratchFolder folder;
  // The same documents, by their index and by the token that ends them.
  const DocumentCorpus corpus(120, 12);
  const TokenDataset by_end = corpus.dataset(folder);
  write_ids(folder, "m.bin", corpus.ids);
  std::string index("MMIDIDX\0\0", 9);
  const auto add = [&](auto value) { index.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  add(uint64_t{1});
  add(uint8_t{8});
  const uint64_t documents = corpus.starts.size() - 1;
  add(documents);
  add(documents + 1);
  for (size_t d = 0; d < documents; ++d) add(static_cast<int32_t>(corpus.starts[d + 1] - corpus.starts[d]));
  for (size_t d = 0; d < documents; ++d) add(2 * corpus.starts[d]);
  for (size_t d = 0; d <= documents; ++d) add(static_cast<int64_t>(d));
  folder.write("m.idx", index);
  const TokenDataset by_index({{folder / "m.bin"}, Format::megatron}, 65536);

  std::vector<Mode> all = modes;
  all.push_back({Packing::sequential, Lengths::fixed});
  for (const Mode& mode : all) {
    LoaderOptions options = options_of(mode);
    const DataLoader a(by_end, options, true, 4);
    options.document_end.reset();
    const DataLoader b(by_index, options, true, 4);
    for (const int64_t next : {0, 17}) {
      const Step x = a.step(next), y = b.step(next);
      CHECK(x.samples == y.samples);
      CHECK(x.targets == y.targets);
      for (size_t j = 0; j < 3; ++j) {
        CHECK(at::equal(x.microbatches[j].tokens, y.microbatches[j].tokens));
        CHECK(at::equal(x.microbatches[j].labels, y.microbatches[j].labels));
        CHECK(at::equal(x.microbatches[j].positions, y.microbatches[j].positions));
        CHECK(x.microbatches[j].segments.host_starts == y.microbatches[j].segments.host_starts);
        CHECK(x.microbatches[j].global_targets == y.microbatches[j].global_targets);
      }
    }
  }
}

TEST_CASE("whole documents need to know where they end") {
  const ScratchFolder folder;
  const TokenDataset dataset = DocumentCorpus(5, 1).dataset(folder);
  LoaderOptions options = options_of({Packing::best_fit, Lengths::exact});
  options.document_end.reset();
  CHECK_THROWS_WITH(DataLoader(dataset, options, true, 0), contains_text("nothing says where the documents"));
}

TEST_CASE("filling behind a document is no part of its text's length") {
  const ScratchFolder folder;
  const TokenDataset dataset(
      {{write_ids<uint16_t>(folder, "t.bin", {5, 6, 1, 7, 1, 8, 9, 1})}, Format::bin, 2}, 16);
  LoaderOptions options{
      .seq_len = 4, .micro_batch_size = 3, .document_end = end_id, .packing = Packing::none};
  const Microbatch rows = ValidationLoader(dataset, options, 1).batch(0).at(0);
  CHECK(rows.segments.host_starts == std::vector<int32_t>{0, 4, 8, 12});
  CHECK(rows.text_lengths == std::vector<int64_t>{3, 2, 3});
  CHECK(rows.text_length(1) == 2);
  // Rows cut from the stream: the last one has two inputs.
  const Microbatch cut = ValidationLoader(dataset, {.seq_len = 5, .micro_batch_size = 2}, 1).batch(0).at(0);
  CHECK(cut.segments.host_starts == std::vector<int32_t>{0, 5, 10});
  CHECK(cut.text_lengths == std::vector<int64_t>{5, 2});
}

TEST_CASE("places say which token of the stream each label is") {
  const ScratchFolder folder;
  const DocumentCorpus corpus(60, 2);
  const TokenDataset dataset = corpus.dataset(folder);
  std::vector<Mode> all = modes;
  all.push_back({Packing::sequential, Lengths::fixed});
  for (const Mode& mode : all) {
    for (const int cp : {1, 2}) {
      CAPTURE(static_cast<int>(mode.packing), static_cast<int>(mode.lengths), cp);
      LoaderOptions options = options_of(mode);
      options.need_places = true;
      options.cp_size = cp;
      int64_t seen = 0;
      for (const Microbatch& microbatch : ValidationLoader(dataset, options, 1).batch(0)) {
        const auto tokens = values(microbatch.tokens), labels = values(microbatch.labels),
                   places = values(microbatch.places);
        REQUIRE(places.size() == labels.size());
        for (size_t i = 0; i < labels.size(); ++i) {
          if (labels[i] == ignore_label) continue;
          REQUIRE(corpus.ids.at(static_cast<size_t>(places[i])) == labels[i]);
          REQUIRE(corpus.ids.at(static_cast<size_t>(places[i]) - 1) == tokens[i]);
          ++seen;
        }
      }
      CHECK(seen > 10);
    }
  }
}
