#include "core/text/corpus/folder_template.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/io/mapped_file.h"
#include "core/io/paths.h"
#include "core/io/strict_json.h"
#include "core/text/corpus/chat_check.h"
#include "core/text/corpus/jinja/template.h"

namespace pptrain::corpus {
namespace {

namespace fs = std::filesystem;
using jinja::Range;
using jinja::Rendered;
using jinja::Text;
using tokenizer::Piece;

// Ranges of the messages' texts in what a template wrote: for each from its first byte to behind its last.
std::vector<std::optional<Range>> places_of(const Text& text, size_t messages) {
  std::vector<std::optional<Range>> places(messages);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.origin(i) == jinja::from_template) continue;
    std::optional<Range>& place = places[static_cast<size_t>(text.origin(i))];
    if (!place) place = Range{i, i};
    place->end = i + 1;
  }
  return places;
}

std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

// The common beginning of both, without a part of a special token at its end.
size_t same_beginning(std::string_view one, std::string_view other) {
  const auto same = static_cast<size_t>(std::ranges::mismatch(one, other).in1 - one.begin());
  return same == one.size() ? same : one.substr(0, same).find_last_of(">] \t\n") + 1;
}

std::string in_quotes(std::string_view text) {
  return one_line(nlohmann::json(text));
}

class FolderTemplate final : public ChatTemplate {
 public:
  // `tokens`: bos_token and its like. Throws Error with the reason.
  FolderTemplate(std::string source, jinja::Map tokens)
      : source_(std::move(source)), tokens_(std::move(tokens)), template_(source_) {
    for (const std::string_view key : reasoning_keys) {
      if (writes_reasoning(key)) written_keys_.push_back(key);
    }
    constexpr std::array sample = {Message{"user", "u"}, Message{"assistant", "a"}, Message{"user", "v"},
                                   Message{"assistant", "b"}};
    marks_itself_ = !run(std::span(sample).first(2), false).generations.empty();
    if (marks_itself_) return;
    const std::string asked(run(std::span(sample).first(1), false).text.bytes());
    const std::string prompted(run(std::span(sample).first(1), true).text.bytes());
    prompt_ = prompted.substr(same_beginning(asked, prompted));
    find_ends(run(std::span(sample).first(2), false).text, run(sample, false).text);
  }

  std::vector<Piece> render(std::span<const Message> messages) const override {
    check_roles(messages);
    check_answered(messages);
    const Rendered rendered = run(messages, false);
    return pieces_of(rendered.text,
                     marks_itself_ ? blocks(rendered, messages) : answers(rendered.text, messages));
  }
  std::vector<Piece> prompt(std::span<const Message> messages) const override {
    check_roles(messages);
    return pieces_of(run(messages, true).text, {});
  }
  bool takes_reasoning(std::string_view key) const override {
    return std::ranges::find(written_keys_, key) != written_keys_.end();
  }
  std::vector<std::string> texts() const override {
    std::vector<std::string> all{"folder", source_};
    for (const auto& [name, value] : tokens_.items)
      all.push_back(name + "=" + std::string(value.text().bytes()));
    return all;
  }
  void require_tokens(const tokenizer::Tokenizer& tokenizer) const override { tokenizer.require_pieces(); }

 private:
  Rendered run(std::span<const Message> messages, bool prompts) const {
    jinja::List list;
    for (const Message& message : messages) {
      const auto origin = static_cast<jinja::Origin>(list.size());
      jinja::Map map;
      map.set("role", message.role);
      map.set("content", {message.content, origin});
      if (!message.reasoning_key.empty())
        map.set(std::string(message.reasoning_key), {message.reasoning, origin});
      list.emplace_back(std::move(map));
    }
    jinja::Map variables = tokens_;
    variables.set("messages", std::move(list));
    variables.set("add_generation_prompt", prompts);
    for (const char* absent : {"tools", "documents"}) variables.set(absent, jinja::None{});
    return template_.render(variables);
  }

  // Tried with a sample: a template may have the key's letters in another name.
  bool writes_reasoning(std::string_view key) const {
    constexpr std::string_view thoughts = "thoughts-3f9c";  // in no template
    const std::array sample = {
        Message{"user", "u"},
        Message{.role = "assistant", .content = "a", .reasoning = thoughts, .reasoning_key = key}};
    try {
      return run(sample, false).text.bytes().find(thoughts) != std::string_view::npos;
    } catch (const Error&) {
      return false;
    }
  }

  // What ends an answer in the middle of a conversation, and at its end.
  void find_ends(const Text& one, const Text& two) {
    const auto last = places_of(one, 2)[1], first = places_of(two, 4)[1], next = places_of(two, 4)[2];
    if (!last || !first || !next || next->begin < first->end)
      throw Error("it does not write the messages of a sample conversation in their order");
    const std::string_view at_end = one.bytes().substr(last->end);
    const std::string_view between = two.bytes().substr(first->end, next->begin - first->end);
    const size_t same = same_beginning(at_end, between);
    end_ = without_blanks_behind(at_end.substr(0, same));
    last_end_ = end_.empty() ? without_blanks_behind(at_end) : end_;
  }

