// The measurements: rows of figures, in JSON and as a table.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "test/gpu/bench/bench.h"

namespace pptrain::bench {

using Json = nlohmann::ordered_json;

// The rows of one section.
class Rows {
 public:
  // Adds a row of `names` and completes it with `fill`. If `fill` throws, the row has the message as "error"
  // and the section goes on.
  void add(Json names, const std::function<void(Json& row)>& fill);

  const Json& json() const { return rows_; }

 private:
  Json rows_ = Json::array();
};

// Adds to the row: seconds, fastest_s, slowest_s and host_s of a call, and the number of calls.
void put(Json& row, const Timing& timing);

// A column of the table: row[key] * scale, with this number of decimals; words unchanged.
struct Column {
  std::string title;
  std::string key;
  double scale = 1;
  int decimals = 0;
};

// The rows as text: aligned columns, empty cells for missing values, errors at the end of their rows.
std::string table(const Json& rows, const std::vector<Column>& columns);

}  // namespace pptrain::bench
