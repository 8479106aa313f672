// A report as one page of HTML that needs nothing else.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "app/report/run_data.h"

namespace pptrain::app {

// Texts of files come into the page as data and never as code: in JSON without "<", which scripts of the page
// show as text, or escaped. A page may run its own scripts alone (a content security policy with a nonce),
// and fetch nothing.
std::string render_report(std::span<const RunData> runs);

}  // namespace pptrain::app
