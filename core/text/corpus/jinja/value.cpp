#include "core/text/corpus/jinja/value.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/text/corpus/jinja/builtins.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::jinja {
namespace {

// As Python's repr: with an exponent below 1e-4 and from 1e16 on.
std::string digits_of(double value) {
  if (!std::isfinite(value)) throw Error("a number is not finite");
  const double size = std::abs(value);
  const bool exponent = size != 0 && (size < 1e-4 || size >= 1e16);
  std::array<char, 32> out{};
  const auto format = exponent ? std::chars_format::scientific : std::chars_format::fixed;
  std::string text(out.data(), std::to_chars(out.data(), out.data() + out.size(), value, format).ptr);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

// Names of Python's methods that templates may read, with a blank on both sides.
constexpr std::string_view dict_methods = " copy fromkeys get items keys values ";
constexpr std::string_view unsafe_dict_methods = " clear pop popitem setdefault update ";  // undefined
constexpr std::string_view list_methods = " copy count index ";
constexpr std::string_view tuple_methods = " count index ";
constexpr std::string_view loop_methods = " changed cycle ";
constexpr std::string_view text_methods =
    " capitalize casefold center count encode endswith expandtabs find format format_map index isalnum "
    "isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper "
    "join ljust lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title translate upper zfill ";

bool is_among(std::string_view name, std::string_view names) {
  return names.find(fmt::format(" {} ", name)) != std::string_view::npos;
}

bool has_method(const Value& value, std::string_view name) {
  if (value.is_map()) return is_among(name, dict_methods);
  if (value.is_text()) return is_among(name, text_methods);
  if (value.is_list(ListKind::list)) return is_among(name, list_methods);
  if (value.is_list(ListKind::tuple)) return is_among(name, tuple_methods);
  return value.is_object() && value.members().kind == Map::Kind::loop && is_among(name, loop_methods);
}

// A method that is not called at once.
Value bound(const Value& value, const std::string& name) {
  return Function([=](const Arguments& a) { return call_method(value, name, a); });
}

void append_quoted(Text& out, const Text& text) {
  constexpr const char* digits = "0123456789abcdef";
  out.append("\"", from_template);
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    const auto byte = static_cast<unsigned char>(c);
    std::string shown(1, c);
    if (c == '"' || c == '\\') shown = std::string("\\") + c;
    if (c == '\n') shown = "\\n";
    if (c == '\t') shown = "\\t";
    if (c == '\r') shown = "\\r";
    if (c == '\b') shown = "\\b";
    if (c == '\f') shown = "\\f";
    if (byte < 0x20 && shown.size() == 1)
      shown = std::string("\\u00") + digits[byte >> 4] + digits[byte & 15];
    out.append(shown, text.origin(i));
  }
  out.append("\"", from_template);
}

using Indent = std::optional<int64_t>;
void append_json(Text& out, const Value& value, Indent indent, int64_t level);

// `write` appends an element.
template <typename Elements, typename Write>
void append_elements(Text& out, const Elements& elements, const char* brackets, Indent indent, int64_t level,
                     const Write& write) {
  out.append(std::string(1, brackets[0]), from_template);
  const auto new_line = [&](int64_t depth) {
    if (indent) out.append("\n" + std::string(static_cast<size_t>(*indent * depth), ' '), from_template);
  };
  bool first = true;
  for (const auto& element : elements) {
    if (!first) out.append(indent ? "," : ", ", from_template);
    new_line(level + 1);
    write(element);
    first = false;
  }
  if (!first) new_line(level);
  out.append(std::string(1, brackets[1]), from_template);
}

void append_json(Text& out, const Value& value, Indent indent, int64_t level) {
  if (level > 100) throw Error("a value is nested too deeply");
  if (value.is_none()) {
    out.append("null", from_template);
  } else if (value.is_bool()) {
    out.append(is_true(value) ? "true" : "false", from_template);
  } else if (value.is_text()) {
    append_quoted(out, value.text());
  } else if (value.is_indexed()) {
    append_elements(out, value.list(), "[]", indent, level,
                    [&](const Value& one) { append_json(out, one, indent, level + 1); });
  } else if (value.is_map()) {
    append_elements(out, value.map().items, "{}", indent, level, [&](const auto& item) {
      append_quoted(out, Text(item.first));
      out.append(": ", from_template);
      append_json(out, item.second, indent, level + 1);
    });
  } else {
    out += as_text(Value(value.is_integer() ? Value(value.integer()) : Value(value.number())));
  }
}

}  // namespace

