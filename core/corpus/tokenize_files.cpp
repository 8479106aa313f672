#include "core/corpus/tokenize_files.h"

#include <spdlog/fmt/fmt.h>

#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/base/ordered_work.h"

namespace pptrain::corpus {

namespace {

struct Encoded {
  std::vector<int32_t> ids;
  std::vector<int64_t> lengths;   // of the documents
  std::vector<uint32_t> prompts;  // of these, where the format has prompts
  uint64_t bytes = 0;             // of the files that are done with it
  int64_t empty = 0;
  int64_t bad = 0;
  std::string first_bad;
};

// Adds the document's tokens. A prompt begins as a text does, with the tokens that the file puts before one
// (Tokenizer::encode_prompt), as generation reads it too; the text behind it is encoded by itself, without
// any.
void add_document(const tokenizer::Tokenizer& tokenizer, const Document& document,
                  const TokenizeOptions& options, Encoded& out) {
  const size_t before = out.ids.size();
  const bool has_prompt = options.format.has_prompts();
  std::vector<int32_t> prompt;
  if (!document.text.empty()) {
    if (has_prompt) prompt = tokenizer.encode_prompt(document.prompt, options.add_special);
    out.ids.insert(out.ids.end(), prompt.begin(), prompt.end());
    tokenizer.encode(document.text, options.add_special && !has_prompt, out.ids);
    const bool ended = out.ids.size() > before && options.end_id == out.ids.back();
    if (options.end_id && !ended) out.ids.push_back(*options.end_id);
  }
  if (out.ids.size() == before) {
    ++out.empty;
    return;
  }
  out.lengths.push_back(static_cast<int64_t>(out.ids.size() - before));
  if (has_prompt) out.prompts.push_back(static_cast<uint32_t>(prompt.size()));
}

Encoded encode(const tokenizer::Tokenizer& tokenizer, const Chunk& chunk, const TokenizeOptions& options) {
  Encoded out;
  out.bytes = chunk.bytes;
  const auto take = [&](const Document& document) { add_document(tokenizer, document, options, out); };
  const auto pass_over = [&](const std::string& what) {
    if (out.bad++ == 0) out.first_bad = what;
  };
  each_document(chunk, options.format, take, pass_over);
  return out;
}

}  // namespace

TokenizeProgress tokenize_files(const tokenizer::Tokenizer& tokenizer,
                                const std::vector<std::filesystem::path>& files,
                                const TokenizeOptions& options, TokenWriter& writer,
                                const std::function<void(const TokenizeProgress&)>& report) {
  DocumentSource source(files, options.format);
  TokenizeProgress progress;
  progress.total_bytes = source.bytes();
  progress.end_id = options.end_id;
  const auto take = [&](const Encoded& encoded) {
    writer.add(encoded.ids, encoded.lengths, encoded.prompts);
    progress.bytes += encoded.bytes;
    progress.empty += encoded.empty;
    if (progress.bad == 0) progress.first_bad = encoded.first_bad;
    progress.bad += encoded.bad;
    progress.documents = writer.documents();
    progress.tokens = writer.tokens();
    progress.prompt_tokens =
        std::accumulate(encoded.prompts.begin(), encoded.prompts.end(), progress.prompt_tokens);
    report(progress);
  };
  OrderedWork<Chunk, Encoded>([&] { return source.next(); },
                              [&](const Chunk& chunk) { return encode(tokenizer, chunk, options); }, take)
      .run(options.threads);
  if (progress.documents == 0) {
    throw UsageError(fmt::format(
        "'{}'{} has no document with a text{}", files.front().string(),
        files.size() == 1 ? "" : fmt::format(" with {} more files", files.size() - 1),
        progress.bad == 0
            ? ""
            : fmt::format("; {} lines were left out, the first: {}", progress.bad, progress.first_bad)));
  }
  writer.finish();
  return progress;
}

}  // namespace pptrain::corpus
