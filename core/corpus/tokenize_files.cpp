#include "core/corpus/tokenize_files.h"

#include <numeric>
#include <utility>

#include "core/base/ordered_work.h"

namespace pptrain::corpus {
namespace {

struct Encoded {
  std::vector<int32_t> ids;
  std::vector<int64_t> lengths;   // of the documents
  std::vector<uint32_t> prompts;  // of these, where the format has prompts
  uint64_t bytes = 0;             // of the files that are done with it
  int64_t empty = 0;
};

Encoded encode(const tokenizer::Tokenizer& tokenizer, const Stretch& stretch,
               const TokenizeOptions& options) {
  Encoded out;
  out.bytes = stretch.bytes;
  const bool prompts = options.format.has_prompts();
  each_document(stretch, options.format, [&](const Document& document) {
    const EncodedDocument one = encode_document(tokenizer, document, prompts, options.encode, out.ids);
    if (one.tokens == 0) {
      ++out.empty;
      return;
    }
    out.lengths.push_back(one.tokens);
    if (prompts) out.prompts.push_back(one.prompt);
  });
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
  const auto take = [&](const Encoded& encoded) {
    writer.add(encoded.ids, encoded.lengths, encoded.prompts);
    progress.bytes += encoded.bytes;
    progress.empty += encoded.empty;
    progress.documents = writer.documents();
    progress.tokens = writer.tokens();
    progress.prompt_tokens =
        std::accumulate(encoded.prompts.begin(), encoded.prompts.end(), progress.prompt_tokens);
    report(progress);
  };
  OrderedWork<Stretch, Encoded>([&] { return source.next(); },
                                [&](const Stretch& stretch) { return encode(tokenizer, stretch, options); },
                                take)
      .run(options.threads);
  writer.finish();
  return progress;
}

}  // namespace pptrain::corpus
