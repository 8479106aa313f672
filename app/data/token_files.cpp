#include "app/data/token_files.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "core/base/cores.h"
#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/data/inspect.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "core/metrics/progress_text.h"

namespace pptrain::app {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// How a rank ended its part of the work.
enum class Outcome { done = 0, failed, bad_job, stopped };

// All ranks end like the first one that did not succeed. Collective.
template <typename Body>
void together(comm::Communicator& comm, const Body& body) {
  Outcome own = Outcome::done;
  std::string text;
  const auto end = [&](Outcome outcome, const std::exception& error) {
    own = outcome;
    text = error.what();
  };
  try {
    body();
  } catch (const StoppedAtStart& stop) {
    end(Outcome::stopped, stop);
  } catch (const UsageError& error) {
    end(Outcome::bad_job, error);
  } catch (const std::exception& error) {
    end(Outcome::failed, error);
  }
  std::vector<double> outcomes(static_cast<size_t>(comm.size()), 0);
  outcomes[static_cast<size_t>(comm.rank())] = static_cast<double>(own);
  outcomes = comm::all_reduce_sum(comm, outcomes);
  const auto first = std::ranges::find_if(outcomes, [](double outcome) { return outcome != 0; });
  if (first == outcomes.end()) return;
  const std::string told = comm::broadcast_string(comm, text, static_cast<int>(first - outcomes.begin()));
  const auto outcome = static_cast<Outcome>(static_cast<int>(*first));
  if (outcome == Outcome::stopped) throw StoppedAtStart(told);
  if (outcome == Outcome::bad_job) throw CommonFault(told);
  throw Error(told);
}

// One stream whose tokens are, or will be, in a cache.
struct Wish {
  std::string key;
  corpus::TokenizeRequest request;
  std::string name;              // of the cache
  std::vector<fs::path> places;  // folders in which it may be
  fs::path cache;                // "" while there is none
};

std::vector<Wish> wishes_of(const config::JobConfig& job, Wanted wanted) {
  std::vector<Wish> wishes;
  for (const StreamFiles& stream : streams_of(job, wanted)) {
    if (!config::is_tokenized(job, stream.options)) continue;
    Wish wish{
        .key = stream.key, .request = cache_request(job, stream), .name = {}, .places = {}, .cache = {}};
    wish.name = corpus::cache_name(wish.request);
    if (job.data.cache.empty()) {
      wish.places = {fs::absolute(wish.request.files.front()).parent_path() / "pptrain_cache",
                     fs::path(job.run.dir) / "cache"};
    } else {
      wish.places = {job.data.cache};
    }
    wishes.push_back(std::move(wish));
  }
  return wishes;
}

// Reports progress now and then, and stops if asked to.
class Reporter {
 public:
  Reporter(const Wish& wish, const std::function<bool()>& stopped) : wish_(wish), stopped_(stopped) {}

  void operator()(const corpus::TokenizeProgress& progress) {
    if (stopped_()) throw StoppedAtStart("stopped by a signal while texts were made tokens");
    latest_ = progress;
    constexpr double interval = 10;  // s
    if (seconds_since(said_) < interval) return;
    said_ = Clock::now();
    spdlog::info("{}: {} of {} MB, {} tokens", wish_.key, metrics::with_commas(megabytes(progress.bytes)),
                 metrics::with_commas(megabytes(progress.total_bytes)),
                 metrics::with_commas(progress.tokens));
  }
  void finish(const fs::path& cache) {
    spdlog::info("{}: tokens in {} (made in {:.1f} s)", wish_.key, cache.string(), seconds_since(begin_));
    if (latest_.bad > 0)
      spdlog::warn("{}: {} lines without a document were left out (data.bad_lines = \"skip\"); the first: {}",
                   wish_.key, metrics::with_commas(latest_.bad), latest_.first_bad);
    if (latest_.truncated > 0)
      spdlog::warn("{}: {} of {} documents were truncated to data.max_document_tokens = {} tokens", wish_.key,
                   metrics::with_commas(latest_.truncated), metrics::with_commas(latest_.documents),
                   wish_.request.max_tokens);
    if (latest_.begun_twice > 0)
      spdlog::warn(
          "{}: {} of {} documents begin twice: the texts have the tokens that the tokenizer puts before "
          "each. data.add_special = false takes the texts as they are",
          wish_.key, metrics::with_commas(latest_.begun_twice), metrics::with_commas(latest_.documents));
    const corpus::DocumentFormat& format = wish_.request.format;
    if (!latest_.end_id && !format.has_messages() && !format.has_tokens())
      spdlog::warn(
          "{}: no token ends a document, so that a model does not learn to end one: the tokenizer's "
          "eos_token is not known (no tokenizer_config.json beside it says one); data.document_end gives it",
          wish_.key);
  }

