#include "core/text/corpus/jinja/builtins.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::jinja {
namespace {

using Functions = std::map<std::string, Function>;

const Value& first(const Arguments& a) {
  if (a.values.empty()) throw Error("a value is missing");
  return a.values.front();
}

const Value& needed(const Arguments& a, size_t place, std::string_view name) {
  const Value* const found = a.find(place, name);
  if (found == nullptr) throw Error(fmt::format("the argument '{}' is missing", name));
  return *found;
}

std::string text_or(const Arguments& a, size_t place, std::string_view name, std::string_view other) {
  const Value* const found = a.find(place, name);
  return std::string(found == nullptr || found->is_none() ? other : found->text().bytes());
}

int64_t integer_or(const Arguments& a, size_t place, std::string_view name, int64_t other) {
  const Value* const found = a.find(place, name);
  return found == nullptr || found->is_none() ? other : found->integer();
}

// "a.b" or "a.0" of an element.
Value attribute_of(const Value& value, std::string_view path) {
  Value at = value;
  while (true) {
    const size_t dot = path.find('.');
    const std::string_view part = path.substr(0, dot);
    const bool whole = !part.empty() && std::ranges::all_of(part, tokenizer::is_ascii_digit);
    const auto number = whole ? to_number<int64_t>(part) : std::nullopt;
    at = item_of(at, number ? Value(*number) : Value(part));
    if (dot == std::string_view::npos) return at;
    path.remove_prefix(dot + 1);
  }
}

Value join(const Arguments& a) {
  const Value* const separator = a.find(1, "d");
  const Value* const attribute = a.find(2, "attribute");
  Text out;
  bool begun = false;
  for (const Value& one : elements(first(a))) {
    if (begun && separator != nullptr) out += as_text(*separator);
    out += as_text(attribute == nullptr ? one : attribute_of(one, attribute->text().bytes()));
    begun = true;
  }
  return out;
}

List items(const Value& value) {
  List out;
  if (value.is_undefined()) return out;
  for (const auto& [key, item] : value.map().items)
    out.push_back(Value(List{Value(key), item}, ListKind::tuple));
  return out;
}

Value capitalize(const Text& text) {
  Text out = upper(text.slice(0, std::min<size_t>(1, text.size())));
  out += lower(text.slice(std::min<size_t>(1, text.size()), text.size()));
  return out;
}

Value map_filter(const Arguments& a) {
  const Value* const attribute = a.find(a.values.size(), "attribute");
  const Value* const otherwise = a.find(a.values.size(), "default");
  List out;
  for (const Value& one : elements(first(a))) {
    if (attribute != nullptr) {
      const Value found = attribute_of(one, attribute->text().bytes());
      out.push_back(found.is_undefined() && otherwise != nullptr ? *otherwise : found);
      continue;
    }
    const std::string name(needed(a, 1, "filter").text().bytes());
    const Function* const filter = find_filter(name);
    if (filter == nullptr) throw Error(fmt::format("the filter '{}' is not supported", name));
    Arguments more{.values = {one}, .named = a.named};
    more.values.insert(more.values.end(), a.values.begin() + 2, a.values.end());
    out.push_back((*filter)(more));
  }
  return {std::move(out), ListKind::generator};
}

// select, reject (by_attribute: false), selectattr, rejectattr.
Function selection(bool by_attribute, bool keeps) {
  return [=](const Arguments& a) -> Value {
    const size_t at = by_attribute ? 2 : 1;  // of the test's name
    const std::string name = a.values.size() > at ? std::string(a.values[at].text().bytes()) : "";
    const Function* const test = name.empty() ? nullptr : find_test(name);
    if (!name.empty() && test == nullptr) throw Error(fmt::format("the test '{}' is not supported", name));
    List out;
    for (const Value& one : elements(first(a))) {
      const Value looked_at =
          by_attribute ? attribute_of(one, needed(a, 1, "attribute").text().bytes()) : one;
      Arguments more{.values = {looked_at}, .named = {}};
      if (a.values.size() > at + 1)
        more.values.insert(more.values.end(), a.values.begin() + static_cast<ptrdiff_t>(at) + 1,
                           a.values.end());
      if (is_true(test == nullptr ? looked_at : (*test)(more)) == keeps) out.push_back(one);
    }
    return {std::move(out), ListKind::generator};
  };
}

Value default_filter(const Arguments& a) {
  const Value* const otherwise = a.find(1, "default_value");
  const Value* const falsy = a.find(2, "boolean");
  const bool takes = first(a).is_undefined() || (falsy != nullptr && is_true(*falsy) && !is_true(first(a)));
  return !takes ? first(a) : otherwise != nullptr ? *otherwise : Value("");
}

Value reverse(const Arguments& a) {
  List all = elements(first(a));
  std::ranges::reverse(all);
  if (!first(a).is_text()) return {std::move(all), ListKind::generator};
  Text out;
  for (const Value& one : all) out += one.text();
  return out;
}

Value sorted_items(const Arguments& a) {
  if (a.values.size() > 1 || !a.named.empty()) throw Error("dictsort with arguments is not supported");
  if (first(a).is_undefined()) throw Error(fmt::format("a mapping is needed, not {}", first(a).kind()));
  List out = items(first(a));
  std::ranges::stable_sort(out, [](const Value& x, const Value& y) {
    return less(lower(x.list()[0].text()), lower(y.list()[0].text()));
  });
  return out;
}

// tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False), as transformers has it
Value to_json(const Arguments& a) {
  for (const auto& [name, value] : a.named) {
    if (name != "ensure_ascii" && name != "indent")
      throw Error(fmt::format("tojson with {} is not supported", name));
  }
  if (a.values.size() > 3) throw Error("tojson with separators is not supported");
  const Value* const ascii = a.find(1, "ensure_ascii");
  if (ascii != nullptr && is_true(*ascii))
    throw Error("tojson with ensure_ascii, its first argument, is not supported");
  const Value* const indent = a.find(2, "indent");
  if (indent == nullptr || indent->is_none()) return as_json(first(a), std::nullopt);
  return as_json(first(a), std::max<int64_t>(0, indent->integer()));
}

Value to_integer(const Arguments& a) {
  const Value& value = first(a);
  if (value.is_integer()) return value.integer();
  if (value.is_number() && std::abs(value.number()) < 9e18) return static_cast<int64_t>(value.number());
  throw Error(fmt::format("int of {} is not supported", value.kind()));
}

const Functions& filters() {
  const auto of_text = [](auto function) {
    return Function([=](const Arguments& a) { return Value(function(as_text(first(a)))); });
  };
  const auto at_end = [](bool last) {
    return Function([=](const Arguments& a) {
      if (last && first(a).is_list(ListKind::generator))
        throw Error(fmt::format("{} has no last element", first(a).kind()));
      const List all = elements(first(a));
      if (first(a).is_list(ListKind::generator) && !all.empty())
        first(a).list().assign(all.begin() + 1, all.end());  // it has given no more
      return all.empty() ? Value(Undefined{"an element"}) : last ? all.back() : all.front();
    });
  };
  const Function length = [](const Arguments& a) { return Value(length_of(first(a))); };
  static const Functions all = {
      {"trim",
       [](const Arguments& a) { return strip(as_text(first(a)), text_or(a, 1, "chars", ""), true, true); }},
      {"upper", of_text(upper)},
      {"lower", of_text(lower)},
      {"capitalize", of_text(capitalize)},
      {"string", of_text([](Text text) { return text; })},
      {"safe", of_text([](Text text) { return text; })},
      {"length", length},
      {"count", length},
      {"default", default_filter},
      {"d", default_filter},
      {"join", join},
      {"list", [](const Arguments& a) { return Value(elements(first(a))); }},
      {"first", at_end(false)},
      {"last", at_end(true)},
      {"tojson", to_json},
      {"int", to_integer},
      {"replace",
       [](const Arguments& a) {
         return replace(as_text(first(a)), needed(a, 1, "old").text().bytes(), needed(a, 2, "new").text(),
                        integer_or(a, 3, "count", -1));
       }},
      {"map", map_filter},
      {"select", selection(false, true)},
      {"reject", selection(false, false)},
      {"selectattr", selection(true, true)},
      {"rejectattr", selection(true, false)},
      {"items", [](const Arguments& a) { return Value(items(first(a)), ListKind::generator); }},
      {"dictsort", sorted_items},
      {"reverse", reverse},
  };
  return all;
}

const Functions& tests() {
  const auto of = [](auto test) {
    return Function([=](const Arguments& a) { return Value(bool(test(first(a)))); });
  };
  const auto with = [](auto test) {
    return Function([=](const Arguments& a) { return Value(bool(test(first(a), needed(a, 1, "other")))); });
  };
  const Function same = with([](const Value& a, const Value& b) { return equal(a, b); });
  const auto is_iterable = [](const Value& v) {
    if (v.is_object()) throw Error(fmt::format("the test of {} is not supported", v.kind()));
    return v.is_text() || v.is_list() || v.is_map() || v.is_undefined();
  };
  const auto is_sequence = [=](const Value& v) {
    if (v.is_list(ListKind::view)) throw Error(fmt::format("the test of {} is not supported", v.kind()));
    return is_iterable(v) && !v.is_list(ListKind::generator);
  };
  const auto is_callable = [](const Value& v) {
    if (v.is_object()) throw Error(fmt::format("the test of {} is not supported", v.kind()));
    return v.is_function() || v.is_undefined();
  };
  static const Functions all = {
      {"defined", of([](const Value& v) { return !v.is_undefined(); })},
      {"undefined", of([](const Value& v) { return v.is_undefined(); })},
      {"none", of([](const Value& v) { return v.is_none(); })},
      {"string", of([](const Value& v) { return v.is_text(); })},
      {"mapping", of([](const Value& v) { return v.is_map(); })},
      {"iterable", of(is_iterable)},
      {"sequence", of(is_sequence)},
      {"number", of([](const Value& v) { return v.is_number(); })},
      {"integer", of([](const Value& v) { return v.is_integer(); })},
      {"float", of([](const Value& v) { return v.is<double>(); })},
      {"boolean", of([](const Value& v) { return v.is_bool(); })},
      {"true", of([](const Value& v) { return v.is_bool() && is_true(v); })},
      {"false", of([](const Value& v) { return v.is_bool() && !is_true(v); })},
      {"callable", of(is_callable)},
      {"even", of([](const Value& v) { return v.integer() % 2 == 0; })},
      {"odd", of([](const Value& v) { return v.integer() % 2 != 0; })},
      {"equalto", same},
      {"eq", same},
      {"==", same},
      {"ne", with([](const Value& a, const Value& b) { return !equal(a, b); })},
      {"in", with([](const Value& a, const Value& b) { return contains(b, a); })},
      {"divisibleby", with([](const Value& a, const Value& b) {
         if (b.integer() == 0) throw Error("division by zero");
         return a.integer() % b.integer() == 0;
       })},
  };
  return all;
}

// Of startswith and endswith: a text, or a tuple of texts.
bool begins_or_ends(const Text& text, const Arguments& a, bool ends) {
  if (a.values.size() != 1 || !a.named.empty())
    throw Error("startswith and endswith are supported with one argument alone");
  const Value& with = first(a);
  const auto fits = [&](std::string_view part) {
    return ends ? text.bytes().ends_with(part) : text.bytes().starts_with(part);
  };
  if (with.is_text()) return fits(with.text().bytes());
  if (!with.is_list(ListKind::tuple))
    throw Error(fmt::format("a text or a tuple of texts is needed, not {}", with.kind()));
  return std::ranges::any_of(with.list(), [&](const Value& one) { return fits(one.text().bytes()); });
}

const std::map<std::string, Value (*)(const Text&, const Arguments&)>& text_methods() {
  static const std::map<std::string, Value (*)(const Text&, const Arguments&)> all = {
      {"strip",
       [](const Text& t, const Arguments& a) -> Value {
         return strip(t, text_or(a, 0, "chars", ""), true, true);
       }},
      {"lstrip",
       [](const Text& t, const Arguments& a) -> Value {
         return strip(t, text_or(a, 0, "chars", ""), true, false);
       }},
      {"rstrip",
       [](const Text& t, const Arguments& a) -> Value {
         return strip(t, text_or(a, 0, "chars", ""), false, true);
       }},
      {"split",
       [](const Text& t, const Arguments& a) -> Value {
         const Value* const separator = a.find(0, "sep");
         if (separator != nullptr && separator->is_text() && separator->text().empty())
           throw Error("empty separator");
         List out;
         for (Text& part : split(t, text_or(a, 0, "sep", ""), integer_or(a, 1, "maxsplit", -1)))
           out.emplace_back(std::move(part));
         return out;
       }},
      {"startswith", [](const Text& t, const Arguments& a) -> Value { return begins_or_ends(t, a, false); }},
      {"endswith", [](const Text& t, const Arguments& a) -> Value { return begins_or_ends(t, a, true); }},
      {"upper", [](const Text& t, const Arguments&) -> Value { return upper(t); }},
      {"lower", [](const Text& t, const Arguments&) -> Value { return lower(t); }},
      {"capitalize", [](const Text& t, const Arguments&) -> Value { return capitalize(t); }},
      {"replace",
       [](const Text& t, const Arguments& a) -> Value {
         return replace(t, needed(a, 0, "old").text().bytes(), needed(a, 1, "new").text(),
                        integer_or(a, 2, "count", -1));
       }},
      {"find",
       [](const Text& t, const Arguments& a) -> Value {
         if (a.values.size() != 1) throw Error("find from a place on is not supported");
         const size_t at = t.bytes().find(a.values[0].text().bytes());
         return at == std::string_view::npos ? int64_t{-1} : length_of(t.bytes().substr(0, at));
       }},
      {"join",
       [](const Text& t, const Arguments& a) -> Value {
         return join({.values = {needed(a, 0, "iterable"), Value(t)}, .named = {}});
       }},
  };
  return all;
}

Value map_method(const Value& value, const std::string& name, const Arguments& a) {
  const Map& map = value.map();
  if (name == "items") return {items(value), ListKind::view};
  if (name == "keys") return {elements(value), ListKind::view};
  if (name == "get") {
    const Value* const found = map.find(needed(a, 0, "key").text().bytes());
    return found != nullptr ? *found : a.values.size() > 1 ? a.values[1] : Value(None{});
  }
  if (name == "values") {
    List out;
    for (const auto& item : map.items) out.push_back(item.second);
    return {std::move(out), ListKind::view};
  }
  const Value* const own = map.find(name);
  if (own != nullptr && own->is_function()) return own->function()(a);
  throw Error(fmt::format("a mapping's method '{}' is not supported", name));
}

Value range(const Arguments& a) {
  const bool one = a.values.size() == 1;
  const int64_t begin = one ? 0 : needed(a, 0, "start").integer(),
                end = needed(a, one ? 0 : 1, "stop").integer();
  const int64_t step = integer_or(a, 2, "step", 1);
  constexpr int64_t most = 100'000;
  if (step == 0 || (end - begin) / step > most) throw Error("the range is too long");
  List out;
  for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) out.emplace_back(i);
  return {std::move(out), ListKind::view};
}

}  // namespace

