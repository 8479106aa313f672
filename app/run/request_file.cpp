#include "app/run/request_file.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "core/io/strict_json.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr size_t longest = 1 << 14;  // bytes of a request or an answer
constexpr size_t id_digits = 32;
constexpr int64_t highest_step = int64_t{1} << 62;

bool is_id(std::string_view text) {
  return text.size() == id_digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string new_id() {
  std::random_device device;
  std::string id;
  while (id.size() < id_digits) id += fmt::format("{:08x}", static_cast<uint32_t>(device()));
  return id;
}

// It is printed: no more than the names of hosts have.
std::string plain_word(const Json& value) {
  const auto& text = value.get_ref<const std::string&>();
  const bool plain = text.size() <= 255 && std::ranges::all_of(text, [](unsigned char c) {
                       return std::isalnum(c) != 0 ||
                              std::string_view("-_.: ").find(static_cast<char>(c)) != std::string_view::npos;
                     });
  if (!plain) throw Error("a name with unusual characters");
  return text;
}

int64_t whole(const Json& value, const char* what) {
  return io::integer_from(value, 0, highest_step, what);
}

fs::path answer_file(const fs::path& run_dir, const std::string& id) {
  return requests_folder(run_dir) / ("answer." + id);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::directory;
}

void require_regular(const fs::path& file) {
  std::error_code error;
  if (fs::symlink_status(file, error).type() != fs::file_type::regular)
    throw Error(fmt::format("'{}' is no regular file", file.string()));
}

Json parse_file(const fs::path& file) {
  require_regular(file);
  return io::parse_strict_json(io::read_small_file(file, longest), fmt::format("'{}'", file.string()));
}

// Runs `read`, which takes apart what parse_file gave.
template <typename Read>
auto read_parts(const fs::path& file, const Read& read) {
  const Json json = parse_file(file);
  try {
    return read(json);
  } catch (const std::exception& error) {  // Error or Json::exception
    throw Error(fmt::format("'{}': {}", file.string(), error.what()));
  }
}

}  // namespace

std::string word_of(RequestKind kind) {
  return kind == RequestKind::save ? "save" : "stop";
}

std::string Request::file_name() const {
  return word_of(kind) + "." + id;
}

std::string Request::describe() const {
  return fmt::format("{}, asked for by process {} on {}", word_of(kind), pid, host);
}

fs::path requests_folder(const fs::path& run_dir) {
  return run_dir / "requests";
}

Request make_request(RequestKind kind, const LockHolder& run) {
  return {.kind = kind, .id = new_id(), .run = run, .pid = ::getpid(), .host = host_name()};
}

void make_requests_folder(const fs::path& run_dir) {
  const fs::path folder = requests_folder(run_dir);
  std::error_code error;
  fs::create_directory(folder, error);
  if (error || !is_folder(folder)) {
    throw Error(fmt::format("cannot make the folder '{}': {}", folder.string(),
                            error ? error.message() : "something else is there"));
  }
}

void post(const fs::path& run_dir, const Request& request) {
  make_requests_folder(run_dir);
  const Json json{
      {"run", {{"pid", request.run.pid}, {"host", request.run.host}, {"since", request.run.since}}},
      {"pid", request.pid},
      {"host", request.host}};
  io::write_file_atomically(requests_folder(run_dir) / request.file_name(),
                            json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

bool withdraw(const fs::path& run_dir, const Request& request) {
  std::error_code error;
  return fs::remove(requests_folder(run_dir) / request.file_name(), error);
}

std::optional<Answer> take_answer(const fs::path& run_dir, const std::string& id) {
  const fs::path file = answer_file(run_dir, id);
  if (!io::is_there(file)) return std::nullopt;
  const Answer answer = read_parts(file, [](const Json& json) {
    return Answer{.done = json.at("done"),
                  .step = whole(json.at("step"), "step"),
                  .checkpoint = plain_word(json.at("checkpoint")),
                  .message = json.at("message")};
  });
  std::error_code ignored;
  fs::remove(file, ignored);
  return answer;
}

bool is_request_name(const std::string& name) {
  return name.size() > 5 && (name.starts_with("save.") || name.starts_with("stop.")) &&
         is_id(std::string_view(name).substr(5));
}

Request read_request(const fs::path& file) {
  const std::string name = file.filename().string();
  if (!is_request_name(name)) throw Error(fmt::format("'{}' is no request", file.string()));
  return read_parts(file, [&](const Json& json) {
    const Json& run = json.at("run");
    return Request{.kind = name.starts_with("save.") ? RequestKind::save : RequestKind::stop,
                   .id = name.substr(5),
                   .run = {.pid = whole(run.at("pid"), "run.pid"),
                           .host = plain_word(run.at("host")),
                           .since = plain_word(run.at("since")),
                           .command = {}},
                   .pid = whole(json.at("pid"), "pid"),
                   .host = plain_word(json.at("host"))};
  });
}

void answer(const fs::path& run_dir, const Request& request, const Answer& answer) {
  const fs::path folder = requests_folder(run_dir);
  if (!is_folder(folder) || !io::is_there(folder / request.file_name())) return;
  const Json json{{"done", answer.done},
                  {"step", answer.step},
                  {"checkpoint", answer.checkpoint},
                  {"message", answer.message.substr(0, 4096)}};
  withdraw(run_dir, request);
  io::write_file_atomically(answer_file(run_dir, request.id),
                            json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void remove_old_answers(const fs::path& run_dir) {
  const fs::path folder = requests_folder(run_dir);
  if (!is_folder(folder)) return;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code unknown;
    const auto age = fs::file_time_type::clock::now() - entry->last_write_time(unknown);
    const bool is_answer = name.starts_with("answer.") && is_id(std::string_view(name).substr(7));
    if (is_answer && !unknown && age > std::chrono::hours(1)) fs::remove(entry->path(), unknown);
  }
}

}  // namespace pptrain::app
