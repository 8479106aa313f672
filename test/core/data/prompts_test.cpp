#include "core/data/document_index.h"

#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/data_loader.h"
#include "core/text/corpus/token_writer.h"
#include "test/core/data/token_files.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::data;
using pptrain::test::contains_text;

namespace {

// Documents of 1 to 9 tokens; some runs of tokens are prompts. `counts`: whether a token is a label.
struct Corpus {
  ScratchFolder folder;
  std::vector<int64_t> starts{0};
  std::vector<bool> counts;  // by token of the stream
  std::string file;

  Corpus() {
    std::mt19937 random(3);
    corpus::TokenWriter writer(folder.path() / "t", 2, false);
    for (int i = 0; i < 80; ++i) {
      const auto length = static_cast<int64_t>(1 + random() % 9);
      std::vector<int32_t> ids;
      std::vector<tokens::TokenRange> prompts;
      for (int64_t k = 0; k < length; ++k) {
        ids.push_back(static_cast<int32_t>(counts.size() + 1));  // an id is its place and one
        const bool prompt = i % 4 != 0 && random() % 3 != 0;
        counts.push_back(k > 0 && !prompt);
        if (!prompt) continue;
        if (prompts.empty() || prompts.back().end < k) prompts.push_back({k, k});
        prompts.back().end = k + 1;
      }
      writer.add(ids, std::vector<int64_t>{length}, prompts);
      starts.push_back(starts.back() + length);
    }
    writer.finish();
    file = (folder.path() / "t.bin").string();
  }
  TokenDataset dataset() const { return TokenDataset({{file}, Format::megatron}, 65536); }

  // Each label is the next token of its document. It is ignored exactly if that token does not count.
  int64_t check(const Microbatch& microbatch) const {
    const auto* tokens = microbatch.tokens.data_ptr<int64_t>();
    const auto* labels = microbatch.labels.data_ptr<int64_t>();
    int64_t targets = 0;
    for (int64_t i = 0; i < microbatch.tokens.numel(); ++i) {
      if (tokens[i] == 0) continue;  // padding
      const auto next = static_cast<size_t>(tokens[i]);
      if (labels[i] == ignore_label) continue;
      CHECK(labels[i] == tokens[i] + 1);
      CHECK(counts[next]);
      ++targets;
    }
    CHECK(targets == microbatch.targets);
    return targets;
  }
};

}  // namespace

TEST_CASE_METHOD(Corpus, "prompts are counted and taken out as one does by hand") {
  const Prompts all(read_prompts(prompts_of(file), starts));
  const auto size = static_cast<int64_t>(counts.size());
  const auto is_prompt = [&](int64_t i) {
    const bool first = std::ranges::binary_search(starts, i);
    return !first && !counts[static_cast<size_t>(i)];
  };
  for (int64_t first = 0; first <= size; first += 3) {
    for (int64_t last = first; last <= size; last += 7) {
      int64_t expected = 0;
      for (int64_t i = first; i < last; ++i) expected += is_prompt(i);
      REQUIRE(all.count(first, last) == expected);
      std::vector<int64_t> labels(static_cast<size_t>(last - first), 5);
      all.ignore(first, labels);
      for (int64_t i = first; i < last; ++i)
        REQUIRE(labels[static_cast<size_t>(i - first)] == (is_prompt(i) ? ignore_label : 5));
    }
  }
}

TEST_CASE_METHOD(Corpus, "no token of a prompt is a target, and all others are once an epoch") {
  int64_t expected = 0;
  for (size_t i = 0; i < counts.size(); ++i) expected += counts[i];
  for (const Packing packing : {Packing::sequential, Packing::best_fit, Packing::none}) {
    for (const Lengths lengths : {Lengths::fixed, Lengths::exact, Lengths::padded}) {
      LoaderOptions options{.seq_len = 7, .micro_batch_size = 2, .microbatches = 2};
      options.packing = packing;
      options.lengths = lengths;
      options.pad_to_multiple_of = 4;
      const ValidationLoader loader(dataset(), options, 0);
      int64_t found = 0;
      for (int64_t i = 0; i < loader.batches(); ++i) {
        for (const Microbatch& microbatch : loader.batch(i)) found += check(microbatch);
      }
      CHECK(found == expected);
      // A slice of the stream that begins inside a document, and its counts over all ranks.
      const DataLoader part(dataset().slice(11, 300), options, true, 1);
      const Step step = part.step(4);
      int64_t targets = 0;
      for (const Microbatch& microbatch : step.microbatches) targets += check(microbatch);
      CHECK(targets == step.targets);
    }
  }
}

