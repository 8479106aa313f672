#include <string>

#include "app/completion/shells.h"

namespace pptrain::app {

std::string single_quoted(const std::string& text, bool for_fish) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += for_fish ? "\\'" : "'\\''";
    } else {
      if (c == '\\' && for_fish) out += '\\';
      out += c;
    }
  }
  return out + "'";
}

}  // namespace pptrain::app
