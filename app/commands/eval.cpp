// pptrain eval
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/data/datasets.h"
#include "app/data/inspection.h"
#include "app/data/token_files.h"
#include "app/generate/generator.h"
#include "app/generate/score.h"
#include "app/launch/run_ranks.h"
#include "app/plan/run_context.h"
#include "app/rank/evaluator.h"
#include "app/rank/rank_model.h"
#include "app/rank/weights_source.h"
#include "app/resolve/load_plan.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "core/config/document.h"
#include "core/io/atomic_file.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

namespace {

struct EvalArguments : JobArguments {
  std::string checkpoint;   // a checkpoint, a run's folder or a Hugging Face directory; "": see load_weights
  int64_t batches = -1;     // instead of eval.batches; -1: not given
  std::string documents;    // a file for the loss of each document
  std::string logits, ids;  // a file for the logits of ids; and the ids: "1,2,3", or a file with them
  bool json = false;
};

struct Result {
  std::string weights;      // their source
  metrics::SourceLoss all;  // without a name
  double seconds = 0;
  std::vector<std::pair<std::string, metrics::SourceLoss>> sources;  // each after what was read
};

// The data read of each source that is validated on.
std::vector<std::string> places_of(const config::JobConfig& job) {
  std::vector<std::string> places;
  for (const config::DataSource& source : config::data_sources(job)) {
    if (!config::has_validation(source)) continue;
    const auto& paths = source.val_path.empty() ? source.path : source.val_path;
    std::string place = fmt::format("{}", fmt::join(paths, ", "));
    if (source.val_path.empty()) place += fmt::format(" (the last {} of it)", source.val_fraction);
    places.push_back(std::move(place));
  }
  return places;
}

nlohmann::ordered_json json_of(const metrics::SourceLoss& loss) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (loss.tokens > 0) {
    json["loss"] = loss.loss();
    json["perplexity"] = loss.perplexity();
    if (const auto bits = loss.bits_per_byte()) json["bits_per_byte"] = *bits;
  }
  json["tokens"] = loss.tokens;
  return json;
}

void print_json(const Result& result) {
  nlohmann::ordered_json all = {{"weights", result.weights}};
  all.update(json_of(result.all));
  all["time_s"] = result.seconds;
  for (const auto& [place, loss] : result.sources) {
    nlohmann::ordered_json source = {{"source", place}};
    if (!loss.name.empty()) source["name"] = loss.name;
    source.update(json_of(loss));
    all["sources"].push_back(std::move(source));
  }
  fmt::print("{}\n", one_line(all));
}

void print_text(const Result& result) {
  const auto bits = result.all.bits_per_byte();
  fmt::print("weights        {}\n", printable(result.weights));
  for (const auto& [place, loss] : result.sources)
    fmt::print("data           {}{}{}\n", loss.name, loss.name.empty() ? "" : ": ", printable(place));
  fmt::print("loss           {:.4f} nats per token\nperplexity     {:.4f}\n", result.all.loss(),
             result.all.perplexity());
  if (bits) fmt::print("bits per byte  {:.4f}\n", *bits);
  fmt::print("tokens         {}\ntime           {:.1f} s\n", result.all.tokens, result.seconds);
  if (result.sources.size() < 2) return;
  for (const auto& [place, loss] : result.sources) {
    if (loss.tokens == 0) {
      fmt::print("{:<14} no token to predict\n", loss.name);
      continue;
    }
    const auto own_bits = loss.bits_per_byte();
    fmt::print("{:<14} loss {:.4f}  perplexity {:.4f}{}  tokens {}\n", loss.name, loss.loss(),
               loss.perplexity(), own_bits ? fmt::format("  bits per byte {:.4f}", *own_bits) : "",
               loss.tokens);
  }
}

// A line of JSON for each document of each source.
void write_documents(const std::string& path, const Result& result,
                     const std::vector<std::vector<DocumentLoss>>& documents) {
  std::string text;
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto& [place, loss] = result.sources[i];
    for (const DocumentLoss& document : documents[i]) {
      const nlohmann::ordered_json line = {{"source", loss.name.empty() ? place : loss.name},
                                           {"document", document.document},
                                           {"loss", document.sum / static_cast<double>(document.targets)},
                                           {"targets", document.targets}};
      text += one_line(line) + "\n";
    }
  }
  io::write_file_atomically(path, text);
}

// NumPy's format, version 1.0. values: float32 [rows, columns].
void write_npy(const std::string& path, const at::Tensor& values) {
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}",
                                   values.size(0), values.size(1));
  constexpr size_t before = 10, alignment = 64;  // bytes
  header.resize((before + header.size()) / alignment * alignment + alignment - before - 1, ' ');
  header += '\n';
  std::string text("\x93NUMPY\x01\x00", 8);
  text += static_cast<char>(header.size() & 0xff);
  text += static_cast<char>(header.size() >> 8);
  text += header;
  text.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  io::write_file_atomically(path, text);
}

// On a terminal: a line that is overwritten, and removed at the end.
void show_progress(int64_t done, int64_t all) {
  fmt::print(stderr, "\r{}", done < all ? fmt::format("{} of {} batches", done, all) : "\x1b[K");
  std::fflush(stderr);
}

