#include "core/text/tokenizer/tokenizer.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/base/error.h"
#include "core/io/mapped_file.h"
#include "core/io/paths.h"
#include "core/io/strict_json.h"
#include "core/text/tokenizer/added_tokens.h"
#include "core/text/tokenizer/bpe.h"
#include "core/text/tokenizer/decoder.h"
#include "core/text/tokenizer/json_part.h"
#include "core/text/tokenizer/normalizer.h"
#include "core/text/tokenizer/pre_tokenizer.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::tokenizer {
namespace {

// What one thread encodes with.
struct Scratch {
  std::string repaired;
  std::string normalized[2];
  std::shared_ptr<PreTokenizer::Scratch> words = PreTokenizer::make_scratch();
  std::shared_ptr<Bpe::Scratch> bpe = Bpe::make_scratch();
};

// Scratches that no thread uses at the moment. A thread gets one that has seen words before.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

nlohmann::json read_json(const std::filesystem::path& path) {
  return io::parse_strict_json(io::MappedFile(path).text(), path.string());
}

// Tokens around a text: "post_processor" of tokenizer.json, as far as it acts on one text.
struct TokenTemplate {
  std::vector<int32_t> before, after;
  bool read = false;  // is there one that adds tokens?

  // TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel (nothing) and Sequence. Throws Error
  // that names any other.
  void add(const JsonPart& part);

 private:
  void add_pieces(const JsonPart& part);
};

int32_t read_id(const JsonPart& part) {
  return static_cast<int32_t>(part.integer(0, largest_id));
}

// ["[SEP]", 102]
int32_t read_named_id(const JsonPart& part) {
  const std::vector<JsonPart> pair = part.elements();
  if (pair.size() != 2) part.refuse("must be a token and its id");
  return read_id(pair[1]);
}

void TokenTemplate::add(const JsonPart& part) {
  const std::string type = part.type();
  if (type == "Sequence") {
    part.only({"type", "processors"});
    for (const JsonPart& each : part.at("processors").elements()) add(each);
    return;
  }
  if (type == "ByteLevel") return;  // of offsets alone
  if (read) part.refuse("two post-processors that add tokens are not supported");
  if (type == "TemplateProcessing") {
    part.only({"type", "single", "pair", "special_tokens"});
    add_pieces(part);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    part.only({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    before.push_back(read_named_id(part.at("cls")));
    after.push_back(read_named_id(part.at("sep")));
  } else {
    part.refuse(fmt::format("the post-processor '{}' is not supported", type));
  }
  read = true;
}

void TokenTemplate::add_pieces(const JsonPart& part) {
  bool text_seen = false;
  for (const JsonPart& piece : part.at("single").elements()) {
    piece.only({"Sequence", "SpecialToken"});
    if (piece.value().size() != 1) piece.refuse("must have either 'Sequence' or 'SpecialToken'");
    if (const auto sequence = piece.find("Sequence")) {
      if (text_seen || sequence->text("id") != "A") piece.refuse("the text must be there once, as 'A'");
      text_seen = true;
      continue;
    }
    const std::string name = piece.at("SpecialToken").text("id");
    const JsonPart token = part.at("special_tokens").at(name.c_str());
    for (const JsonPart& id : token.at("ids").elements()) (text_seen ? after : before).push_back(read_id(id));
  }
  if (!text_seen) part.at("single").refuse("the text is missing");
}

// Pieces as one text.
struct MarkedText {
  std::string text;
  std::vector<TextRange> quoted;
  std::vector<size_t> borders;  // bytes at which marks begin, end, begin, ...

  explicit MarkedText(std::span<const Piece> pieces) {
    for (const Piece& piece : pieces) {
      const size_t begin = text.size();
      if (piece.marked == (borders.size() % 2 == 0)) borders.push_back(begin);
      append_repaired(text, piece.text);
      if (piece.quoted) quoted.push_back({begin, text.size()});
    }
    if (borders.size() % 2 == 1) borders.push_back(text.size());
  }
};

}  // namespace

struct Tokenizer::Parts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  AddedTokens added;
  TokenTemplate around;
  Decoder decoder;
  std::unordered_map<int32_t, std::string> shown;  // all tokens as they are decoded
  std::unordered_set<int32_t> special;
  int64_t vocab_size = 0;
  std::optional<int32_t> bos, eos;
  std::vector<int32_t> stops;
  ScratchPool pool;

  explicit Parts(const JsonPart& part);
  void read_shown();
  void check_around(const JsonPart& part) const;  // its ids are those of tokens
  void encode(std::string_view text, bool add_special, Scratch& scratch, std::vector<int32_t>& ids) const;
  void encode_stretch(std::string_view text, size_t begin, Scratch& scratch, std::vector<int32_t>& ids) const;
  std::vector<size_t> encode_marked(const MarkedText& marked, Scratch& scratch,
                                    std::vector<int32_t>& ids) const;
  size_t ids_before(std::string_view prefix, size_t begin, std::span<const int32_t> ids, bool and_across,
                    Scratch& scratch) const;
};

namespace {

// What has no part of its own: the version is the one known, and what is ignored is said.
void check_definition(const JsonPart& part) {
  part.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
             "post_processor", "decoder", "model"});
  if (const auto version = part.find("version"); version && version->text() != "1.0") {
    version->refuse(fmt::format("the version '{}' is not supported, only 1.0 is", version->text()));
  }
  for (const char* key : {"truncation", "padding"}) {
    if (const auto set = part.find(key)) set->warn("ignored, texts keep all their tokens and get no others");
  }
}

}  // namespace

