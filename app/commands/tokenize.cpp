#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/commands/job_options.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/base/source_files.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "core/config/loader.h"
#include "core/metrics/log_sinks.h"
#include "core/metrics/progress_text.h"
#include "core/text/corpus/chat.h"
#include "core/text/corpus/token_writer.h"
#include "core/text/corpus/tokenize_files.h"
#include "core/text/tokenizer/tokenizer.h"

namespace pptrain::app {

namespace {

struct TokenizeArguments {
  std::string tokenizer;  // tokenizer.json, or its folder
  std::string out;        // PREFIX of .bin and .idx
  std::string key;        // JSONL, Parquet
  std::string prompt_key, completion_key, messages_key;
  std::vector<std::string> chat;  // "template=llama3": keys of [data.chat]
  int64_t max_document_tokens = 0;
  std::string separator;  // between documents, with \n, \t and \\ for what they are in C
  std::string eos;        // a token, an id or "none"; empty: from the tokenizer's folder
  config::Word<config::BadLines> bad_lines = config::BadLines::refuse;
  bool no_special = false;
  bool overwrite = false;
  int64_t threads = 0;  // 0: one for each core
  std::vector<std::string> files;
};

using Clock = std::chrono::steady_clock;
using config::DataFormat;
using corpus::TokenizeProgress;
using tokenizer::Tokenizer;

std::string unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    if (next != 'n' && next != 't' && next != '\\') {
      out += text[i];
      continue;
    }
    out += next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    ++i;
  }
  return out;
}

// A number is an id, even if a token is spelled so.
std::optional<int32_t> find_end(const Tokenizer& tokenizer, const std::string& wanted) {
  if (wanted == "none") return std::nullopt;
  if (wanted.empty()) return tokenizer.eos_id();
  if (const auto id = to_number<int32_t>(wanted); id && tokenizer.token_of(*id)) return id;
  if (const auto token = tokenizer.id_of(wanted)) return token;
  throw UsageError(
      fmt::format("--eos {}: neither a token of the tokenizer nor the id of one, nor none", wanted));
}

// Shows control characters as JSON writes them.
std::string shown(const std::string& token) {
  return one_line(nlohmann::json(token));
}

bool has_ending(const std::string& name, DataFormat format) {
  return std::ranges::any_of(config::file_endings(format),
                             [&](std::string_view e) { return name.ends_with(e); });
}

// Is it a file of the format, or a folder that holds one?
bool is_of(const std::string& name, DataFormat format) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(name, ignored)) return has_ending(name, format);
  for (std::filesystem::directory_iterator entry(name, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const std::string file = entry->path().filename().string();
    if (!file.starts_with('.') && has_ending(file, format)) return true;  // as source_files() takes them
  }
  return false;
}

// The format of the files: by their names, and by the keys given.
corpus::DocumentFormat format_of(const TokenizeArguments& arguments) {
  const bool prompts = !arguments.prompt_key.empty();
  const bool keys = prompts || !arguments.key.empty() || !arguments.messages_key.empty();
  const auto any = [&](DataFormat format) {
    return std::ranges::find_if(arguments.files,
                                [&](const std::string& name) { return has_ending(name, format); });
  };
  for (const DataFormat format : {DataFormat::jsonl, DataFormat::parquet}) {
    if (const auto file = any(format); !keys && file != arguments.files.end())
      throw UsageError(fmt::format("{}: a {} file needs --key, under which its texts are (--key text)", *file,
                                   format == DataFormat::jsonl ? "JSONL" : "Parquet"));
  }
  const auto none_of = [&](DataFormat format) {
    return std::ranges::none_of(arguments.files,
                                [&](const std::string& name) { return is_of(name, format); });
  };
  const bool parquet = any(DataFormat::parquet) != arguments.files.end() ||
                       (keys && !none_of(DataFormat::parquet) && none_of(DataFormat::jsonl));
  return {.kind = parquet ? DataFormat::parquet
                  : keys  ? DataFormat::jsonl
                          : DataFormat::text,
          .key = arguments.key,
          .prompt_key = arguments.prompt_key,
          .completion_key = arguments.completion_key,
          .messages_key = arguments.messages_key,
          .chat = arguments.messages_key.empty()
                      ? nullptr
                      : corpus::make_chat_template(config::parse_chat(arguments.chat), arguments.tokenizer),
          .separator = unescape(arguments.separator),
          .skip_bad_lines = arguments.bad_lines == config::BadLines::skip};
}