std::vector<int64_t> wanted_ids(const EvalArguments& arguments) {
  if (!io::is_there(arguments.ids)) return parse_ids(arguments.ids, "--ids");
  std::ifstream file(arguments.ids);
  std::string text(std::istreambuf_iterator<char>(file), {}), ids;
  std::ranges::replace_if(
      text, [](char c) { return c == ',' || c == '[' || c == ']'; }, ' ');
  std::istringstream words(text);
  for (std::string word; words >> word;) ids += (ids.empty() ? "" : ",") + word;
  return parse_ids(ids, "--ids");
}

int logits_rank(RunContext& context, const EvalArguments& arguments, const std::vector<int64_t>& ids) {
  RankModel model(context, Purpose::generate);
  load_weights(context, model, arguments.checkpoint);
  const at::Tensor logits = logits_of(context, model, ids);
  if (context.root()) write_npy(arguments.logits, logits);
  return 0;
}

int eval_rank(RunContext& context, const EvalArguments& arguments) {
  const auto disk = checkpoint::disk_communicator(context.mesh.world());
  const TokenFiles files = make_token_files(context, *disk, Wanted::validation, [] { return false; });
  const auto sources = open_data(context.job, context.model.vocab, files, Wanted::validation);
  RankModel model(context, Purpose::evaluate);
  Result result{.weights = load_weights(context, model, arguments.checkpoint), .all = {}, .sources = {}};
  Evaluator evaluator(context, model, sources, !arguments.documents.empty());
  const auto begin = std::chrono::steady_clock::now();
  const Evaluator::Result found =
      evaluator.run(context.root() && isatty(STDERR_FILENO) == 1 ? show_progress : Evaluator::Progress());
  result.seconds = seconds_since(begin);
  result.all = found.all;
  if (found.all.tokens == 0)
    throw CommonFault(
        "the validation data have no token to predict: all are prompts, first tokens of documents or "
        "padding");
  const std::vector<std::string> places = places_of(context.job);
  for (size_t i = 0; i < places.size(); ++i) result.sources.emplace_back(places[i], found.sources[i]);
  if (!context.root()) return 0;
  if (!arguments.documents.empty()) write_documents(arguments.documents, result, found.documents);
  if (arguments.json) {
    print_json(result);
  } else {
    print_text(result);
  }
  return 0;
}

CLI::App* declare_eval(CLI::App& cli, EvalArguments& arguments) {
  CLI::App* eval =
      cli.add_subcommand("eval", "Computes a model's loss on the job's validation data, forward only");
  add_run_options(*eval, arguments);
  add_checkpoint(*eval, arguments.checkpoint);
  CLI::Option* const batches =
      add_option(
          *eval, "--batches N", arguments.batches,
          "Validation batches, each of as many samples as a training step; 0: all; default: eval.batches, "
          "or all with --documents")
          ->check(CLI::NonNegativeNumber);
  CLI::Option* const documents =
      add_option(*eval, "--documents FILE", arguments.documents,
                 "Also writes a line of JSON to this file for each document with a target: source, number "
                 "from 0, loss per target, number of targets");
  CLI::Option* const ids =
      add_option(*eval, "--ids IDS", arguments.ids, "Token ids for --logits: 1,2,3, or a file with them");
  ids->needs(add_option(*eval, "--logits FILE", arguments.logits,
                        "Writes the logits of --ids to this file instead, float32 [tokens, vocab_size] in "
                        "NumPy's format; reads no data")
                 ->needs(ids)
                 ->excludes(documents)
                 ->excludes(batches)
                 ->excludes(eval->add_flag("--json", arguments.json, "Prints one JSON object")));
  return eval;
}

// Makes the job validate, whatever its own eval.interval.
int eval(const EvalArguments& given) {
  EvalArguments arguments = given;
  std::vector<int64_t> ids;
  const auto load = [&] {
    log_to_stderr();
    take_run(arguments, &arguments.checkpoint);
    std::vector<std::string> overrides = arguments.set;
    if (arguments.logits.empty()) overrides.push_back(config::by_command("eval.interval=1"));  // it validates
    if (!arguments.documents.empty() && arguments.batches < 0) arguments.batches = 0;
    if (arguments.batches >= 0)
      overrides.push_back(config::by_command(fmt::format("eval.batches={}", arguments.batches)));
    for (std::string& text : hf_overrides(arguments.checkpoint)) overrides.push_back(std::move(text));
    LoadOptions options = options_of_rank(arguments, arguments.logits.empty() ? inspect_data : nullptr);
    options.trains = false;
    options.gives_logits = !arguments.logits.empty();
    if (arguments.logits.empty()) return load_plan(arguments.config, overrides, options);
    options.needs_files = options.reads_data = false;
    Plan plan = load_plan(arguments.config, overrides, options);
    ids = wanted_ids(arguments);
    Generator::check(plan.model, ids, 0, 1);
    return plan;
  };
  return run_ranks(load, [&](RunContext& context) {
    return arguments.logits.empty() ? eval_rank(context, arguments) : logits_rank(context, arguments, ids);
  });
}

}  // namespace

void add_eval(CommandLine& line) {
  line.add(declare_eval, eval, /*of_ranks=*/true);
}

}  // namespace pptrain::app
