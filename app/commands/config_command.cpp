// pptrain config
#include <spdlog/fmt/fmt.h>

#include "app/commands/commands.h"
#include "core/config/loader.h"

namespace pptrain::app {

int print_reference() {
  fmt::print("{}", config::reference_toml());
  return 0;
}

int print_schema() {
  fmt::print("{}\n", config::json_schema());
  return 0;
}

}  // namespace pptrain::app
