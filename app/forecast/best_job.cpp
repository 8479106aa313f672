#include "app/forecast/best_job.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/config/loader.h"
#include "parallel/schedule/render/text_layout.h"

namespace pptrain::app {
namespace {

namespace fs = std::filesystem;

// "section.key" -> its line of the whole job.
std::map<std::string, std::string> lines_of(const std::string& toml) {
  std::map<std::string, std::string> lines;
  std::istringstream all(toml);
  std::string section;
  for (std::string line; std::getline(all, line);) {
    if (line.starts_with("[")) {
      section = line.substr(1, line.find(']') - 1);
    } else if (const size_t equals = line.find(" = "); equals != std::string::npos) {
      lines[section + '.' + line.substr(0, equals)] = line;
    }
  }
  return lines;
}

// The included file as the written one finds it.
std::string include_of(const BestJob& best) {
  const fs::path config = fs::weakly_canonical(fs::absolute(best.config)),
                 path = fs::weakly_canonical(fs::absolute(best.path));
  if (config == path)
    throw UsageError(
        fmt::format("--write {}: this is the job that it would include; name another file", best.path));
  return config.lexically_relative(path.parent_path()).generic_string();
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + '"';
}

// [section] and its keys, each once, in the order of sections.
std::string changed_keys(const BestJob& best, const Plan& plan) {
  const std::map<std::string, std::string> lines = lines_of(config::to_toml(plan.job));
  std::vector<std::pair<std::string, std::string>> sections;  // name, lines
  std::vector<std::string> seen;
  for (const std::string& one : best.set) {
    const std::string option = one.substr(0, one.find('='));
    if (std::ranges::find(seen, option) != seen.end()) continue;
    seen.push_back(option);
    const size_t dot = option.rfind('.');
    const std::string section = option.substr(0, dot);
    const auto known = lines.find(option);
    const std::string line =
        known != lines.end() ? known->second : option.substr(dot + 1) + " = " + one.substr(one.find('=') + 1);
    auto own = std::ranges::find(sections, section, &std::pair<std::string, std::string>::first);
    if (own == sections.end()) own = sections.insert(sections.end(), {section, ""});
    own->second += line + '\n';
  }
  std::string out;
  for (const auto& [section, keys] : sections) out += fmt::format("\n[{}]\n{}", section, keys);
  return out;
}

}  // namespace

std::string write_best_job(const BestJob& best, const Candidate& candidate, const Plan& plan) {
  const Layout& layout = candidate.layout;
  std::string head = "# Written by: " + best.command + '\n';
  head +=
      fmt::format("# {} ranks ({}), costs {}{}\n", layout.mesh.world_size(), layout.mesh.describe(),
                  best.costs, best.budget > 0 ? fmt::format(", {:.2f} GB a rank", best.budget / 1e9) : "");
  head += fmt::format(
      "# Predicted: step {}, {} tokens/s, {:.2f} GB on the fullest rank{}\n",
      schedule::format_seconds(candidate.step_time), schedule::with_commas(candidate.tokens_per_s),
      static_cast<double>(candidate.bytes.total()) / 1e9, candidate.fits ? "" : ": does not fit");
  return head + fmt::format("include = {}\n", quoted(include_of(best))) + changed_keys(best, plan);
}

}  // namespace pptrain::app
