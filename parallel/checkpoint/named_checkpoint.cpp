#include "parallel/checkpoint/named_checkpoint.h"

#include "core/base/error.h"
#include "core/io/is_there.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::checkpoint {

namespace fs = std::filesystem;

bool is_step_folder(const fs::path& path) {
  return parse_step_folder(path.filename().string()).has_value() || io::is_there(path / manifest_name);
}

std::optional<fs::path> find_named(const fs::path& path,
                                   const std::function<void(const std::string&)>& report,
                                   KnownProblems& known) {
  if (is_step_folder(path)) {
    if (const auto found = known.find(path); found != known.end()) throw Error(found->second);
    return path;
  }
  for (const fs::path& root : {path, path / "checkpoints"}) {
    if (const auto found = find_resumable(root, report, known)) return found;
  }
  return std::nullopt;
}

}  // namespace pptrain::checkpoint
