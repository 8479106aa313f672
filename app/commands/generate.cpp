// pptrain generate
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"
#include "app/data/chat_codec.h"
#include "app/data/text_codec.h"
#include "app/generate/generator.h"
#include "app/generate/score.h"
#include "app/launch/run_ranks.h"
#include "app/plan/plan.h"
#include "app/plan/run_context.h"
#include "app/rank/rank_model.h"
#include "app/rank/weights_source.h"
#include "app/resolve/load_plan.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "core/config/data_sources.h"
#include "parallel/comm/agreement.h"

namespace pptrain::app {

namespace {

struct GenerateArguments : JobArguments {
  std::string checkpoint;               // as in EvalArguments
  std::vector<std::string> prompts;     // text
  std::string prompts_file;             // a prompt a line; "-": standard input
  std::vector<std::string> prompt_ids;  // "1,2,3"
  std::optional<int64_t> max_tokens;    // none: 128, or as many as the positions allow
  bool greedy = false;
  double temperature = 1, top_p = 1, min_p = 0, repetition_penalty = 1;
  int64_t top_k = 0;
  uint64_t seed = 0;
  std::vector<std::string> stop;  // texts
  std::vector<int64_t> stop_ids;
  int64_t in_flight = 32;
  bool chat = false;   // prompts are a user's messages
  std::string system;  // with chat: the message before each
  std::string score;   // a file of prompts and completions; "-": standard input; "": generates
  bool json = false;
};

struct Prompt {
  std::string text;  // "" if ids were given
  std::vector<int64_t> ids;
};

const TextCodec& needed(const TextCodec* codec, const char* argument, const config::JobConfig& job) {
  if (codec != nullptr) return *codec;
  throw UsageError(
      fmt::format("{} needs to know the text of tokens, which data.format = \"{}\" does not say: give "
                  "data.tokenizer, or ids (--prompt-ids, --stop-id)",
                  argument, config::data_sources(job).front().format.text));
}

struct Line {
  std::string text;
  int64_t number = 0;  // in its file, from 1
};

// The lines that are not empty.
std::vector<Line> lines_of(std::istream& text) {
  std::vector<Line> lines;
  int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back({line, number});
  }
  return lines;
}

std::vector<Line> read_lines(const std::string& path, const char* option) {
  std::ifstream file(path);
  if (!file) throw UsageError(fmt::format("{}: cannot read \"{}\"", option, path));
  std::vector<Line> lines = lines_of(file);
  if (lines.empty()) throw UsageError(fmt::format("{}: \"{}\" has no lines", option, path));
  return lines;
}

constexpr const char* standard_input = "-";

bool reads_standard_input(const GenerateArguments& a) {
  return a.prompts_file == standard_input ||
         (a.prompts.empty() && a.prompts_file.empty() && a.prompt_ids.empty());
}

struct GenerateRequest {
  std::shared_ptr<const TextCodec> codec;
  std::shared_ptr<const ChatCodec> chat;    // with --chat
  std::vector<Continuation> continuations;  // with --score
  std::vector<Prompt> prompts;
  GenerateOptions options;
};

// The user's and the assistant's contents in turns, the user's first, after a system message if there is one.
std::vector<int64_t> chat_ids(const ChatCodec& chat, const std::string& system,
                              const std::vector<std::string>& turns) {
  std::vector<corpus::Message> messages;
  if (!system.empty()) messages.push_back({.role = "system", .content = system});
  for (size_t i = 0; i < turns.size(); ++i)
    messages.push_back({.role = i % 2 == 0 ? "user" : "assistant", .content = turns[i]});
  return chat.prompt(messages);
}

Prompt prompt_of(const std::string& text, const GenerateArguments& arguments,
                 const GenerateRequest& request) {
  if (!request.chat) return {text, request.codec->encode(text)};
  return {text, chat_ids(*request.chat, arguments.system, {text})};
}

// In this order: texts, the file's lines, ids. Standard input belongs to rank 0 alone, and is read later.
std::vector<Prompt> read_prompts(const GenerateArguments& arguments, const GenerateRequest& request,
                                 const config::JobConfig& job) {
  const TextCodec* const codec = request.codec.get();
  std::vector<Prompt> prompts;
  if (!arguments.prompts.empty()) needed(codec, "--prompt", job);
  for (const std::string& text : arguments.prompts) prompts.push_back(prompt_of(text, arguments, request));
  if (!arguments.prompts_file.empty() && arguments.prompts_file != standard_input) {
    needed(codec, "--prompts", job);
    for (const Line& line : read_lines(arguments.prompts_file, "--prompts"))
      prompts.push_back(prompt_of(line.text, arguments, request));
  }
  for (const std::string& ids : arguments.prompt_ids) prompts.push_back({"", parse_ids(ids, "--prompt-ids")});
  if (reads_standard_input(arguments)) needed(codec, "a prompt from standard input", job);
  return prompts;
}

GenerateOptions options_of(const GenerateArguments& a, const config::JobConfig& job) {
  GenerateOptions options{.sampling = {.repetition_penalty = a.repetition_penalty,
                                       .temperature = a.greedy ? 0 : a.temperature,
                                       .top_k = a.top_k,
                                       .top_p = a.top_p,
                                       .min_p = a.min_p,
                                       .seed = a.seed},
                          .stop = {.max_tokens = 0, .ids = a.stop_ids, .texts = a.stop},
                          .in_flight = a.in_flight};
  check(options.sampling);
  if (job.data.document_end >= 0) options.stop.ids.push_back(job.data.document_end);
  for (const std::string& stop : a.stop) {
    if (stop.empty()) throw UsageError("--stop: the text is empty");
  }
  return options;
}

// Prints sequences one after the other, each as it grows; the later ones wait for their turn.
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
    fmt::print("{}\n", one_line(line));
  }
}

