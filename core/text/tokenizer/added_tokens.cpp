#include "core/text/tokenizer/added_tokens.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "core/text/tokenizer/unicode.h"

namespace pptrain::tokenizer {

// Finds, from left to right, the longest token that begins at each place.
class TokenFinder {
 public:
  void add(const std::string& text, size_t token);
  bool empty() const { return tokens_.empty(); }
  struct FoundToken {
    size_t begin, end, token;
  };
  // The first one at `from` or behind; begin = npos: none.
  FoundToken find(std::string_view text, size_t from) const;

 private:
  std::unordered_map<std::string, size_t> tokens_;
  std::array<std::vector<size_t>, 256> lengths_;  // of those that begin with a byte, the longest first
  std::array<bool, 256> begins_{};
};

void TokenFinder::add(const std::string& text, size_t token) {
  tokens_.emplace(text, token);
  const auto first = static_cast<unsigned char>(text[0]);
  begins_[first] = true;
  std::vector<size_t>& lengths = lengths_[first];
  if (std::ranges::find(lengths, text.size()) == lengths.end()) lengths.push_back(text.size());
  std::ranges::sort(lengths, std::greater());
}

TokenFinder::FoundToken TokenFinder::find(std::string_view text, size_t from) const {
  std::string candidate;
  for (size_t at = from; at < text.size(); ++at) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (!begins_[first]) continue;
    for (const size_t length : lengths_[first]) {
      if (length > text.size() - at) continue;
      candidate = text.substr(at, length);
      if (const auto found = tokens_.find(candidate); found != tokens_.end())
        return {at, at + length, found->second};
    }
  }
  return {std::string_view::npos, 0, 0};
}

namespace {

AddedToken read_token(const JsonPart& part) {
  part.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.content = token.shown = part.text("content");
  if (token.content.empty()) part.refuse("'content' is empty");
  token.id = static_cast<int32_t>(part.at("id").integer(0, largest_id));
  token.single_word = part.flag("single_word");
  token.lstrip = part.flag("lstrip");
  token.rstrip = part.flag("rstrip");
  token.normalized = part.flag("normalized");
  token.special = part.flag("special");
  return token;
}

// Does [begin, end) overlap one of the ascending ranges?
bool touches(std::span<const TextRange> ranges, size_t begin, size_t end) {
  const auto range = std::ranges::upper_bound(ranges, begin, {}, &TextRange::end);
  return range != ranges.end() && range->begin < end;
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  const bool before = begin > 0 && is_word(code_point(text, previous_code_point(text, begin)).value);
  const bool behind = end < text.size() && is_word(code_point(text, end).value);
  return !before && !behind;
}

}  // namespace

AddedTokens::AddedTokens(const JsonPart& part, const Bpe& model, const Normalizer& normalizer) {
  std::unordered_set<std::string> contents, plain, normalized;
  auto plain_finder = std::make_shared<TokenFinder>(), normalized_finder = std::make_shared<TokenFinder>();
  auto next = static_cast<int64_t>(model.size());
  for (const JsonPart& each : part.elements()) {
    AddedToken token = read_token(each);
    if (!contents.insert(token.content).second)
      each.refuse(fmt::format("'{}' is there twice", token.content));
    const auto known = model.find(token.content);
    const int64_t id = known ? *known : next++;
    if (id != token.id) {
      each.refuse(fmt::format(
          "'{}' has the id {}, but {} {}; the tokenizers package would number it so, whatever the file says",
          token.content, token.id, known ? "in the model's vocabulary it has" : "the next that is free is",
          id));
    }
    if (token.normalized) token.shown = normalizer.apply(token.content);
    if (token.shown.empty())
      each.refuse(fmt::format("'{}' becomes empty when it is normalised", token.content));
    if (!(token.normalized ? normalized : plain).insert(token.shown).second) {
      each.refuse(fmt::format("'{}' is equal to another one when it is normalised", token.content));
    }
    (token.normalized ? normalized_finder : plain_finder)->add(token.shown, tokens_.size());
    tokens_.push_back(std::move(token));
  }
  plain_ = std::move(plain_finder);
  normalized_ = std::move(normalized_finder);
}

bool AddedTokens::any_normalized() const {
  return normalized_ && !normalized_->empty();
}

void AddedTokens::cut_plain(std::string_view input, const TextSink& text, const TokenSink& token,
                            std::span<const TextRange> quoted) const {
  cut(plain_.get(), input, text, token, quoted);
}

void AddedTokens::cut_normalized(std::string_view input, const TextSink& text, const TokenSink& token) const {
  cut(normalized_.get(), input, text, token, {});
}

// As AddedVocabulary::find_matches: blanks that a token takes may overlap the next token.
void AddedTokens::cut(const TokenFinder* finder, std::string_view input, const TextSink& text,
                      const TokenSink& token, std::span<const TextRange> quoted) const {
  size_t done = 0;
  if (finder != nullptr && !finder->empty()) {
    for (size_t from = 0;;) {
      const TokenFinder::FoundToken found = finder->find(input, from);
      if (found.begin == std::string_view::npos) break;
      const AddedToken& added = tokens_[found.token];
      if (added.special && touches(quoted, found.begin, found.end)) {
        from = found.begin + 1;
        continue;
      }
      from = found.end;
      if (added.single_word && !is_single_word(input, found.begin, found.end)) continue;
      const size_t begin = added.lstrip ? std::max(blanks_begin(input, found.begin), done) : found.begin;
      const size_t end = added.rstrip ? blanks_end(input, found.end) : found.end;
      if (done < begin) text(input.substr(done, begin - done), done);
      // The package drops a token of no text, which blanks taken before may leave.
      if (begin < end) token(added.id, begin);
      done = end;
    }
  }
  if (done < input.size()) text(input.substr(done), done);
}

}  // namespace pptrain::tokenizer