  // For each answer that is trained: what the model generates behind the prompt for it, and its end.
  std::vector<Range> answers(const Text& text, std::span<const Message> messages) const {
    const auto places = places_of(text, messages.size());
    std::vector<Range> marked;
    size_t before = 0;
    for (size_t i = 0; i < messages.size(); ++i) {
      if (!places[i] && messages[i].role != "assistant") continue;
      if (!places[i] || places[i]->begin < before)
        refuse_message(i, "the template does not write it in its place");
      const std::string_view gap = text.bytes().substr(before, places[i]->begin - before);
      before = places[i]->end;
      if (messages[i].role != "assistant" || !messages[i].trained) continue;
      const size_t found = prompt_.empty() ? gap.size() : gap.rfind(prompt_);
      const std::string& end = i + 1 == messages.size() ? last_end_ : end_;
      if (found == std::string_view::npos || !text.bytes().substr(before).starts_with(end))
        refuse_message(
            i, fmt::format("the template does not write the answer between {} and {}, as it does with a "
                           "sample, so that the tokens to be trained are not known",
                           in_quotes(prompt_), in_quotes(end)));
      marked.push_back({places[i]->begin - gap.size() + found + prompt_.size(), before + end.size()});
    }
    return marked;
  }

  // The generation blocks whose answers are trained.
  static std::vector<Range> blocks(const Rendered& rendered, std::span<const Message> messages) {
    std::vector<Range> marked;
    std::vector<bool> seen(messages.size(), false);
    for (const Range& block : rendered.generations) {
      std::optional<size_t> owner;
      for (size_t i = block.begin; i < block.end; ++i) {
        if (rendered.text.origin(i) == jinja::from_template) continue;
        const auto at = static_cast<size_t>(rendered.text.origin(i));
        if (owner && *owner != at)
          refuse_message(at, "a generation block of the template holds several messages");
        owner = at;
      }
      if (owner) seen[*owner] = true;
      if (!owner || messages[*owner].trained) marked.push_back(block);
    }
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role == "assistant" && !messages[i].trained && !seen[i])
        refuse_message(i,
                       "no generation block of the template holds it, so that it cannot be left untrained");
    }
    return marked;
  }

  // Cut at the ends of quoted and marked bytes. `marked`: ascending.
  static std::vector<Piece> pieces_of(const Text& text, const std::vector<Range>& marked) {
    std::vector<Piece> pieces;
    auto range = marked.begin();
    for (size_t i = 0; i < text.size(); ++i) {
      while (range != marked.end() && range->end <= i) ++range;
      const bool is_quoted = text.origin(i) != jinja::from_template;
      const bool is_marked = range != marked.end() && range->begin <= i;
      if (pieces.empty() || pieces.back().quoted != is_quoted || pieces.back().marked != is_marked)
        pieces.push_back({.text = "", .quoted = is_quoted, .marked = is_marked});
      pieces.back().text += text.bytes()[i];
    }
    return pieces;
  }

  std::string source_;
  jinja::Map tokens_;
  jinja::Template template_;
  std::vector<std::string_view> written_keys_;  // of reasoning_keys
  bool marks_itself_ = false;                   // by generation blocks
  // What prompts an answer, ends one in the middle of a conversation, and at its end.
  std::string prompt_, end_, last_end_;
};

nlohmann::json object_of(const fs::path& file) {
  if (!io::is_there(file)) return nlohmann::json::object();
  nlohmann::json all = io::parse_strict_json(io::MappedFile(file).text(), file.string(), 64);
  if (!all.is_object()) throw Error(fmt::format("'{}': not a JSON object", file.string()));
  return all;
}

// A token of these files: a text, or an object with one.
jinja::Map tokens_of(const nlohmann::json& config, const nlohmann::json& special) {
  jinja::Map tokens;
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    for (const nlohmann::json* file : {&config, &special}) {
      nlohmann::json token = file->value(name, nlohmann::json());
      if (token.is_object()) token = nlohmann::json(token.value("content", nlohmann::json()));
      if (!token.is_string() || tokens.find(name) != nullptr) continue;
      tokens.set(name, std::string_view(token.get_ref<const std::string&>()));
    }
  }
  return tokens;
}

// From tokenizer_config.json: the template or, if there are several, the one named "default".
std::string source_in(const nlohmann::json& config) {
  const nlohmann::json given = config.value("chat_template", nlohmann::json());
  if (given.is_string()) return given.get<std::string>();
  if (given.is_array()) {
    for (const nlohmann::json& one : given) {
      if (one.is_object() && one.value("name", nlohmann::json()) == "default" && one.contains("template") &&
          one["template"].is_string())
        return one["template"].get<std::string>();
    }
  }
  return "";
}

}  // namespace

std::shared_ptr<const ChatTemplate> make_folder_template(const fs::path& tokenizer) {
  if (tokenizer.empty()) return nullptr;
  const fs::path folder = fs::is_directory(tokenizer) ? tokenizer : tokenizer.parent_path();
  const nlohmann::json config = object_of(folder / "tokenizer_config.json");
  fs::path file = folder / "chat_template.jinja";
  std::string source;
  if (io::is_there(file)) {
    source = io::MappedFile(file).text();
  } else {
    file = folder / "tokenizer_config.json";
    source = source_in(config);
  }
  if (source.empty()) return nullptr;
  try {
    return std::make_shared<FolderTemplate>(std::move(source),
                                            tokens_of(config, object_of(folder / "special_tokens_map.json")));
  } catch (const Error& error) {
    throw UsageError(fmt::format("the chat template of '{}': {}", file.string(), error.what()));
  }
}

}  // namespace pptrain::corpus
