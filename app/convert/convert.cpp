#include "app/convert/convert.h"

#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <optional>

#include "app/convert/target_folder.h"
#include "app/rank/weights_source.h"
#include "app/run/base_weights.h"
#include "app/run/start_choice.h"
#include "core/base/error.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::app {
namespace {

namespace fs = std::filesystem;

// Neither may lie in the other, or the source would be written to, or be replaced. `use`: of the source.
void refuse_one_place(const fs::path& source, const fs::path& target, const char* use) {
  const fs::path from = real_path(source), to = real_path(target);
  if (!io::lies_in(from, to) && !io::lies_in(to, from)) return;
  throw UsageError(fmt::format("--to: {} {} {}, {}: give another folder", to.string(),
                               from == to              ? "is"
                               : io::lies_in(to, from) ? "lies in"
                                                       : "holds",
                               from.string(), use));
}

// The directory of a checkpoint's frozen weights; "" if it has none.
fs::path base_directory(const fs::path& checkpoint) {
  if (base_of(checkpoint::read_manifest(checkpoint).layout) == Base()) return "";
  const std::optional<config::JobConfig> job = read_saved_run(checkpoint).job;
  return job && job->model.init == config::Init::hf ? job->model.hf_dir : "";
}

// A checkpoint is float32, in one file, with the directory's own tokenizer.
void refuse_hf_options(const ConvertArguments& arguments) {
  const char* given = arguments.dtype                ? "--dtype"
                      : arguments.max_shard_gb > 0   ? "--max-shard-gb"
                      : !arguments.tokenizer.empty() ? "--tokenizer"
                      : arguments.merge              ? "--merge"
                      : arguments.ema                ? "--ema"
                                                     : nullptr;
  if (given == nullptr) return;
  throw UsageError(
      fmt::format("{}: is about a Hugging Face directory that is written; \"{}\" is one that is read, and "
                  "becomes a checkpoint",
                  given, arguments.from));
}

}  // namespace

std::vector<std::string> convert(const ConvertArguments& arguments) {
  const c10::InferenceMode inference;
  const bool reads_hf = is_hf_directory(arguments.from);
  if (reads_hf) refuse_hf_options(arguments);
  const fs::path source = reads_hf ? fs::path(arguments.from) : named_checkpoint("--from", arguments.from);
  refuse_one_place(source, arguments.to, "which --from reads");
  if (!reads_hf) {
    if (const fs::path base = base_directory(source); !base.empty())
      refuse_one_place(base, arguments.to, "which holds the frozen weights of this checkpoint");
  }
  TargetFolder target(arguments.to, arguments.overwrite,
                      reads_hf ? std::set<std::string>{} : carried_names(source));
  std::vector<std::string> lines =
      reads_hf ? from_hf(source, target.folder()) : to_hf(source, arguments, target.folder());
  target.publish();
  lines.front() = fmt::format("{} -> {}: {}", source.string(), arguments.to, lines.front());
  return lines;
}

}  // namespace pptrain::app