// A text's ids, or the ids given in its place.
std::vector<int64_t> side_of(const nlohmann::json& line, const std::string& key,
                             const std::function<std::vector<int64_t>(const std::string&)>& encode) {
  if (const auto text = line.find(key); text != line.end()) return encode(text->get<std::string>());
  return line.at(key + "_ids").get<std::vector<int64_t>>();
}

// A line each: {"prompt": TEXT, "completion": TEXT}, or ids under prompt_ids and completion_ids.
std::vector<Continuation> read_continuations(const std::vector<Line>& lines, const TextCodec* codec,
                                             const config::JobConfig& job) {
  std::vector<Continuation> all;
  for (const Line& line : lines) {
    const auto codec_of = [&]() -> const TextCodec& { return needed(codec, "--score", job); };
    try {
      const nlohmann::json json = nlohmann::json::parse(line.text);
      all.push_back({.prompt = side_of(json, "prompt", [&](auto& text) { return codec_of().encode(text); }),
                     .completion = side_of(json, "completion",
                                           [&](auto& text) { return codec_of().encode_completion(text); })});
    } catch (const nlohmann::json::exception& error) {
      throw UsageError(
          fmt::format("--score: line {} is no {{\"prompt\": TEXT, \"completion\": TEXT}}, nor one with lists "
                      "of ids under prompt_ids and completion_ids: {}",
                      line.number, error.what()));
    }
  }
  return all;
}

void print_scores(const std::vector<Continuation>& continuations, const std::vector<Score>& scores) {
  for (size_t i = 0; i < scores.size(); ++i) {
    const nlohmann::ordered_json line = {{"log_probability", scores[i].log_probability},
                                         {"tokens", continuations[i].completion.size()},
                                         {"greedy", scores[i].greedy}};
    fmt::print("{}\n", line.dump());
  }
}

// Sets the outputs' length: --max-tokens, or else 128 or as much as the longest prompt leaves of the model's
// positions. Throws UsageError for a prompt that the model does not take.
void set_length(GenerateRequest& request, const GenerateArguments& arguments, const Plan& plan) {
  constexpr int64_t usual = 128;
  const models::ModelConfig& model = plan.model;
  int64_t& length = request.options.stop.max_tokens;
  length = arguments.max_tokens.value_or(usual);
  if (!arguments.max_tokens) {
    for (const Prompt& prompt : request.prompts)
      length = std::min(
          length, std::max<int64_t>(1, model.longest_text() - static_cast<int64_t>(prompt.ids.size()) + 1));
  }
  for (size_t i = 0; i < request.prompts.size(); ++i)
    Generator::check(model, request.prompts[i].ids, static_cast<int64_t>(i), length);
}

