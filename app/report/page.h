// A report as one HTML page that needs no other file.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "app/report/run_data.h"

namespace pptrain::app {

// The data of the page, for runs in the order in which they are drawn. README.md describes the format.
nlohmann::ordered_json report_data(std::span<const RunData> runs);

// Texts from files enter the page as data, never as code: escaped, or in JSON without "<", which the page's
// scripts show as text. A content security policy with a nonce lets a page run only its own scripts, and
// fetch nothing.
std::string render_report(std::span<const RunData> runs);

}  // namespace pptrain::app
