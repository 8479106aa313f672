// Values of templates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/text/corpus/jinja/text.h"

namespace pptrain::jinja {

class Value;
using List = std::vector<Value>;

// In the order of insertion.
struct Map {
  // All but a dict are objects: they have members alone.
  enum class Kind { dict, name_space, loop };

  std::vector<std::pair<std::string, Value>> items;
  Kind kind = Kind::dict;

  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
};

struct Arguments {
  List values;
  std::vector<std::pair<std::string, Value>> named;

  const Value* find(size_t place, std::string_view name) const;  // null if it is not given
};
using Function = std::function<Value(const Arguments&)>;

struct Undefined {
  std::string what;  // for messages: "'name'"
};
struct None {};

// Python's kinds of lists. No two kinds are equal. A view (a range, or what a dict has) and a generator have
// no numbered elements here; a generator gives its elements once.
enum class ListKind { list, tuple, view, generator };

// Lists, maps and namespaces are shared, as in Python.
class Value {
 public:
  Value() : held_(Undefined{"a value"}) {}
  Value(Undefined undefined) : held_(std::move(undefined)) {}
  Value(None none) : held_(none) {}
  Value(bool value) : held_(value) {}
  Value(int64_t value) : held_(value) {}
  Value(double value) : held_(value) {}
  Value(Text text) : held_(std::make_shared<const Text>(std::move(text))) {}
  Value(std::string_view text, Origin origin = from_template) : Value(Text(std::string(text), origin)) {}
  Value(const char* text) : Value(std::string_view(text)) {}
  Value(List list, ListKind kind = ListKind::list)
      : held_(std::make_shared<List>(std::move(list))), list_kind_(kind) {}
  Value(Map map) : held_(std::make_shared<Map>(std::move(map))) {}
  Value(Function function) : held_(std::make_shared<const Function>(std::move(function))) {}

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(held_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_bool() const { return is<bool>(); }
  bool is_integer() const { return is<int64_t>(); }
  bool is_number() const { return is<int64_t>() || is<double>() || is<bool>(); }
  bool is_text() const { return is<std::shared_ptr<const Text>>(); }
  bool is_list() const { return is<std::shared_ptr<List>>(); }
  bool is_list(ListKind kind) const { return is_list() && list_kind_ == kind; }
  bool is_indexed() const { return is_list(ListKind::list) || is_list(ListKind::tuple); }
  bool is_map() const { return is<std::shared_ptr<Map>>() && members().kind == Map::Kind::dict; }
  bool is_object() const { return is<std::shared_ptr<Map>>() && members().kind != Map::Kind::dict; }
  bool is_function() const { return is<std::shared_ptr<const Function>>(); }

  // Each throws Error that says what the value is instead.
  const Text& text() const;
  List& list() const;
  ListKind list_kind() const { return list_kind_; }  // of a list
  Map& map() const;
  Map& members() const { return *std::get<std::shared_ptr<Map>>(held_); }  // of a map or an object
  const Function& function() const;
  int64_t integer() const;  // a bool too
  double number() const;

  std::string kind() const;  // for messages: "a text", "'name', which is undefined"

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>, std::shared_ptr<List>,
               std::shared_ptr<Map>, std::shared_ptr<const Function>>
      held_;
  ListKind list_kind_ = ListKind::list;
};

bool is_true(const Value& value);
bool equal(const Value& a, const Value& b);  // throws Error for two views, generators, objects or functions
bool less(const Value& a, const Value& b);   // numbers, or texts; throws Error for others
bool contains(const Value& container, const Value& item);
// What a template writes of it. Throws Error for lists and maps, whose form is Python's own.
Text as_text(const Value& value);
// The elements of a list, keys of a map, characters of a text; none of an undefined value. Empties a
// generator.
List elements(const Value& value);
int64_t length_of(const Value& value);
// value[key]: the element of a list, character of a text, value of a map or method. Undefined if it has none.
Value item_of(const Value& value, const Value& key);
// value.name: a method comes before a map's value.
Value member_of(const Value& value, const std::string& name);
// As json.dumps(ensure_ascii=False) writes it; no indent: on one line.
Text as_json(const Value& value, std::optional<int64_t> indent);

}  // namespace pptrain::jinja
