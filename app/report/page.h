// A report as one page of HTML that needs nothing else.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "app/report/run_data.h"

namespace pptrain::app {

// The data of the page, of runs in the order in which they are drawn. Its form is in README.md.
nlohmann::ordered_json report_data(std::span<const RunData> runs);

// Texts of files come into the page as data and never as code: in JSON without "<", which scripts of the page
// show as text, or escaped. A page may run its own scripts alone (a content security policy with a nonce),
// and fetch nothing.
std::string render_report(std::span<const RunData> runs);

}  // namespace pptrain::app
