// pptrain generate
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/data/text_codec.h"
#include "app/generate/generator.h"
#include "app/launch/run_ranks.h"
#include "app/plan/plan.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/rank/weights_source.h"
#include "app/resolve/load_plan.h"
#include "core/base/error.h"
#include "core/config/data_sources.h"

namespace pptrain::app {

namespace {

using Clock = std::chrono::steady_clock;

struct Prompt {
  std::string text;  // "" where ids were given
  std::vector<int64_t> ids;
};

const TextCodec& needed(const TextCodec* codec, const char* argument, const config::JobConfig& job) {
  if (codec != nullptr) return *codec;
  throw UsageError(
      fmt::format("{} needs to know the text of tokens, which data.format = \"{}\" does not say: give "
                  "data.tokenizer, or ids (--prompt-ids, --stop-id)",
                  argument, config::data_sources(job).front().format.text));
}

std::vector<int64_t> parse_ids(const std::string& text) {
  std::vector<int64_t> ids;
  std::string_view rest = text;
  if (rest.starts_with('[') && rest.ends_with(']'))
    rest = rest.substr(1, rest.size() - 2);  // as --json prints
  while (true) {
    const std::string_view word = rest.substr(0, rest.find(','));
    int64_t id = 0;
    const auto read = std::from_chars(word.data(), word.data() + word.size(), id);
    if (read.ec != std::errc() || read.ptr != word.data() + word.size())
      throw UsageError(
          fmt::format("--prompt-ids \"{}\": expected numbers with commas between, like 1,2,3", text));
    ids.push_back(id);
    if (word.size() == rest.size()) return ids;
    rest.remove_prefix(word.size() + 1);
  }
}

std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw UsageError(fmt::format("--prompts: cannot read \"{}\"", path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  if (lines.empty()) throw UsageError(fmt::format("--prompts: \"{}\" has no lines", path));
  return lines;
}

// In the order: texts, the file's lines, ids.
std::vector<Prompt> read_prompts(const GenerateArguments& arguments, const TextCodec* codec,
                                 const config::JobConfig& job) {
  std::vector<Prompt> prompts;
  for (const std::string& text : arguments.prompts)
    prompts.push_back({text, needed(codec, "--prompt", job).encode(text)});
  if (!arguments.prompts_file.empty()) {
    for (const std::string& text : read_lines(arguments.prompts_file))
      prompts.push_back({text, needed(codec, "--prompts", job).encode(text)});
  }
  for (const std::string& ids : arguments.prompt_ids) prompts.push_back({"", parse_ids(ids)});
  if (prompts.empty())
    throw UsageError("generate: no prompt; give --prompt TEXT, --prompts FILE or --prompt-ids 1,2,3");
  return prompts;
}

GenerateOptions options_of(const GenerateArguments& a, const config::JobConfig& job) {
  GenerateOptions options{.sampling = {.repetition_penalty = a.repetition_penalty,
                                       .temperature = a.greedy ? 0 : a.temperature,
                                       .top_k = a.top_k,
                                       .top_p = a.top_p,
                                       .min_p = a.min_p,
                                       .seed = a.seed},
                          .stop = {.max_tokens = a.max_tokens, .ids = a.stop_ids, .texts = a.stop},
                          .in_flight = a.in_flight};
  check(options.sampling);
  if (job.data.document_end >= 0) options.stop.ids.push_back(job.data.document_end);
  for (const std::string& stop : a.stop) {
    if (stop.empty()) throw UsageError("--stop: the text is empty");
  }
  return options;
}

// Prints sequences one after the other, each as it grows; those whose turn has not come wait.
class Printer {
 public:
  Printer(const std::vector<Prompt>& prompts, bool as_text) : prompts_(prompts), as_text_(as_text) {}

  void show(const std::vector<Sequence>& sequences) {
    for (; turn_ < sequences.size(); ++turn_, shown_ = 0) {
      const Sequence& sequence = sequences[turn_];
      if (prompts_.size() > 1 && !begun_) print_heading();
      begun_ = true;
      const bool grew = as_text_ ? show_text(sequence.text()) : show_ids(sequence.generated());
      if (grew || sequence.finish()) std::fflush(stdout);
      if (!sequence.finish()) return;
      fmt::print("\n");
      begun_ = false;
    }
  }

 private:
  void print_heading() const {
    const Prompt& prompt = prompts_[turn_];
    fmt::print("{}--- {}: {}\n", turn_ > 0 ? "\n" : "", turn_ + 1,
               prompt.text.empty() ? fmt::format("{}", fmt::join(prompt.ids, ",")) : prompt.text);
  }

  bool show_text(const std::string& text) {
    fmt::print("{}", std::string_view(text).substr(shown_));
    return std::exchange(shown_, text.size()) != text.size();
  }

  bool show_ids(const std::vector<int64_t>& ids) {
    for (size_t i = shown_; i < ids.size(); ++i) fmt::print("{}{}", i == 0 ? "" : ",", ids[i]);
    return std::exchange(shown_, ids.size()) != ids.size();
  }

  const std::vector<Prompt>& prompts_;
  bool as_text_;
  size_t turn_ = 0, shown_ = 0;  // the sequence, and bytes or ids of it
  bool begun_ = false;
};

void print_json(const std::vector<Prompt>& prompts, const std::vector<Sequence>& sequences, bool as_text) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    nlohmann::ordered_json line;
    if (!prompts[i].text.empty()) line["prompt"] = prompts[i].text;
    line["prompt_ids"] = prompts[i].ids;
    line["ids"] = sequences[i].generated();
    if (as_text) line["text"] = sequences[i].text();
    line["finish"] = to_string(*sequences[i].finish());
    fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
}

struct GenerateRequest {
  std::shared_ptr<const TextCodec> codec;
  std::vector<Prompt> prompts;
  GenerateOptions options;
};

GenerateRequest read_generate_request(const GenerateArguments& arguments, const Plan& plan) {
  GenerateRequest request{
      .codec = make_text_codec(plan.job), .prompts = {}, .options = options_of(arguments, plan.job)};
  if (request.codec) {
    for (const int64_t id : request.codec->stop_ids()) request.options.stop.ids.push_back(id);
  }
  request.prompts = read_prompts(arguments, request.codec.get(), plan.job);
  if (!arguments.stop.empty()) needed(request.codec.get(), "--stop", plan.job);
  const models::ModelConfig model = with_all_positions(plan.model, plan.job);
  for (size_t i = 0; i < request.prompts.size(); ++i)
    Generator::check(model, request.prompts[i].ids, static_cast<int64_t>(i), arguments.max_tokens);
  return request;
}

int generate_rank(RunContext& context, const GenerateArguments& arguments, const GenerateRequest& request) {
  RankModel model(context, Purpose::generate);
  const std::string weights = load_weights(context, model, arguments.checkpoint);
  if (context.root()) spdlog::info("{}; {}", weights, context.mesh.shape().describe());
  std::vector<Sequence> sequences;
  for (const Prompt& prompt : request.prompts) {
    sequences.emplace_back(prompt.ids, static_cast<int64_t>(sequences.size()), request.options.stop,
                           request.codec.get());
  }
  Generator generator(context, model, request.options);
  Printer printer(request.prompts, request.codec != nullptr);
  Generator::Listener listener;
  if (context.root() && !arguments.json) listener = [&](const Sequence&) { printer.show(sequences); };
  const auto begin = Clock::now();
  generator.run(sequences, listener);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (!context.root()) return 0;
  if (arguments.json) print_json(request.prompts, sequences, request.codec != nullptr);
  int64_t tokens = 0;
  for (const Sequence& sequence : sequences)
    tokens += static_cast<int64_t>(sequence.tokens().size()) - sequence.prompt_tokens();
  std::fflush(stdout);
  spdlog::info("{} prompt{}, {} tokens in {:.3f} s ({:.1f} tokens/s)", sequences.size(),
               sequences.size() == 1 ? "" : "s", tokens, seconds, static_cast<double>(tokens) / seconds);
  return 0;
}

void add_sampling(CLI::App& generate, GenerateArguments& a) {
  generate.option_defaults()->always_capture_default();
  generate.add_option("--max-tokens", a.max_tokens, "Tokens to generate, of each prompt")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  generate.add_flag("--greedy", a.greedy, "Always the most probable token; as --temperature 0");
  generate.add_option("--temperature", a.temperature, "Divides the logits; 0: greedy")->option_text("X");
  generate.add_option("--top-k", a.top_k, "Only the k most probable tokens; 0: all")->option_text("K");
  generate
      .add_option("--top-p", a.top_p, "Only the most probable tokens that together have this probability")
      ->option_text("P");
  generate
      .add_option("--min-p", a.min_p, "Only tokens of at least this fraction of the best one's probability")
      ->option_text("P");
  generate
      .add_option("--repetition-penalty", a.repetition_penalty,
                  "Above 1: tokens that the sequence has already become less probable")
      ->option_text("X");
  generate
      .add_option("--seed", a.seed,
                  "Of the random numbers, which depend on it, the prompt's number and the place alone")
      ->option_text("N");
  generate.option_defaults()->always_capture_default(false);
}

}  // namespace

CLI::App* add_generate(CLI::App& cli, GenerateArguments& a) {
  CLI::App* generate = cli.add_subcommand("generate", "Text that goes on from prompts, through the pipeline");
  add_job_options(*generate, a);
  add_checkpoint(*generate, a.checkpoint);
  repeatable(generate->add_option("--prompt", a.prompts, "A text to go on from (repeatable)"))
      ->option_text("TEXT");
  generate->add_option("--prompts", a.prompts_file, "A file of prompts, one a line")->option_text("FILE");
  repeatable(generate->add_option("--prompt-ids", a.prompt_ids, "A prompt as token ids: 1,2,3 (repeatable)"))
      ->option_text("IDS");
  add_sampling(*generate, a);
  repeatable(generate->add_option("--stop", a.stop,
                                  "A text that ends the output, and is no part of it (repeatable)"))
      ->option_text("TEXT");
  repeatable(generate->add_option("--stop-id", a.stop_ids,
                                  "A token that ends the output (repeatable), beside data.document_end"))
      ->option_text("ID");
  generate->add_option("--in-flight", a.in_flight, "Prompts at a time; more go in waves. Bounds memory")
      ->option_text("N")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  generate->add_flag("--json", a.json, "An object of JSON a prompt, when all are done");
  return generate;
}

int generate(const GenerateArguments& arguments) {
  GenerateRequest request;
  const auto load = [&] {
    log_to_stderr();
    std::vector<std::string> overrides = arguments.set;
    for (std::string& text : hf_overrides(arguments.checkpoint)) overrides.push_back(std::move(text));
    Plan plan = load_plan(arguments.config, overrides,
                          {.world = world_of(arguments), .needs_files = false, .reads_data = false});
    request = read_generate_request(arguments, plan);
    return plan;
  };
  return run_ranks(load, [&](RunContext& context) { return generate_rank(context, arguments, request); });
}

}  // namespace pptrain::app