Tokenizer::Parts::Parts(const JsonPart& part) {
  check_definition(part);
  const JsonPart bpe = part.at("model");
  // First, since other models have normalizers of their own. Older files say no type.
  if (bpe.find("type") && bpe.type() != "BPE")
    bpe.refuse(fmt::format("the model '{}' is not supported, only BPE is", bpe.type()));
  if (const auto set = part.find("normalizer")) normalizer = Normalizer(*set);
  if (const auto set = part.find("pre_tokenizer")) pre_tokenizer = PreTokenizer(*set);
  model = Bpe(bpe, pre_tokenizer.byte_level());
  if (const auto set = part.find("added_tokens")) added = AddedTokens(*set, model, normalizer);
  // Where the input begins is known only if its first character keeps its place.
  if (pre_tokenizer.looks_at_begin() &&
      (!normalizer.keeps_begin() || (!normalizer.is_identity() && added.any_normalized()))) {
    part.at("pre_tokenizer").refuse("prepend_scheme 'first' together with this normalizer is not supported");
  }
  if (const auto set = part.find("post_processor")) around.add(*set);
  if (const auto set = part.find("decoder")) decoder = Decoder(*set);
  read_shown();
  check_around(part);
}

void Tokenizer::Parts::check_around(const JsonPart& part) const {
  for (const auto* ids : {&around.before, &around.after}) {
    for (const int32_t id : *ids) {
      if (!shown.contains(id)) part.at("post_processor").refuse(fmt::format("{} is the id of no token", id));
    }
  }
}

void Tokenizer::Parts::read_shown() {
  shown = model.tokens();
  std::unordered_set<std::string> specials;
  for (const AddedToken& token : added.tokens()) {
    shown[token.id] = token.shown;
    if (token.special) specials.insert(token.content);
  }
  for (const auto& [id, token] : shown) {
    vocab_size = std::max<int64_t>(vocab_size, int64_t{id} + 1);
    if (specials.contains(token)) special.insert(id);
  }
  decoder.set_tokens(shown);
}

void Tokenizer::Parts::encode(std::string_view text, bool add_special, Scratch& scratch,
                              std::vector<int32_t>& ids) const {
  if (const size_t valid = valid_utf8_prefix(text); valid < text.size()) {
    scratch.repaired.assign(text.substr(0, valid));
    append_repaired(scratch.repaired, text.substr(valid));
    text = scratch.repaired;
  }
  if (add_special) ids.insert(ids.end(), around.before.begin(), around.before.end());
  added.cut_plain(
      text, [&](std::string_view part, size_t begin) { encode_stretch(part, begin, scratch, ids); },
      [&](int32_t id, size_t /*begin*/) { ids.push_back(id); });
  if (add_special) ids.insert(ids.end(), around.after.begin(), around.after.end());
}

// What lies between tokens that are looked for in the text as it was given.
void Tokenizer::Parts::encode_stretch(std::string_view text, size_t begin, Scratch& scratch,
                                      std::vector<int32_t>& ids) const {
  const std::string_view normalized = normalizer.apply(text, scratch.normalized);
  const bool newer = has_newer_character(normalized);
  const WordSink word = [&](std::string_view each) { model.encode(each, *scratch.bpe, ids); };
  added.cut_normalized(
      normalized,
      [&](std::string_view part, size_t part_begin) {
        pre_tokenizer.cut(part, begin == 0 && part_begin == 0, newer, *scratch.words, word);
      },
      [&](int32_t id, size_t /*begin*/) { ids.push_back(id); });
}