// A folder stands for its files of this format.
std::vector<std::filesystem::path> files_of(const TokenizeArguments& arguments, DataFormat kind) {
  return source_files(arguments.files, config::file_endings(kind));
}

// "[#####-----]  45%  450 of 1,000 MB  52.1 MB/s  0:11 left", cut to the space there is.
std::string bar_text(const TokenizeProgress& progress, double seconds, int columns) {
  // Files may grow meanwhile.
  const double share = progress.total_bytes > progress.bytes
                           ? static_cast<double>(progress.bytes) / static_cast<double>(progress.total_bytes)
                           : 1;
  constexpr size_t width = 24;
  const auto filled = static_cast<size_t>(share * width);
  const auto megabytes = [](uint64_t bytes) {
    return metrics::with_commas(static_cast<int64_t>(bytes / 1'000'000));
  };
  std::string text = fmt::format("{:3.0f}%  {} of {} MB", 100 * share, megabytes(progress.bytes),
                                 megabytes(progress.total_bytes));
  const auto add = [&](const std::string& more, bool front) {
    if (text.size() + more.size() + 2 >= static_cast<size_t>(columns)) return;
    text = front ? more + "  " + text : text + "  " + more;
  };
  if (seconds > 0.5 && share > 0) {
    add(fmt::format("{:.1f} MB/s", static_cast<double>(progress.bytes) / seconds / 1e6), false);
    add(metrics::duration_text(seconds / share - seconds) + " left", false);
  }
  add(fmt::format("[{}{}]", std::string(filled, '#'), std::string(width - filled, '-')), true);
  return text.substr(0, static_cast<size_t>(std::max(0, columns - 1)));
}

void print_result(const TokenizeArguments& arguments, const Tokenizer& tokenizer,
                  const TokenizeProgress& result, int token_bytes, double seconds) {
  const auto bytes = static_cast<double>(result.bytes);
  fmt::print(
      "{0}.bin, {0}.idx: {1} document{6}, {2} tokens of {3} bytes; {4:.2f} bytes of text a token, {5:.1f} "
      "MB/s\n",
      arguments.out, metrics::with_commas(result.documents), metrics::with_commas(result.tokens), token_bytes,
      result.tokens > 0 ? static_cast<double>(result.text_bytes) / static_cast<double>(result.tokens) : 0,
      seconds > 0 ? bytes / seconds / 1e6 : 0, result.documents == 1 ? "" : "s");
  if (result.empty > 0)
    fmt::print("{} documents without a text were left out\n", metrics::with_commas(result.empty));
  if (result.truncated > 0)
    fmt::print("{} documents were truncated to {} tokens\n", metrics::with_commas(result.truncated),
               arguments.max_document_tokens);
  if (result.without_targets > 0)
    fmt::print("{} documents have no token to learn{}\n", metrics::with_commas(result.without_targets),
               arguments.max_document_tokens > 0 ? ": they are truncated before their answers" : "");
  if (result.begun_twice > 0)
    fmt::print(
        "{} documents begin twice: the texts have the tokens that the tokenizer puts before each; "
        "--no-special takes the texts as they are\n",
        metrics::with_commas(result.begun_twice));
  if (result.bad > 0)
    fmt::print("{} lines without a document were left out, the first: {}\n", metrics::with_commas(result.bad),
               printable(result.first_bad));
  fmt::print("to train on it: data.path=\"{}.bin\" data.format=\"megatron\" model.vocab_size={} or more\n",
             arguments.out, tokenizer.vocab_size());
}

