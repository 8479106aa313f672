#include "core/text/corpus/tokenize_files.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <span>

#include "core/base/error.h"
#include "core/base/ordered_work.h"

namespace pptrain::corpus {

namespace {

struct Encoded {
  std::vector<int32_t> ids;
  std::vector<int64_t> lengths;             // of the documents
  std::vector<tokens::TokenRange> prompts;  // of these
  uint64_t bytes = 0;                       // of the files that are done with it
  uint64_t text_bytes = 0;
  int64_t empty = 0;
  int64_t truncated = 0;
  int64_t without_targets = 0;
  int64_t begun_twice = 0;
  int64_t bad = 0;
  std::string first_bad;
};

using Borders = std::vector<size_t>;  // of a document's tokens: targets begin, end, begin, ...

// A prompt begins as a text does, with the tokens that the file puts before one (Tokenizer::encode_prompt),
// as generation reads it too; the text behind it is encoded by itself, without any.
Borders add_text(const tokenizer::Tokenizer& tokenizer, const Document& document,
                 const TokenizeRequest& request, std::vector<int32_t>& ids) {
  if (document.text.empty()) return {};
  const size_t before = ids.size();
  const bool has_prompt = request.format.has_prompts();
  std::vector<int32_t> prompt;
  if (has_prompt) prompt = tokenizer.encode_prompt(document.prompt, request.add_special);
  ids.insert(ids.end(), prompt.begin(), prompt.end());
  tokenizer.encode(document.text, request.add_special && !has_prompt, ids);
  const bool ended = ids.size() > before && request.end_id == ids.back();
  if (request.end_id && !ended) ids.push_back(*request.end_id);
  return {prompt.size(), ids.size() - before};
}

Borders add_tokens(const tokenizer::Tokenizer* tokenizer, const Document& document,
                   const TokenizeRequest& request, std::vector<int32_t>& ids) {
  if (request.format.has_messages()) return tokenizer->encode_pieces(document.pieces, ids);
  if (!request.format.has_tokens()) return add_text(*tokenizer, document, request, ids);
  ids.insert(ids.end(), document.ids.begin(), document.ids.end());
  return document.borders;
}

// Adds what lies between targets, of a document of the ids [first, last).
void add_prompts(const Borders& borders, int64_t first, int64_t last,
                 std::vector<tokens::TokenRange>& prompts) {
  int64_t begin = first;
  for (size_t i = 0; i + 1 < borders.size(); i += 2) {
    const int64_t end = std::min(last, first + static_cast<int64_t>(borders[i]));
    if (begin < end) prompts.push_back({begin, end});
    begin = first + static_cast<int64_t>(borders[i + 1]);
  }
  if (begin < last) prompts.push_back({begin, last});
}

// Is one of the first `length` tokens a target? Nothing before the very first token predicts it.
bool has_target(const Borders& borders, size_t length) {
  for (size_t i = 0; i + 1 < borders.size(); i += 2) {
    if (std::max<size_t>(borders[i], 1) < std::min(borders[i + 1], length)) return true;
  }
  return false;
}

void add_document(const tokenizer::Tokenizer* tokenizer, const Document& document,
                  const TokenizeRequest& request, Encoded& out) {
  const size_t before = out.ids.size();
  const Borders borders = add_tokens(tokenizer, document, request, out.ids);
  if (tokenizer != nullptr && request.format.vocab_size > 0)
    tokenizer->require_known(std::span(out.ids).subspan(before), request.format.vocab_size);
  if (out.ids.size() == before) {
    ++out.empty;
    return;
  }
  out.text_bytes += document.prompt.size() + document.text.size();
  for (const tokenizer::Piece& piece : document.pieces) out.text_bytes += piece.text.size();
  const bool is_text = tokenizer != nullptr && !request.format.has_messages();
  if (is_text && request.add_special && tokenizer->begins_twice(std::span(out.ids).subspan(before)))
    ++out.begun_twice;
  const size_t longest = request.max_tokens > 0 ? static_cast<size_t>(request.max_tokens) : out.ids.size();
  if (out.ids.size() - before > longest) {
    out.ids.resize(before + longest);
    ++out.truncated;
  }
  out.lengths.push_back(static_cast<int64_t>(out.ids.size() - before));
  if (!has_target(borders, out.ids.size() - before)) ++out.without_targets;
  add_prompts(borders, static_cast<int64_t>(before), static_cast<int64_t>(out.ids.size()), out.prompts);
}

Encoded encode(const tokenizer::Tokenizer* tokenizer, const Chunk& chunk, const TokenizeRequest& request) {
  Encoded out;
  out.bytes = chunk.bytes;
  const auto take = [&](const Document& document) {
    try {
      add_document(tokenizer, document, request, out);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("'{}': {}", chunk.file.string(), error.what()));
    }
  };
  const auto pass_over = [&](const std::string& what) {
    if (out.bad++ == 0) out.first_bad = what;
  };
  each_document(chunk, request.format, take, pass_over);
  return out;
}

void add_to(TokenizeProgress& progress, const Encoded& encoded) {
  progress.bytes += encoded.bytes;
  progress.text_bytes += encoded.text_bytes;
  progress.empty += encoded.empty;
  if (progress.bad == 0) progress.first_bad = encoded.first_bad;
  progress.bad += encoded.bad;
  progress.documents += static_cast<int64_t>(encoded.lengths.size());
  progress.tokens += static_cast<int64_t>(encoded.ids.size());
  progress.truncated += encoded.truncated;
  progress.begun_twice += encoded.begun_twice;
  progress.without_targets += encoded.without_targets;
  for (const tokens::TokenRange& prompt : encoded.prompts)
    progress.prompt_tokens += prompt.end - prompt.begin;
}

}  // namespace