const Function* find_filter(const std::string& name) {
  const auto found = filters().find(name);
  return found == filters().end() ? nullptr : &found->second;
}

const Function* find_test(const std::string& name) {
  const auto found = tests().find(name);
  return found == tests().end() ? nullptr : &found->second;
}

Value call_method(const Value& value, const std::string& name, const Arguments& arguments) {
  if (value.is_map()) return map_method(value, name, arguments);
  if (value.is_object()) {
    const Value* const member = value.members().find(name);
    if (member != nullptr) return member->function()(arguments);
  }
  if (value.is_text()) {
    const auto found = text_methods().find(name);
    if (found != text_methods().end()) return found->second(value.text(), arguments);
  }
  throw Error(fmt::format("the method '{}' of {} is not supported", name, value.kind()));
}

Map functions() {
  Map all;
  const auto named = [](Map::Kind kind) {
    return Function([=](const Arguments& a) {
      Map out;
      if (!a.values.empty()) out = a.values.front().map();
      out.kind = kind;
      for (const auto& [name, value] : a.named) out.set(name, value);
      return Value(std::move(out));
    });
  };
  all.set("namespace", named(Map::Kind::name_space));
  all.set("dict", named(Map::Kind::dict));
  all.set("range", Function(range));
  all.set("raise_exception",
          Function([](const Arguments& a) -> Value { throw Error(std::string(as_text(first(a)).bytes())); }));
  return all;
}

}  // namespace pptrain::jinja