 private:
  static int64_t megabytes(uint64_t bytes) { return static_cast<int64_t>(bytes / 1'000'000); }

  const Wish& wish_;
  const std::function<bool()>& stopped_;
  corpus::TokenizeProgress latest_;
  Clock::time_point begin_ = Clock::now(), said_ = begin_;
};

// Makes the cache unless it is there: two streams may have the same files.
void make(Wish& wish, const std::function<bool()>& stopped) {
  wish.cache = corpus::find_cache(wish.places, wish.name);
  if (!wish.cache.empty()) return;
  wish.request.threads = static_cast<int>(core_count());
  spdlog::info("{}: making tokens of {} file{} with {} threads", wish.key, wish.request.files.size(),
               wish.request.files.size() == 1 ? "" : "s", wish.request.threads);
  Reporter report(wish, stopped);
  wish.cache = corpus::make_cache(wish.places, wish.name, wish.request,
                                  [&](const corpus::TokenizeProgress& progress) { report(progress); });
  report.finish(wish.cache);
}

// Of the ranks that see the same folder, the first one here makes what is missing, and the others find it. If
// a folder cannot be locked, each rank makes its own.
void make_on_this_host(Wish& wish, const std::function<bool()>& stopped) {
  std::error_code ignored;
  fs::create_directories(wish.places.front(), ignored);
  const fs::path& folder = io::is_there(wish.places.front()) ? wish.places.front() : wish.places.back();
  const FileDescriptor lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ::flock(lock.get(), LOCK_EX);
  make(wish, stopped);
}

// Describes the contents of the ranks' caches, from a few places of their files.
std::string describe(const std::vector<Wish>& wishes) {
  std::string text;
  for (const Wish& wish : wishes) {
    const data::Source source{.paths = {corpus::token_file(wish.cache).string()},
                              .format = data::Format::megatron};
    text += fmt::format("{} {}\n", wish.key, data::fingerprint(data::data_files(source)));
  }
  return text;
}

void check_same(comm::Communicator& comm, const std::vector<Wish>& wishes) {
  std::string own;
  together(comm, [&] { own = describe(wishes); });
  const std::string of_rank_0 = comm::broadcast_string(comm, own, 0);
  together(comm, [&] {
    if (own != of_rank_0)
      throw Error(
          "the tokens made of the texts are not those of rank 0: are its program and files the same?");
  });
}

}  // namespace

TokenFiles make_token_files(const RunContext& context, comm::Communicator& disk, Wanted wanted,
                            const std::function<bool()>& stopped) {
  if (!config::any_tokenized(context.job)) return {};
  std::vector<Wish> wishes;
  together(disk, [&] { wishes = wishes_of(context.job, wanted); });
  if (wishes.empty()) return {};
  const auto each_missing = [&](const auto& body) {
    for (Wish& wish : wishes) {
      if (wish.cache.empty()) body(wish);
    }
  };
  const auto look = [&] {
    each_missing([](Wish& wish) { wish.cache = corpus::find_cache(wish.places, wish.name); });
  };
  const comm::ActivityScope waiting(context.activity, comm::ActivityKind::wait,
                                    "the tokens of texts, which rank 0 makes");
  look();
  together(disk, [&] {
    if (disk.rank() == 0) each_missing([&](Wish& wish) { make(wish, stopped); });
  });
  look();
  const bool missing = std::ranges::any_of(wishes, [](const Wish& wish) { return wish.cache.empty(); });
  if (comm::any(disk, missing)) {
    together(disk, [&] { each_missing([&](Wish& wish) { make_on_this_host(wish, stopped); }); });
  }
  check_same(disk, wishes);
  TokenFiles files;
  for (const Wish& wish : wishes) files[wish.key] = corpus::token_file(wish.cache);
  return files;
}

}  // namespace pptrain::app