GenerateRequest read_generate_request(const GenerateArguments& arguments, const Plan& plan) {
  GenerateRequest request{.codec = make_text_codec(plan.job),
                          .chat = arguments.chat ? std::make_shared<const ChatCodec>(plan.job) : nullptr,
                          .continuations = {},
                          .prompts = {},
                          .options = options_of(arguments, plan.job)};
  if (!arguments.score.empty()) {
    if (arguments.score != standard_input)
      request.continuations =
          read_continuations(read_lines(arguments.score, "--score"), request.codec.get(), plan.job);
    check_continuations(plan.model, request.continuations);
    return request;
  }
  if (request.codec) {
    for (const int64_t id : request.codec->stop_ids()) request.options.stop.ids.push_back(id);
  }
  if (request.chat) {
    StopRules& stop = request.options.stop;
    for (const int64_t id : request.chat->stop_ids()) stop.ids.push_back(id);
    for (const std::string& text : request.chat->stop_texts()) stop.texts.push_back(text);
  }
  request.prompts = read_prompts(arguments, request, plan.job);
  if (!arguments.stop.empty()) needed(request.codec.get(), "--stop", plan.job);
  set_length(request, arguments, plan);
  return request;
}

// Sends rank 0's standard input to all ranks: a line if it is a terminal, nothing at its end; else the whole
// text.
std::optional<std::string> from_standard_input(const RunContext& context, bool talks) {
  std::string text;
  if (context.root()) {
    bool read = true;
    if (talks) {
      fmt::print(stderr, "> ");
      read = static_cast<bool>(std::getline(std::cin, text));
    } else {
      text.assign(std::istreambuf_iterator<char>(std::cin), {});
    }
    text.insert(text.begin(), read ? '1' : '0');
  }
  text = comm::broadcast_string(context.mesh.world().host(), text, 0);
  return text.front() == '1' ? std::optional(text.substr(1)) : std::nullopt;
}

// Returns how many tokens were generated; `said`, if given, becomes the first prompt's text.
int64_t generate_all(RunContext& context, RankModel& model, const GenerateRequest& request, bool as_json,
                     std::string* said = nullptr) {
  std::vector<Sequence> sequences;
  for (const Prompt& prompt : request.prompts) {
    sequences.emplace_back(prompt.ids, static_cast<int64_t>(sequences.size()), request.options.stop,
                           request.codec.get());
  }
  Generator generator(context, model, request.options);
  Printer printer(request.prompts, request.codec != nullptr);
  Generator::Listener listener;
  if (context.root() && !as_json) listener = [&](const Sequence&) { printer.show(sequences); };
  generator.run(sequences, listener);
  if (context.root() && as_json) print_json(request.prompts, sequences, request.codec != nullptr);
  if (said != nullptr) *said = sequences.front().text();
  int64_t tokens = 0;
  for (const Sequence& sequence : sequences)
    tokens += static_cast<int64_t>(sequence.tokens().size()) - sequence.prompt_tokens();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    throw Error("the text cannot be written to standard output");
  return tokens;
}

// The conversation on a terminal.
class Talk {
 public:
  Talk(const GenerateArguments& arguments, const GenerateRequest& request)
      : arguments_(arguments), request_(request) {}

  void user(const std::string& line) {
    text_ += (text_.empty() ? "" : "\n") + line;
    turns_.push_back(line);
  }
  void model(const std::string& said) {
    text_ += said;
    turns_.push_back(said);
  }
  void begin_anew() {
    text_.clear();
    turns_.clear();
  }
  Prompt prompt() const {
    if (!request_.chat) return {text_, request_.codec->encode(text_)};
    return {turns_.back(), chat_ids(*request_.chat, arguments_.system, turns_)};
  }

 private:
  const GenerateArguments& arguments_;
  const GenerateRequest& request_;
  std::string text_;                // all, without --chat
  std::vector<std::string> turns_;  // the user's and the model's, with it
};

