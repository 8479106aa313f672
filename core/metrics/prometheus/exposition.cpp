#include "core/metrics/prometheus/exposition.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace pptrain::metrics {
namespace {

// The JSON library's judgement of what is UTF-8.
std::string valid_utf8(std::string_view text) {
  using Json = nlohmann::json;
  const std::string quoted = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(quoted).get<std::string>();
}

}  // namespace

std::string label_text(std::string_view value) {
  std::string result;
  for (const char c : valid_utf8(value)) {
    if (c == '\n') {
      result += "\\n";
    } else {
      if (c == '\\' || c == '"') result += '\\';
      result += c;
    }
  }
  return result;
}

std::string sample_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

void Exposition::add(std::span<const Figure> figures) {
  for (const Figure& figure : figures) {
    family(figure.name, figure.help);
    const Labels more =
        figure.label.empty() ? Labels{} : Labels{{std::string(figure.label), figure.label_value}};
    sample(figure.name, figure.value * figure.unit, more);
  }
}

void Exposition::add(std::string_view name, std::string_view help, double value, const Labels& more) {
  family(name, help);
  sample(name, value, more);
}

void Exposition::family(std::string_view name, std::string_view help) {
  if (name == last_) return;
  last_ = name;
  text_ += fmt::format("# HELP pptrain_{0} {1}\n# TYPE pptrain_{0} {2}\n", name, help,
                       name.ends_with("_total") ? "counter" : "gauge");
}

void Exposition::sample(std::string_view name, double value, const Labels& more) {
  std::string labels;
  const auto add_label = [&](const auto& label) {
    labels += fmt::format("{}{}=\"{}\"", labels.empty() ? "" : ",", label.first, label_text(label.second));
  };
  for (const auto& label : labels_) add_label(label);
  for (const auto& label : more) add_label(label);
  text_ += fmt::format("pptrain_{}{{{}}} {}\n", name, labels, sample_text(value));
}

}  // namespace pptrain::metrics