TokenizeProgress tokenize_files(const tokenizer::Tokenizer* tokenizer, const TokenizeRequest& request,
                                TokenWriter& writer,
                                const std::function<void(const TokenizeProgress&)>& report) {
  if (request.format.has_messages()) request.format.chat->require_tokens(*tokenizer);
  TokenizeProgress progress;
  progress.total_bytes = bytes_of(request.files);
  progress.end_id = request.end_id;
  const auto take = [&](const Encoded& encoded) {
    writer.add(encoded.ids, encoded.lengths, encoded.prompts);
    add_to(progress, encoded);
    report(progress);
  };
  OrderedWork<Chunk, Encoded>(
      chunks_of(request.files, request.format),
      [&](const Chunk& chunk) { return encode(tokenizer, chunk, request); }, take)
      .run(request.threads);
  if (progress.documents == 0) {
    throw UsageError(fmt::format(
        "'{}'{} has no document with a text{}", request.files.front().string(),
        request.files.size() == 1 ? "" : fmt::format(" with {} more files", request.files.size() - 1),
        progress.bad == 0
            ? ""
            : fmt::format("; {} lines were left out, the first: {}", progress.bad, progress.first_bad)));
  }
  writer.finish();
  return progress;
}

Sample tokenize_sample(const tokenizer::Tokenizer* tokenizer, const TokenizeRequest& request) {
  if (request.format.has_messages()) request.format.chat->require_tokens(*tokenizer);
  Sample sample{.progress = {}, .whole = request.files.size() <= 2};
  std::vector<std::filesystem::path> files{request.files.front()};
  if (request.files.size() > 1) files.push_back(request.files.back());
  for (const std::filesystem::path& file : files) {
    const NextChunk next = open_chunks(file, request.format);
    const auto chunk = next();
    if (!chunk) continue;
    if (request.format.marks_targets()) {
      add_to(sample.progress, encode(tokenizer, *chunk, request));
      sample.whole = sample.whole && !next();
    } else {  // a text may be as long as its file
      each_document(*chunk, request.format, [](const Document&) {});
    }
  }
  return sample;
}

}  // namespace pptrain::corpus