// Does the model have positions for the prompt and the tokens behind it?
bool fits(const Prompt& prompt, const GenerateArguments& arguments, const models::ModelConfig& model) {
  return static_cast<int64_t>(prompt.ids.size()) + arguments.max_tokens.value_or(1) - 1 <=
         model.longest_text();
}

// Line by line on a terminal: the model continues all text so far, as long as it fits.
void talk(RunContext& context, RankModel& model, const GenerateArguments& arguments,
          GenerateRequest request) {
  if (context.root()) spdlog::info("a line and Enter: the model goes on from all so far; Ctrl-D ends");
  Talk so_far(arguments, request);
  while (const auto line = from_standard_input(context, /*talks=*/true)) {
    if (line->empty()) continue;
    so_far.user(*line);
    request.prompts = {so_far.prompt()};
    if (!fits(request.prompts.front(), arguments, context.model)) {
      if (context.root())
        spdlog::info("the text is longer than the model's positions: it begins anew with this line");
      so_far.begin_anew();
      so_far.user(*line);
      request.prompts = {so_far.prompt()};
      if (!fits(request.prompts.front(), arguments, context.model)) {
        if (context.root()) spdlog::warn("this line alone is too long for them: it is left out");
        so_far.begin_anew();
        continue;
      }
    }
    set_length(request, arguments, context.plan);
    std::string said;
    generate_all(context, model, request, /*as_json=*/false, &said);
    so_far.model(said);
  }
  if (context.root()) fmt::print("\n");
}

void score_all(RunContext& context, const GenerateArguments& arguments, GenerateRequest request) {
  if (arguments.score == standard_input) {
    std::istringstream text(from_standard_input(context, /*talks=*/false).value_or(""));
    request.continuations = read_continuations(lines_of(text), request.codec.get(), context.job);
    if (request.continuations.empty()) throw CommonFault("generate: --score -: standard input has no lines");
  }
  RankModel model(context, Purpose::generate);
  load_weights(context, model, arguments.checkpoint);
  const std::vector<Score> scores = score(context, model, request.continuations, arguments.in_flight);
  if (context.root()) print_scores(request.continuations, scores);
}

int generate_rank(RunContext& context, const GenerateArguments& arguments, GenerateRequest request) {
  if (!arguments.score.empty()) {
    score_all(context, arguments, std::move(request));
    return 0;
  }
  const bool asks = reads_standard_input(arguments);
  const bool talks =
      comm::any(context.mesh.world().host(), context.root() && asks && !arguments.json &&
                                                 request.prompts.empty() && isatty(STDIN_FILENO) == 1);
  if (asks && !talks) {
    std::istringstream text(from_standard_input(context, /*talks=*/false).value_or(""));
    for (const Line& line : lines_of(text))
      request.prompts.push_back(prompt_of(line.text, arguments, request));
    if (request.prompts.empty()) {
      throw CommonFault(
          "generate: no prompt; give --prompt TEXT, --prompts FILE, --prompt-ids 1,2,3 or lines on standard "
          "input");
    }
    set_length(request, arguments, context.plan);
  }
  RankModel model(context, Purpose::generate);
  load_weights(context, model, arguments.checkpoint);
  if (talks) {
    talk(context, model, arguments, std::move(request));
    return 0;
  }
  const auto begin = std::chrono::steady_clock::now();
  const int64_t tokens = generate_all(context, model, request, arguments.json);
  const double seconds = seconds_since(begin);
  if (context.root()) {
    spdlog::info("{} prompt{}, {} tokens in {:.3f} s ({:.1f} tokens/s)", request.prompts.size(),
                 request.prompts.size() == 1 ? "" : "s", tokens, seconds,
                 static_cast<double>(tokens) / seconds);
  }
  return 0;
}