const Value* Map::find(std::string_view key) const {
  const auto found =
      std::ranges::find(items, key, [](const auto& item) -> std::string_view { return item.first; });
  return found == items.end() ? nullptr : &found->second;
}

void Map::set(const std::string& key, Value value) {
  const auto found =
      std::ranges::find(items, key, [](const auto& item) -> const std::string& { return item.first; });
  if (found != items.end()) {
    found->second = std::move(value);
  } else {
    items.emplace_back(key, std::move(value));
  }
}

const Value* Arguments::find(size_t place, std::string_view name) const {
  if (place < values.size()) return &values[place];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

std::string Value::kind() const {
  if (is_undefined()) return std::get<Undefined>(held_).what + ", which is undefined";
  if (is_none()) return "none";
  if (is_bool()) return "true or false";
  if (is_number()) return "a number";
  if (is_text()) return "a text";
  if (is_list())
    return is_list(ListKind::list)    ? "a list"
           : is_list(ListKind::tuple) ? "a tuple"
           : is_list(ListKind::view)  ? "a range or a view of a mapping (the filter list makes it a list)"
                                      : "a generator (the filter list makes it a list)";
  if (is_object()) return members().kind == Map::Kind::loop ? "the loop" : "a namespace";
  return is_map() ? "a mapping" : "a function";
}

const Text& Value::text() const {
  if (!is_text()) throw Error(fmt::format("a text is needed, not {}", kind()));
  return *std::get<std::shared_ptr<const Text>>(held_);
}

List& Value::list() const {
  if (!is_list()) throw Error(fmt::format("a list is needed, not {}", kind()));
  return *std::get<std::shared_ptr<List>>(held_);
}

Map& Value::map() const {
  if (!is_map()) throw Error(fmt::format("a mapping is needed, not {}", kind()));
  return members();
}

const Function& Value::function() const {
  if (!is_function()) throw Error(fmt::format("a function is needed, not {}", kind()));
  return *std::get<std::shared_ptr<const Function>>(held_);
}

int64_t Value::integer() const {
  if (is_bool()) return std::get<bool>(held_) ? 1 : 0;
  if (!is_integer()) throw Error(fmt::format("an integer is needed, not {}", kind()));
  return std::get<int64_t>(held_);
}

double Value::number() const {
  return is<double>() ? std::get<double>(held_) : static_cast<double>(integer());
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.number() != 0;
  if (value.is_text()) return !value.text().empty();
  if (value.is_list()) return value.is_list(ListKind::generator) || !value.list().empty();
  return !value.is_map() || !value.map().items.empty();
}

namespace {

bool equal_maps(const Map& a, const Map& b) {
  return a.items.size() == b.items.size() && std::ranges::all_of(a.items, [&](const auto& item) {
           const Value* const same = b.find(item.first);
           return same != nullptr && equal(item.second, *same);
         });
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.is_text() && b.is_text()) return a.text().bytes() == b.text().bytes();
  const bool lists = a.is_list() && b.is_list();
  if ((lists && !(a.is_indexed() && b.is_indexed())) || (a.is_object() && b.is_object()) ||
      (a.is_function() && b.is_function()))
    throw Error(fmt::format("{} and {} cannot be compared", a.kind(), b.kind()));
  if (lists) return a.list_kind() == b.list_kind() && std::ranges::equal(a.list(), b.list(), equal);
  if (a.is_map() && b.is_map()) return equal_maps(a.map(), b.map());
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (a.is_text() && b.is_text()) return a.text().bytes() < b.text().bytes();
  throw Error(fmt::format("{} and {} have no order", a.kind(), b.kind()));
}

bool contains(const Value& container, const Value& item) {
  if (container.is_text())
    return container.text().bytes().find(item.text().bytes()) != std::string_view::npos;
  if (container.is_map() && (item.is_map() || item.is_list(ListKind::list)))
    throw Error(fmt::format("{} is no key of a mapping", item.kind()));
  if (container.is_map()) return item.is_text() && container.map().find(item.text().bytes()) != nullptr;
  if (container.is_undefined()) return false;
  const List all = elements(container);
  const auto found = std::ranges::find_if(all, [&](const Value& one) { return equal(one, item); });
  if (container.is_list(ListKind::generator) && found != all.end())
    container.list().assign(found + 1, all.end());  // it has given no more
  return found != all.end();
}

Text as_text(const Value& value) {
  if (value.is_text()) return value.text();
  if (value.is_undefined()) return {};
  if (value.is_none()) return Text("None");
  if (value.is_bool()) return Text(is_true(value) ? "True" : "False");
  if (value.is_integer()) return Text(std::to_string(value.integer()));
  if (value.is_number()) return Text(digits_of(value.number()));
  throw Error(fmt::format("{} cannot be written as a text (tojson writes lists and mappings)", value.kind()));
}

List elements(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_list(ListKind::generator)) return std::exchange(value.list(), {});
  if (value.is_list()) return value.list();
  List out;
  if (value.is_map()) {
    for (const auto& item : value.map().items) out.emplace_back(item.first);
    return out;
  }
  const Text& text = value.text();
  for (size_t at = 0; at < text.size();) {
    const size_t next = at + tokenizer::code_point_size(text.bytes()[at]);
    out.emplace_back(text.slice(at, next));
    at = next;
  }
  return out;
}

