#include "app/commands/command_line.h"
#include "app/commands/commands.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "app/commands/job_options.h"
#include "app/convert/convert.h"
#include "core/base/host_memory.h"
#include "core/base/text.h"

namespace pptrain::app {

namespace {

const std::map<std::string, at::ScalarType> stored_types = {
    {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};

CLI::App* declare_convert(CLI::App& cli, ConvertArguments& arguments) {
  CLI::App* app = cli.add_subcommand(
      "convert", "Converts a checkpoint to a Hugging Face directory, or the other way round");
  add_option(*app, "--from DIR", arguments.from,
             "A checkpoint of any layout, a folder of them, a run's folder, or a Hugging Face directory")
      ->required();
  add_option(*app, "--to DIR", arguments.to, "The folder to write; it appears complete or not at all")
      ->required();
  app->add_option_function<std::string>(
         "--dtype", [&arguments](const std::string& word) { arguments.dtype = stored_types.at(word); },
         "Type of the Hugging Face weights: fp32 (as in checkpoints), bf16 or fp16; default: as in the "
         "directory that the checkpoint was made from, else fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->option_text("TYPE");
  add_option(*app, "--max-shard-gb GB", arguments.max_shard_gb,
             "Largest size of a Hugging Face weight file, in GB (1e9 bytes); default: 50")
      ->check(CLI::PositiveNumber);
  add_option(*app, "--tokenizer DIR", arguments.tokenizer,
             "Tokenizer whose files are copied too: tokenizer.json or its folder; default: the job's");
  app->add_flag("--merge", arguments.merge,
                "For a checkpoint with adapters (lora.rank): writes the whole model with the adapters added "
                "to its weights; default: only the adapters, as peft loads them");
  app->add_flag("--ema", arguments.ema,
                "Writes the moving average of the weights (optimizer.ema_decay) in place of the weights");
  app->add_flag("--overwrite", arguments.overwrite,
                "Replaces files that an earlier conversion has written there");
  return app;
}

int run_convert(const ConvertArguments& arguments) {
  return_freed_memory();
  log_to_stderr();
  const std::vector<std::string> lines = convert(arguments);
  fmt::print("{}\n", printable(lines.front()));
  for (size_t i = 1; i < lines.size(); ++i) fmt::print(stderr, "{}\n", printable(lines[i]));
  return 0;
}

}  // namespace

void add_convert(CommandLine& line) {
  line.add(declare_convert, run_convert);
}

}  // namespace pptrain::app
