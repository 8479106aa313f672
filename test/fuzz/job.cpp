#include <sstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/loader.h"
#include "models/model_config.h"
#include "test/fuzz/targets.h"

namespace pptrain::fuzz {
namespace {

config::JobConfig parse(const std::string& text, const std::vector<std::string>& overrides) {
  return config::parse_job(
      text, "job.toml", overrides,
      {.finish_model = models::finish_model, .finish = {}, .world = 8, .needs_files = false});
}

}  // namespace

bool job(std::string_view input) {
  std::istringstream lines{std::string(input)};
  std::string text, line;
  std::vector<std::string> overrides;
  constexpr std::string_view prefix = "#set ";
  while (std::getline(lines, line)) {
    if (line.starts_with(prefix)) overrides.push_back(line.substr(prefix.size()));
    text += line + "\n";
  }
  config::JobConfig job;
  try {
    job = parse(text, overrides);
  } catch (const UsageError&) {
    return false;
  }
  const std::string written = config::to_toml(job);
  require(parse(written, {}) == job, "a resolved job reads back as another:\n" + written);
  return true;
}

}  // namespace pptrain::fuzz