std::vector<size_t> Tokenizer::Parts::encode_marked(const MarkedText& marked, Scratch& scratch,
                                                    std::vector<int32_t>& ids) const {
  const size_t first = ids.size();
  std::vector<size_t> counts;  // of ids before each border
  const auto border_before = [&](size_t end) {
    return counts.size() < marked.borders.size() && marked.borders[counts.size()] < end;
  };
  const auto text = [&](std::string_view part, size_t begin) {
    while (border_before(begin + 1)) counts.push_back(ids.size() - first);
    const size_t before = ids.size();
    encode_stretch(part, begin, scratch, ids);
    while (border_before(begin + part.size())) {
      const std::string_view prefix = part.substr(0, marked.borders[counts.size()] - begin);
      const bool marks_end = counts.size() % 2 == 1;
      counts.push_back(before - first +
                       ids_before(prefix, begin, std::span(ids).subspan(before), marks_end, scratch));
    }
  };
  added.cut_plain(
      marked.text, text,
      [&](int32_t id, size_t begin) {
        while (border_before(begin + 1)) counts.push_back(ids.size() - first);
        ids.push_back(id);
      },
      marked.quoted);
  counts.resize(marked.borders.size(), ids.size() - first);
  return counts;
}

// How many of a stretch's `ids` lie in its first bytes; with `and_across` one that goes on behind them too.
// Bytes are counted in the normalized text, so they are counted on the ids of the prefix alone.
size_t Tokenizer::Parts::ids_before(std::string_view prefix, size_t begin, std::span<const int32_t> ids,
                                    bool and_across, Scratch& scratch) const {
  std::vector<int32_t> alone;
  encode_stretch(prefix, begin, scratch, alone);
  size_t bytes = 0, count = 0;
  for (const int32_t id : alone) bytes += decoder.bytes_of(id);
  for (; count < ids.size() && decoder.bytes_of(ids[count]) <= bytes; ++count)
    bytes -= decoder.bytes_of(ids[count]);
  return count + (and_across && bytes > 0 && count < ids.size() ? 1 : 0);
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& name) {
  const nlohmann::json document = io::parse_strict_json(json, name);
  return Tokenizer(std::make_shared<Parts>(JsonPart(document, name)));
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  const std::filesystem::path file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  const nlohmann::json document = read_json(file);
  Tokenizer tokenizer(std::make_shared<Parts>(JsonPart(document, file.string())));
  tokenizer.read_neighbours(file.parent_path());
  return tokenizer;
}

std::optional<NamedToken> named_token(const std::filesystem::path& folder, const char* name) {
  for (const char* const file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::filesystem::path path = folder / file;
    if (!io::is_there(path)) continue;
    const nlohmann::json document = read_json(path);
    if (const auto token = JsonPart(document, path.string()).find(name))
      return NamedToken{.text = token->value().is_object() ? token->text("content") : token->text(),
                        .place = fmt::format("{}: {}", path.string(), name)};
  }
  return std::nullopt;
}

