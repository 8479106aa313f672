#include "core/tokenizer/tokenize_files.h"

#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace pptrain::tokenizer {
namespace {

struct Encoded {
  std::vector<int32_t> ids;
  std::vector<int64_t> lengths;  // of the documents
  uint64_t bytes = 0;            // of the files that are done with it
  int64_t empty = 0;
};

class Work {
 public:
  Work(const Tokenizer& tokenizer, DocumentSource& source, const TokenizeOptions& options,
       TokenWriter& writer, const std::function<void(const TokenizeProgress&)>& report)
      : tokenizer_(tokenizer), source_(source), options_(options), writer_(writer), report_(report) {
    progress_.total_bytes = source.bytes();
  }

  TokenizeProgress run() {
    std::vector<std::thread> threads;
    for (int i = 1; i < options_.threads; ++i) threads.emplace_back([this] { work(); });
    work();
    for (std::thread& thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    return progress_;
  }

 private:
  void work() {
    try {
      while (const auto stretch = take()) {
        Encoded encoded = encode(stretch->second);
        if (!give(stretch->first, std::move(encoded))) return;
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      written_.notify_all();
    }
  }

  std::optional<std::pair<int64_t, Stretch>> take() {
    const std::lock_guard lock(source_mutex_);
    std::optional<Stretch> stretch = source_.next();
    if (!stretch) return std::nullopt;
    return std::pair(taken_++, std::move(*stretch));
  }

  Encoded encode(const Stretch& stretch) const {
    Encoded out;
    out.bytes = stretch.text.size();
    each_document(stretch, options_.format, [&](std::string_view document) {
      if (document.empty()) {
        ++out.empty;
        return;
      }
      const size_t before = out.ids.size();
      tokenizer_.encode(document, options_.add_special, out.ids);
      const bool ended = out.ids.size() > before && options_.end_id == out.ids.back();
      if (options_.end_id && !ended) out.ids.push_back(*options_.end_id);
      if (out.ids.size() > before) {
        out.lengths.push_back(static_cast<int64_t>(out.ids.size() - before));
      } else {
        ++out.empty;
      }
    });
    return out;
  }

  // Writes what is next in order. Waits where too much is ahead of it. Returns whether to go on.
  bool give(int64_t number, Encoded encoded) {
    std::unique_lock lock(mutex_);
    waiting_.emplace(number, std::move(encoded));
    while (!failure_ && !waiting_.empty() && waiting_.begin()->first == next_) {
      const Encoded& first = waiting_.begin()->second;
      writer_.add(first.ids, first.lengths);
      progress_.bytes += first.bytes;
      progress_.empty += first.empty;
      progress_.documents = writer_.documents();
      progress_.tokens = writer_.tokens();
      waiting_.erase(waiting_.begin());
      ++next_;
      report_(progress_);
      written_.notify_all();
    }
    written_.wait(lock, [&] { return failure_ || number < next_ + 4 * options_.threads; });
    return !failure_;
  }

  const Tokenizer& tokenizer_;
  DocumentSource& source_;
  const TokenizeOptions& options_;
  TokenWriter& writer_;
  const std::function<void(const TokenizeProgress&)>& report_;

  std::mutex source_mutex_;
  int64_t taken_ = 0;

  std::mutex mutex_;  // of all below
  std::condition_variable written_;
  std::map<int64_t, Encoded> waiting_;
  int64_t next_ = 0;
  TokenizeProgress progress_;
  std::exception_ptr failure_;
};

}  // namespace

TokenizeProgress tokenize_files(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& files,
                                const TokenizeOptions& options, TokenWriter& writer,
                                const std::function<void(const TokenizeProgress&)>& report) {
  DocumentSource source(files, options.format);
  const TokenizeProgress progress = Work(tokenizer, source, options, writer, report).run();
  writer.finish();
  return progress;
}

}  // namespace pptrain::tokenizer