TEST_CASE_METHOD(Corpus, "files of prompts that do not fit are refused") {
  const auto path = folder.path() / "t.prompts";
  const std::string sound = ScratchFolder::read_file(path);
  const auto fault = [&](const std::string& bytes) {
    ScratchFolder::write_file(path, bytes);
    return [&] { dataset(); };
  };
  CHECK_NOTHROW(fault(sound)());
  CHECK_THROWS_WITH(fault("X" + sound.substr(1))(), contains_text("does not begin as"));
  CHECK_THROWS_WITH(fault(sound.substr(0, 10))(), contains_text("does not begin as"));
  CHECK_THROWS_WITH(fault(sound.substr(0, sound.size() - 4))(), contains_text("the header promises"));
  std::string other = sound;
  other[7] = 3;
  CHECK_THROWS_WITH(fault(other)(), contains_text("version 3, but only 1 and 2 are known"));
  std::string long_one = sound;
  long_one[24] = 100;  // the end of the first
  CHECK_THROWS_WITH(fault(long_one)(), contains_text("which lie in no document"));
  // They are part of the data, so that a change is noticed.
  ScratchFolder::write_file(path, sound);
  CHECK(data_files({{file}, Format::megatron}).size() == 3);
}

TEST_CASE_METHOD(Corpus, "one prompt at each document's beginning, as earlier versions wrote it") {
  std::string bytes("PROMPTS\1", 8);
  const auto append = [&]<typename T>(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  };
  append(uint64_t{80});
  std::vector<std::pair<int64_t, int64_t>> expected;
  for (size_t i = 0; i < 80; ++i) {
    const int64_t length = std::min<int64_t>(static_cast<int64_t>(i % 5), starts[i + 1] - starts[i]);
    append(static_cast<uint32_t>(length));
    if (length > 1) expected.emplace_back(starts[i] + 1, starts[i] + length);
  }
  ScratchFolder::write_file(prompts_of(file), bytes);
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const tokens::TokenRange& prompt : read_prompts(prompts_of(file), starts))
    found.emplace_back(prompt.begin, prompt.end);
  CHECK(found == expected);
  bytes[8] = 79;
  ScratchFolder::write_file(prompts_of(file), bytes.substr(0, bytes.size() - 4));
  CHECK_THROWS_WITH(read_prompts(prompts_of(file), starts),
                    contains_text("79 documents, but the index has 80"));
}

TEST_CASE("prompts that overlap, are empty or lie in no document are refused") {
  const ScratchFolder folder;
  const std::vector<int64_t> starts = {0, 4, 9};
  using Found = std::vector<std::pair<int64_t, int64_t>>;
  const auto read = [&](std::string bytes, uint64_t count, const auto& numbers) {
    bytes.append(reinterpret_cast<const char*>(&count), sizeof(count));
    bytes.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0]));
    Found found;
    for (const tokens::TokenRange& prompt : read_prompts(folder.write("p.prompts", bytes), starts))
      found.emplace_back(prompt.begin, prompt.end);
    return found;
  };
  const std::string one("PROMPTS\1", 8), two("PROMPTS\2", 8);
  using Places = std::vector<int64_t>;
  CHECK(read(two, 4, Places{1, 3, 3, 4, 4, 6, 7, 9}) == Found{{1, 3}, {3, 4}, {5, 6}, {7, 9}});
  CHECK(read(two, 1, Places{0, 1}).empty());  // a document's first token is no target anyway
  for (const Places& bad : {Places{1, 3, 2, 4}, {2, 2}, {3, 2}, {-2, 1}, {3, 5}, {8, 10}, {9, 10}})
    CHECK_THROWS_WITH(read(two, bad.size() / 2, bad),
                      contains_text("lie in no document behind the prompt before"));
  CHECK_THROWS_WITH(read(two, (uint64_t{1} << 63) + 1, Places{1, 3}), contains_text("the header promises"));
  CHECK(read(one, 2, std::vector<uint32_t>{4, 5}) == Found{{1, 4}, {5, 9}});
  CHECK_THROWS_WITH(read(one, 2, std::vector<uint32_t>{5, 0}),
                    contains_text("prompt of 5 tokens, but 4 tokens"));
}