int64_t length_of(const Value& value) {
  if (value.is_text()) return length_of(value.text().bytes());
  if (value.is_map()) return static_cast<int64_t>(value.map().items.size());
  if (value.is_undefined()) return 0;
  if (value.is_list(ListKind::generator)) throw Error(fmt::format("{} has no length", value.kind()));
  return static_cast<int64_t>(value.list().size());
}

Value item_of(const Value& value, const Value& key) {
  if (value.is_undefined() || value.is_none())
    throw Error(fmt::format("{} has no '{}'", value.kind(), key.is_text() ? key.text().bytes() : "element"));
  const auto missing = [&] {
    return Undefined{key.is_text() ? fmt::format("'{}'", key.text().bytes()) : std::string("an element")};
  };
  if (key.is_text()) {
    const std::string name(key.text().bytes());
    const Value* const found = value.is_map() || value.is_object() ? value.members().find(name) : nullptr;
    return found != nullptr ? *found : has_method(value, name) ? bound(value, name) : Value(missing());
  }
  if (!key.is_integer() || !(value.is_list() || value.is_text())) return missing();
  if (value.is_list() && !value.is_indexed())
    throw Error(fmt::format("{} has no numbered elements", value.kind()));
  const int64_t size = length_of(value), at = key.integer() < 0 ? key.integer() + size : key.integer();
  if (at < 0 || at >= size) return missing();
  if (value.is_list()) return value.list()[static_cast<size_t>(at)];
  const Text& text = value.text();
  return text.slice(byte_of(text.bytes(), at), byte_of(text.bytes(), at + 1));
}

Value member_of(const Value& value, const std::string& name) {
  if (value.is_map() && is_among(name, unsafe_dict_methods)) return Undefined{fmt::format("'{}'", name)};
  if (value.is_map() && has_method(value, name)) return bound(value, name);
  return item_of(value, Value(std::string_view(name)));
}

Text as_json(const Value& value, Indent indent) {
  Text out;
  append_json(out, value, indent, 0);
  return out;
}

}  // namespace pptrain::jinja
