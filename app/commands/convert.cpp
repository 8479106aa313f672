#include "app/commands/command_line.h"
#include "app/commands/commands.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "app/commands/job_options.h"
#include "app/convert/convert.h"
#include "core/base/heap.h"
#include "core/base/printable.h"

namespace pptrain::app {

namespace {

const std::map<std::string, at::ScalarType> stored_types = {
    {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};

CLI::App* declare_convert(CLI::App& cli, ConvertArguments& arguments) {
  CLI::App* app = cli.add_subcommand(
      "convert", "A checkpoint becomes a Hugging Face directory, a Hugging Face directory a checkpoint");
  add_option(*app, "--from DIR", arguments.from,
             "A checkpoint of any layout, a folder of them, a run's folder, or a Hugging Face directory")
      ->required();
  add_option(*app, "--to DIR", arguments.to, "The folder that is written: it appears whole, or not at all")
      ->required();
  app->add_option_function<std::string>(
         "--dtype", [&arguments](const std::string& word) { arguments.dtype = stored_types.at(word); },
         "Of the Hugging Face weights: fp32 (as checkpoints hold them), bf16 or fp16; default: as in the "
         "directory that the checkpoint was made of, else fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->option_text("TYPE");
  add_option(*app, "--max-shard-gb GB", arguments.max_shard_gb,
             "GB (1e9 bytes) that a file of Hugging Face weights may have; default: 50")
      ->check(CLI::PositiveNumber);
  add_option(*app, "--tokenizer DIR", arguments.tokenizer,
             "Whose files go along: tokenizer.json, or the folder that it is in; default: the job's");
  app->add_flag("--merge", arguments.merge,
                "Of a checkpoint with adapters (lora.rank): write the whole model with the adapters added to "
                "its weights; default: the adapters alone, as peft loads them");
  app->add_flag("--overwrite", arguments.overwrite, "Replace what an earlier conversion has written there");
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
