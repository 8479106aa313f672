// JSON as text for files of lines and for hosts that may send anything.
#pragma once

#include <string>

namespace pptrain {

// Without spaces or line breaks; bytes that are no UTF-8 become U+FFFD. json: nlohmann's, ordered or not.
template <typename Json>
std::string one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace pptrain