CLI::App* declare_tokenize(CLI::App& cli, TokenizeArguments& arguments) {
  CLI::App* app =
      cli.add_subcommand("tokenize", "Makes token files from texts with a Hugging Face tokenizer.json");
  add_option(*app, "--tokenizer FILE", arguments.tokenizer, "tokenizer.json, or the folder that it is in")
      ->required();
  add_option(*app, "--out PREFIX", arguments.out, "Writes PREFIX.bin and PREFIX.idx (Megatron-LM's format)")
      ->required();
  CLI::Option* key =
      add_option(*app, "--key NAME", arguments.key,
                 "Key of each document's text; the files are JSONL (also .gz and .zst) or Parquet");
  CLI::Option* prompt =
      add_option(*app, "--prompt-key NAME", arguments.prompt_key,
                 "In place of --key: the key of a prompt, whose tokens training does not predict")
          ->excludes(key);
  CLI::Option* completion =
      add_option(*app, "--completion-key NAME", arguments.completion_key, "Key of the text after the prompt")
          ->needs(prompt);
  prompt->needs(completion);
  CLI::Option* messages = add_option(*app, "--messages-key NAME", arguments.messages_key,
                                     "In place of --key: the key of a conversation, a list of {role, "
                                     "content}; training predicts the assistant's tokens")
                              ->excludes(key)
                              ->excludes(prompt);
  CLI::Option* chat =
      repeatable(add_option(*app, "--chat KEY=VALUE", arguments.chat,
                            "A key of [data.chat], such as template=llama3, as a job gives it (repeatable)"))
          ->needs(messages);
  messages->needs(chat);
  add_option(*app, "--max-document-tokens N", arguments.max_document_tokens,
             "Truncates documents to this many tokens; 0: no limit")
      ->check(CLI::NonNegativeNumber);
  add_option(*app, "--document-separator TEXT", arguments.separator,
             "Text between the documents of a file (\\n and \\t as in C); without it a file is one document")
      ->excludes(key)
      ->excludes(prompt)
      ->excludes(messages);
  add_option(*app, "--eos TOKEN", arguments.eos,
             "Token after each document, or its id, or none; default: eos_token of tokenizer_config.json in "
             "the tokenizer's folder, if there is one")
      ->excludes(messages);
  add_option(*app, "--bad-lines WORD", arguments.bad_lines.text,
             "JSONL lines without a document: refuse, or skip, which says how many and where the first is")
      ->check(CLI::IsMember({"refuse", "skip"}))
      ->capture_default_str();
  app->add_flag("--no-special", arguments.no_special,
                "Omits the tokens that tokenizer.json puts around a text (its post_processor)");
  add_option(*app, "--threads N", arguments.threads, "Threads; default: one per core")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  app->add_flag("--overwrite", arguments.overwrite, "Replace files that are there already");
  app->add_option("FILE", arguments.files,
                  "Text files. Each is a document, unless --key or --document-separator is given. A folder "
                  "stands for its *.txt, *.jsonl or *.parquet files, \"*.jsonl\" for all files that match")
      ->required();
  return app;
}

int tokenize(const TokenizeArguments& arguments) {
  const Tokenizer tokenizer = Tokenizer::load(arguments.tokenizer);
  corpus::TokenizeRequest request;
  request.format = format_of(arguments);
  request.add_special = !arguments.no_special;
  request.end_id = find_end(tokenizer, arguments.eos);
  request.max_tokens = arguments.max_document_tokens;
  request.threads = static_cast<int>(arguments.threads > 0 ? arguments.threads : core_count());
  if (request.format.has_messages()) {
    fmt::print("each document ends as its chat template says\n");
  } else if (const auto end = request.end_id) {
    fmt::print("each document ends with the token {}, {}\n", *end,
               shown(tokenizer.token_of(*end).value_or("")));
  } else if (arguments.eos.empty()) {
    fmt::print(
        "no token ends a document (no eos_token in a tokenizer_config.json beside; --eos TOKEN gives one): "
        "only the index says where documents end\n");
  }
  const int token_bytes = tokenizer.vocab_size() <= 65536 ? 2 : 4;
  request.files = files_of(arguments, request.format.kind);
  if (const auto folder = std::filesystem::path(arguments.out).parent_path(); !folder.empty()) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error)
      throw UsageError(fmt::format("--out {}: cannot create the folder: {}", arguments.out, error.message()));
  }
  corpus::TokenWriter writer(arguments.out, token_bytes, arguments.overwrite);

  metrics::Console console(metrics::wants_color(metrics::Color::automatic));
  const Clock::time_point begin = Clock::now();
  Clock::time_point drawn{};
  const auto report = [&](const TokenizeProgress& progress) {
    if (Clock::now() - drawn < std::chrono::milliseconds(100)) return;
    drawn = Clock::now();
    console.show([progress, seconds = seconds_since(begin)](int columns, bool /*color*/) {
      return bar_text(progress, seconds, columns);
    });
  };
  const TokenizeProgress result = corpus::tokenize_files(&tokenizer, request, writer, report);
  console.clear();
  print_result(arguments, tokenizer, result, token_bytes, seconds_since(begin));
  return 0;
}

}  // namespace

void add_tokenize(CommandLine& line) {
  line.add(declare_tokenize, tokenize);
}

}  // namespace pptrain::app