void Tokenizer::read_neighbours(const std::filesystem::path& folder) {
  Parts& parts = *parts_;
  if (const auto bos = named_token(folder, "bos_token")) parts.bos = id_of(bos->text);
  if (const auto eos = named_token(folder, "eos_token")) {
    parts.eos = id_of(eos->text);
    if (!parts.eos) throw Error(fmt::format("{}: '{}' is no token of tokenizer.json", eos->place, eos->text));
    parts.stops.push_back(*parts.eos);
  }
  if (const auto path = folder / "generation_config.json"; std::filesystem::exists(path)) {
    const nlohmann::json document = read_json(path);
    const JsonPart config(document, path.string());
    if (const auto stop = config.find("eos_token_id")) {
      const bool several = stop->value().is_array();
      for (const JsonPart& each : several ? stop->elements() : std::vector{*stop}) {
        const int32_t id = read_id(each);
        if (std::ranges::find(parts.stops, id) == parts.stops.end()) parts.stops.push_back(id);
      }
      if (!parts.eos && parts.stops.size() == 1) parts.eos = parts.stops[0];
    }
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  std::vector<int32_t> ids;
  encode(text, add_special, ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, bool add_special, std::vector<int32_t>& ids) const {
  std::unique_ptr<Scratch> scratch = parts_->pool.take();
  parts_->encode(text, add_special, *scratch, ids);
  parts_->pool.give(std::move(scratch));
}

std::vector<int32_t> Tokenizer::encode_prompt(std::string_view text, bool add_special) const {
  std::vector<int32_t> ids = encode(text, add_special);
  if (add_special) ids.resize(ids.size() - parts_->around.after.size());
  return ids;
}

std::vector<size_t> Tokenizer::encode_pieces(std::span<const Piece> pieces, std::vector<int32_t>& ids) const {
  std::unique_ptr<Scratch> scratch = parts_->pool.take();
  std::vector<size_t> counts = parts_->encode_marked(MarkedText(pieces), *scratch, ids);
  parts_->pool.give(std::move(scratch));
  return counts;
}

void Tokenizer::require_pieces() const {
  if (!parts_->decoder.has_bytes())
    throw UsageError("tokenizer.json has no decoder, which says what text each token stands for");
  for (const AddedToken& token : parts_->added.tokens()) {
    if (token.special && token.normalized)
      throw UsageError(
          fmt::format("tokenizer.json looks for its special token '{}' in normalized text (\"normalized\": "
                      "true), where a "
                      "message cannot be told from the template: set it to false",
                      token.content));
  }
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  if (!skip_special || parts_->special.empty()) return parts_->decoder.decode(ids);
  std::vector<int32_t> kept;
  kept.reserve(ids.size());
  std::ranges::copy_if(ids, std::back_inserter(kept), [this](int32_t id) { return !is_special(id); });
  return parts_->decoder.decode(kept);
}

int64_t Tokenizer::vocab_size() const {
  return parts_->vocab_size;
}

int64_t Tokenizer::least_vocab_size() const {
  int64_t size = 0;
  const auto count = [&size](int32_t id) { size = std::max(size, int64_t{id} + 1); };
  for (const auto& [id, token] : parts_->model.tokens()) count(id);
  for (const auto* ids : {&parts_->around.before, &parts_->around.after}) std::ranges::for_each(*ids, count);
  for (const auto& id : {parts_->bos, parts_->eos}) {
    if (id) count(*id);
  }
  return size;
}

bool Tokenizer::begins_twice(std::span<const int32_t> ids) const {
  const std::vector<int32_t>& before = parts_->around.before;
  return !before.empty() && ids.size() >= 2 * before.size() &&
         std::ranges::equal(ids.subspan(before.size(), before.size()), before) &&
         std::ranges::equal(ids.first(before.size()), before);
}

void Tokenizer::require_known(std::span<const int32_t> ids, int64_t vocab_size) const {
  const auto unknown = std::ranges::find_if(ids, [&](int32_t id) { return id >= vocab_size; });
  if (unknown == ids.end()) return;
  throw UsageError(fmt::format(
      "a text has the token {}, whose id {} the model does not know: model.vocab_size = {}. Take it out of "
      "the text",
      token_of(*unknown).value_or(""), *unknown, vocab_size));
}

std::optional<int32_t> Tokenizer::id_of(const std::string& token) const {
  for (const AddedToken& added : parts_->added.tokens()) {
    if (added.content == token) return added.id;
  }
  return parts_->model.find(token);
}

std::optional<std::string> Tokenizer::token_of(int32_t id) const {
  const auto found = parts_->shown.find(id);
  return found == parts_->shown.end() ? std::nullopt : std::optional(found->second);
}

bool Tokenizer::is_special(int32_t id) const {
  return parts_->special.contains(id);
}

std::optional<int32_t> Tokenizer::bos_id() const {
  return parts_->bos;
}

std::vector<uint32_t> Tokenizer::token_bytes() const {
  if (!parts_->decoder.has_bytes()) return {};
  std::vector<uint32_t> bytes(static_cast<size_t>(parts_->vocab_size), 0);
  for (size_t id = 0; id < bytes.size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    if (!parts_->special.contains(token)) bytes[id] = static_cast<uint32_t>(parts_->decoder.bytes_of(token));
  }
  return bytes;
}

std::optional<int32_t> Tokenizer::eos_id() const {
  return parts_->eos;
}

const std::vector<int32_t>& Tokenizer::stop_ids() const {
  return parts_->stops;
}

std::string StreamDecoder::put(int32_t id) {
  ids_.push_back(id);
  return take(false);
}

std::string StreamDecoder::finish() {
  std::string rest = take(true);
  ids_.clear();
  out_ = 0;
  shown_.clear();
  return rest;
}

std::string StreamDecoder::take(bool all) {
  const std::string text = tokenizer_.decode(ids_, skip_special_);
  if (text.size() <= shown_.size() || (!all && text.ends_with(replacement_character))) return "";
  std::string added = text.starts_with(shown_)
                          ? text.substr(shown_.size())
                          : tokenizer_.decode(std::span(ids_).subspan(out_), skip_special_);
  // The next tokens are decoded after those that waited. Exception: a decoder that takes all of them from the
  // beginning of a text, where they do not stand.
  std::string shown = tokenizer_.decode(std::span(ids_).subspan(out_), skip_special_);
  if (shown.empty()) {
    shown = text;
  } else {
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(out_));
  }
  shown_ = std::move(shown);
  out_ = ids_.size();
  return added;
}

}  // namespace pptrain::tokenizer