void add_sampling(CLI::App& app, GenerateArguments& a) {
  add_option(app, "--max-tokens N", a.max_tokens,
             "Tokens to generate for each prompt; default: 128, or fewer if the model's positions end "
             "earlier")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_flag("--greedy", a.greedy, "Always the most probable token; as --temperature 0");
  add_option(app, "--temperature X", a.temperature, "Divides the logits; 0: greedy")->capture_default_str();
  add_option(app, "--top-k K", a.top_k, "Only the k most probable tokens; 0: all")->capture_default_str();
  add_option(app, "--top-p P", a.top_p, "Only the most probable tokens that together have this probability")
      ->capture_default_str();
  add_option(app, "--min-p P", a.min_p,
             "Only tokens with at least this fraction of the best token's probability")
      ->capture_default_str();
  add_option(app, "--repetition-penalty X", a.repetition_penalty,
             "Above 1: makes tokens that are already in the sequence less probable")
      ->capture_default_str();
  add_option(app, "--seed N", a.seed,
             "Random seed. The same seed, prompt number and position give the same token")
      ->capture_default_str();
}

CLI::App* declare_generate(CLI::App& cli, GenerateArguments& a) {
  CLI::App* app = cli.add_subcommand("generate", "Generates text from prompts, through the pipeline");
  add_run_options(*app, a);
  add_checkpoint(*app, a.checkpoint);
  CLI::Option* const prompt =
      repeatable(add_option(*app, "--prompt TEXT", a.prompts, "A text to continue (repeatable)"));
  CLI::Option* const prompts = add_option(
      *app, "--prompts FILE", a.prompts_file,
      "A file of prompts, one per line; -: standard input, which is also read if no prompt is given");
  CLI::Option* const prompt_ids = repeatable(
      add_option(*app, "--prompt-ids IDS", a.prompt_ids, "A prompt as token ids: 1,2,3 (repeatable)"));
  CLI::Option* const chat =
      app->add_flag(
             "--chat", a.chat,
             "Makes each prompt a user's message in a conversation that the assistant answers, by the job's "
             "chat template ([data.chat], or else the model's own)")
          ->excludes(prompt_ids);
  add_option(*app, "--system TEXT", a.system, "With --chat: a system message before each prompt")
      ->needs(chat);
  add_sampling(*app, a);
  repeatable(add_option(*app, "--stop TEXT", a.stop,
                        "A text that ends the output and is not part of it (repeatable)"));
  repeatable(add_option(*app, "--stop-id ID", a.stop_ids,
                        "A token that also ends the output, like data.document_end (repeatable)"));
  add_option(*app, "--in-flight N", a.in_flight, "Prompts at a time; more go in waves. Bounds memory")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI::Option* const score = add_option(
      *app, "--score FILE", a.score,
      "Generates nothing. Reads lines {\"prompt\": TEXT, \"completion\": TEXT} from this file (-: "
      "standard input). For each, prints the completion's log-probability, its number of tokens, and "
      "whether greedy generation would give it. prompt_ids and completion_ids take ids");
  for (CLI::Option* const other : {prompt, prompts, prompt_ids, chat}) score->excludes(other);
  for (const char* const of_generation : {"--max-tokens", "--greedy", "--temperature", "--top-k", "--top-p",
                                          "--min-p", "--repetition-penalty", "--seed", "--stop", "--stop-id"})
    score->excludes(app->get_option(of_generation));
  app->add_flag("--json", a.json, "Prints one JSON object per prompt, when all are done");
  return app;
}

int generate(const GenerateArguments& given) {
  GenerateArguments arguments = given;
  GenerateRequest request;
  const auto load = [&] {
    log_to_stderr();
    take_run(arguments, &arguments.checkpoint);
    std::vector<std::string> overrides = arguments.set;
    for (std::string& text : hf_overrides(arguments.checkpoint)) overrides.push_back(std::move(text));
    LoadOptions options = options_of_rank(arguments, nullptr);
    options.needs_files = options.reads_data = options.trains = false;
    options.gives_logits = true;
    Plan plan = load_plan(arguments.config, overrides, options);
    request = read_generate_request(arguments, plan);
    return plan;
  };
  return run_ranks(load, [&](RunContext& context) { return generate_rank(context, arguments, request); });
}

}  // namespace

void add_generate(CommandLine& line) {
  line.add(declare_generate, generate, /*of_ranks=*/true);
}

}  // namespace pptrain::app
