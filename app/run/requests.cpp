#include "app/run/requests.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "app/run/run_status.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "core/io/strict_json.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using Json = nlohmann::json;

using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t longest = 1 << 14;  // bytes of a request or an answer
constexpr size_t id_digits = 32;
constexpr int64_t highest_step = int64_t{1} << 62;
constexpr std::chrono::milliseconds between_listings{500};  // by the run
constexpr std::chrono::milliseconds between_looks{200};     // for an answer
constexpr std::chrono::seconds between_lines{10};           // of progress

bool is_id(std::string_view text) {
  return text.size() == id_digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string new_id() {
  std::random_device device;
  std::string id;
  while (id.size() < id_digits) id += fmt::format("{:08x}", static_cast<uint32_t>(device()));
  return id;
}

// The word is printed, so only the characters of host names are allowed.
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

fs::path requests_folder(const fs::path& run_dir) {
  return run_dir / "requests";
}

fs::path answer_file(const fs::path& run_dir, const std::string& id) {
  return requests_folder(run_dir) / ("answer." + id);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::directory;
}

// A run calls it at its start, so that it owns the folder. Throws Error that names the folder if it cannot be
// made or is a link.
void make_requests_folder(const fs::path& run_dir) {
  const fs::path folder = requests_folder(run_dir);
  std::error_code error;
  fs::create_directory(folder, error);
  if (error || !is_folder(folder)) {
    throw Error(fmt::format("cannot make the folder '{}': {}", folder.string(),
                            error ? error.message() : "something else is there"));
  }
}

// Files in the folder of requests, sorted; none if it is no folder.
std::vector<fs::path> list_files(const fs::path& run_dir) {
  const fs::path folder = requests_folder(run_dir);
  std::vector<fs::path> files;
  if (!is_folder(folder)) return files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    files.push_back(entry->path());
  std::ranges::sort(files);
  return files;
}

// Calls `read` with the file's object.
template <typename Read>
auto read_object(const fs::path& file, const Read& read) {
  const std::string name = fmt::format("'{}'", file.string());
  std::error_code unknown;
  if (fs::symlink_status(file, unknown).type() != fs::file_type::regular)
    throw Error(name + " is no regular file");
  const Json json = io::parse_strict_json(io::read_small_file(file, longest), name);
  try {
    return read(json);
  } catch (const std::exception& error) {  // Error or Json::exception
    throw Error(fmt::format("{}: {}", name, error.what()));
  }
}

void write_object(const fs::path& file, const Json& json) {
  io::write_file_atomically(file, one_line(json) + "\n");
}

void remove_old_answers(const fs::path& run_dir) {
  for (const fs::path& file : list_files(run_dir)) {
    const std::string name = file.filename().string();
    std::error_code unknown;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(file, unknown);
    const bool is_answer = name.starts_with("answer.") && is_id(std::string_view(name).substr(7));
    if (is_answer && !unknown && age > std::chrono::hours(1)) fs::remove(file, unknown);
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

Request make_request(RequestKind kind, const LockHolder& run) {
  return {.kind = kind, .id = new_id(), .run = run, .pid = ::getpid(), .host = host_name()};
}

void post(const fs::path& run_dir, const Request& request) {
  make_requests_folder(run_dir);
  write_object(requests_folder(run_dir) / request.file_name(),
               {{"run", {{"pid", request.run.pid}, {"host", request.run.host}, {"since", request.run.since}}},
                {"pid", request.pid},
                {"host", request.host}});
}

bool withdraw(const fs::path& run_dir, const Request& request) {
  std::error_code error;
  return fs::remove(requests_folder(run_dir) / request.file_name(), error);
}

std::optional<Answer> take_answer(const fs::path& run_dir, const std::string& id) {
  const fs::path file = answer_file(run_dir, id);
  if (!io::is_there(file)) return std::nullopt;
  const Answer answer = read_object(file, [](const Json& json) {
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
  return read_object(file, [&](const Json& json) {
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
  withdraw(run_dir, request);
  write_object(answer_file(run_dir, request.id), {{"done", answer.done},
                                                  {"step", answer.step},
                                                  {"checkpoint", answer.checkpoint},
                                                  {"message", answer.message.substr(0, 4096)}});
}

LiveRequests::LiveRequests(fs::path run_dir, LockHolder self)
    : run_dir_(std::move(run_dir)), self_(std::move(self)) {
  try {
    make_requests_folder(run_dir_);
  } catch (const std::exception& error) {
    spdlog::warn("pptrain save and pptrain stop cannot ask this run: {}", error.what());
  }
  remove_old_answers(run_dir_);
  search();
}

LiveRequests::~LiveRequests() {
  search();  // requests that came during the last step
  for (const Request& request : seen_) withdraw(run_dir_, request);
  const std::lock_guard lock(mutex_);
  for (const auto& [step, request] : agreed_) withdraw(run_dir_, request);
}

void LiveRequests::look() {
  const auto now = Clock::now();
  if (now - looked_ < between_listings) return;
  looked_ = now;
  search();
}

void LiveRequests::search() {
  for (const fs::path& file : list_files(run_dir_)) {
    const std::string name = file.filename().string();
    if (is_request_name(name) && !known_.contains(name)) take(file);
  }
}

void LiveRequests::take(const fs::path& file) {
  try {
    Request request = read_request(file);
    known_.insert(request.file_name());
    if (!request.run.same_process(self_)) {
      spdlog::info("discarded a request for an earlier run: {}", request.describe());
      withdraw(run_dir_, request);
      return;
    }
    spdlog::info("request: {}", request.describe());
    seen_.push_back(std::move(request));
  } catch (const std::exception& error) {
    std::error_code gone;
    if (!fs::exists(fs::symlink_status(file, gone))) return;  // it was withdrawn
    known_.insert(file.filename().string());
    if (!std::exchange(warned_, true))
      spdlog::warn("a request is ignored: {}. Others like it are not mentioned", error.what());
  }
}

bool LiveRequests::wants(RequestKind kind) const {
  return std::ranges::count(seen_, kind, &Request::kind) > 0;
}

void LiveRequests::agreed(int64_t step) {
  const std::lock_guard lock(mutex_);
  for (Request& request : seen_) agreed_.emplace(step, std::move(request));
  seen_.clear();
}

bool LiveRequests::answer_all(int64_t step, const std::string& checkpoint, const std::string& failure) {
  search();
  const bool stops = wants(RequestKind::stop);
  agreed(step);
  saved(step, checkpoint, failure);
  return stops;
}

void LiveRequests::saved(int64_t step, const std::string& checkpoint, const std::string& failure) {
  std::multimap<int64_t, Request> answered;  // the requests up to this step
  {
    const std::lock_guard lock(mutex_);
    while (!agreed_.empty() && agreed_.begin()->first <= step)
      answered.insert(agreed_.extract(agreed_.begin()));
  }
  for (const auto& [agreed, request] : answered) {
    try {
      answer(run_dir_, request,
             {.done = failure.empty(), .step = step, .checkpoint = checkpoint, .message = failure});
    } catch (const std::exception& error) {
      spdlog::warn("a request is not answered: {}", error.what());
    }
  }
}

namespace {

Answer refused(const fs::path& run_dir, RequestKind kind, const RunStatus& status) {
  std::string why;
  if (status.is_alive()) {
    why = fmt::format("{}: a run is just taking this folder. Ask again", run_dir.string());
  } else if (status.phase == RunPhase::cannot_tell) {
    why = fmt::format(
        "{}: this file system cannot lock, so the run cannot be told from an earlier one. Send its process a "
        "signal: SIGTERM stops it after saving",
        run_dir.string());
  } else {
    why = fmt::format(
        "{}: no run is under way here ({}). There is nothing to {}{}", run_dir.string(),
        word_of(status.phase), word_of(kind),
        status.checkpoint.empty() ? "" : fmt::format("; the newest checkpoint is {}", status.checkpoint));
  }
  return {.state = "refused", .message = why};
}

class Asking {
 public:
  Asking(const fs::path& run_dir, const Request& request, const AskOptions& options)
      : run_dir_(run_dir), request_(request), options_(options) {}

  Answer wait() {
    while (true) {
      // First the lock: a run answers before it gives the lock up.
      const bool gone = !still_there();
      if (!answer_) answer_ = take_answer(run_dir_, request_.id);
      if (answer_ && (gone || request_.kind == RequestKind::save || !answer_->done)) return by_answer();
      if (gone) return by_end();
      if (options_.interrupted && options_.interrupted()) return give_up("interrupted");
      if (Clock::now() - begin_ > options_.patience) return give_up("waited long enough");
      tell_progress();
      std::this_thread::sleep_for(between_looks);
    }
  }

 private:
  // Does the run that was asked still hold the lock, and not a later one?
  bool still_there() const {
    const LockState lock = look_at_lock(run_dir_);
    if (lock.held == false) return false;
    return !lock.holder || lock.holder->same_process(request_.run);
  }

  Answer by_answer() const {
    Answer answer = *answer_;
    const bool stop = request_.kind == RequestKind::stop;
    answer.state = !answer.done ? "failed" : stop ? "stopped" : "saved";
    return answer;
  }

  Answer by_end() const {
    withdraw(run_dir_, request_);
    const std::optional<RunEnd> end = read_run_end(run_dir_);
    const bool known = end && (end->process.pid == 0 || end->process.same_process(request_.run));
    if (!known) {
      return {.state = "failed",
              .message = "the run ended before it answered, and did not say how (killed?); log.txt may"};
    }
    const bool saved = end->how == RunPhase::finished || end->how == RunPhase::stopped;
    const std::string how = word_of(end->how);
    return {.done = saved,
            .state = saved ? how : "failed",
            .step = end->step,
            .checkpoint = end->checkpoint,
            .message = saved ? fmt::format("the run had ended by itself: {}", how) : end->message};
  }

  Answer give_up(const std::string& why) const {
    if (answer_) {
      Answer answer = by_answer();
      answer.message = "the run has saved and is about to end";
      return answer;
    }
    const bool withdrawn = withdraw(run_dir_, request_);
    return {.state = "unanswered",
            .message = fmt::format("{}: the run has not answered. {}", why,
                                   withdrawn ? "The request is withdrawn; if the run has seen it, it still "
                                               "acts on it after the step under way"
                                             : "It is acting on the request")};
  }

  void tell_progress() {
    if (!options_.progress || Clock::now() - told_ < between_lines) return;
    told_ = Clock::now();
    const RunStatus status = read_status(run_dir_);
    const std::string doing = status.saving ? fmt::format("saving step {}", *status.saving)
                              : status.step ? fmt::format("after step {}", status.step->step)
                                            : std::string("starting");
    options_.progress(fmt::format("waiting for the run ({}), {:.0f} s", doing, in_seconds(told_ - begin_)));
  }

  const fs::path& run_dir_;
  const Request& request_;
  const AskOptions& options_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point told_ = begin_;
  std::optional<Answer> answer_;
};

}  // namespace

Answer ask(const fs::path& run_dir, RequestKind kind, const AskOptions& options) {
  const RunStatus status = read_status(run_dir);
  if (!status.is_alive() || !status.holder) return refused(run_dir, kind, status);
  const Request request = make_request(kind, *status.holder);
  post(run_dir, request);
  if (!options.waits) {
    return {.done = true,
            .state = "requested",
            .message = fmt::format("the run is asked to {} after the step under way", word_of(kind))};
  }
  return Asking(run_dir, request, options).wait();
}

}  // namespace pptrain::app
