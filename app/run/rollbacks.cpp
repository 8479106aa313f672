#include "app/run/rollbacks.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"

namespace pptrain::app {

using Json = nlohmann::json;

std::string read_rollbacks(const std::filesystem::path& run_dir) {
  constexpr size_t longest = 1 << 20;
  const std::filesystem::path file = run_dir / rollbacks_name;
  return io::is_there(file) ? io::read_small_file(file, longest) : "[]";
}

std::vector<Rollback> parse_rollbacks(const std::string& text) {
  try {
    std::vector<Rollback> result;
    for (const Json& entry : Json::parse(text)) {
      result.push_back({.diverged = entry.at("diverged").get<int64_t>(),
                        .above_since = entry.at("above_since").get<int64_t>(),
                        .skip_to = entry.at("skip_to").get<int64_t>(),
                        .inherited = entry.value("inherited", false)});
    }
    return result;
  } catch (const std::exception& error) {
    throw Error(fmt::format("{}: {}", rollbacks_name, error.what()));
  }
}

void add_rollback(const std::filesystem::path& run_dir, const Rollback& rollback) {
  Json all = Json::parse(read_rollbacks(run_dir));
  all.push_back({{"diverged", rollback.diverged},
                 {"above_since", rollback.above_since},
                 {"skip_to", rollback.skip_to}});
  if (rollback.inherited) all.back()["inherited"] = true;
  io::write_file_atomically(run_dir / rollbacks_name, all.dump(2) + "\n");
}

int64_t first_sample(const std::vector<Rollback>& rollbacks, const checkpoint::RunState& state) {
  int64_t sample = state.next_sample;
  for (const Rollback& rollback : rollbacks) {
    if (state.step < rollback.above_since) sample = std::max(sample, rollback.skip_to);
  }
  return sample;
}

}  // namespace pptrain::app
