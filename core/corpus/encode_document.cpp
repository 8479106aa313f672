#include "core/corpus/encode_document.h"

namespace pptrain::corpus {

EncodedDocument encode_document(const tokenizer::Tokenizer& tokenizer, const Document& document,
                                bool has_prompt, const EncodeOptions& options, std::vector<int32_t>& ids) {
  if (document.text.empty()) return {};
  const size_t before = ids.size();
  EncodedDocument encoded;
  if (has_prompt) {
    const std::vector<int32_t> prompt = tokenizer.encode_prompt(document.prompt, options.add_special);
    ids.insert(ids.end(), prompt.begin(), prompt.end());
    encoded.prompt = static_cast<uint32_t>(prompt.size());
  }
  tokenizer.encode(document.text, options.add_special && !has_prompt, ids);
  const bool ended = ids.size() > before && options.end_id == ids.back();
  if (options.end_id && !ended) ids.push_back(*options.end_id);
  encoded.tokens = static_cast<int64_t>(ids.size() - before);
  return encoded;
}

}  // namespace pptrain::corpus
