#include "parallel/comm/liveness/activity.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "core/base/timing.h"

namespace pptrain::comm {

struct Activity::Mark {
  std::string text;
  std::function<bool()> passed;
};

void Activity::set(ActivityKind doing, std::string_view text) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  doing_ = doing;
  text_ = text;
  since_ = now;
}

Activity::State Activity::own_state() const {
  const std::lock_guard lock(mutex_);
  return {doing_, text_, seconds_since(since_)};
}

Activity::State Activity::state() const {
  State state = own_state();
  const std::lock_guard lock(mutex_);
  if (!device_text_.empty() && device_text_ != state.text) state.text += " (its GPU: " + device_text_ + ")";
  return state;
}

void Activity::enqueued(std::string text, std::function<bool()> passed) {
  auto mark = std::make_shared<const Mark>(Mark{std::move(text), std::move(passed)});
  drop_passed();
  const std::lock_guard lock(marks_mutex_);
  marks_.push_back(std::move(mark));
}

std::string Activity::look_at_device() {
  const auto oldest = drop_passed();
  const std::string text = oldest ? oldest->text : "";
  const std::lock_guard lock(mutex_);
  device_text_ = text;
  return text;
}

int64_t Activity::ended_on_device() const {
  const std::lock_guard lock(marks_mutex_);
  return passed_;
}

// The oldest mark that is not passed, null for none.
std::shared_ptr<const Activity::Mark> Activity::drop_passed() {
  for (;;) {
    std::shared_ptr<const Mark> oldest;  // let go without the lock
    {
      const std::lock_guard lock(marks_mutex_);
      if (marks_.empty()) return nullptr;
      oldest = marks_.front();
    }
    if (!oldest->passed()) return oldest;
    const std::lock_guard lock(marks_mutex_);
    if (marks_.empty() || marks_.front() != oldest) continue;  // another thread was quicker
    marks_.pop_front();
    ++passed_;
  }
}

ActivityScope::ActivityScope(Activity* activity, ActivityKind doing, std::string_view text)
    : activity_(activity) {
  if (activity_ == nullptr) return;
  before_ = activity_->own_state();
  activity_->set(doing, text);
}

ActivityScope::~ActivityScope() {
  if (activity_ != nullptr) activity_->set(before_.doing, before_.text);
}

std::string rank_name(int rank, const std::string& host) {
  return host.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, host);
}

std::string describe(const Activity::State& state) {
  return fmt::format("{} {} for {:.1f} s", state.doing == ActivityKind::wait ? "waits for" : "is in",
                     state.text, state.seconds);
}

std::string describe_others(std::span<const RankState> states, int but, int at_most) {
  std::vector<const RankState*> others;
  for (const RankState& state : states) {
    if (state.rank != but) others.push_back(&state);
  }
  std::ranges::stable_partition(others,
                                [](const RankState* s) { return s->state.doing != ActivityKind::wait; });
  std::vector<std::string> parts;
  const size_t shown = std::min(others.size(), static_cast<size_t>(at_most));
  for (size_t i = 0; i < shown; ++i) {
    parts.push_back(rank_name(others[i]->rank, others[i]->host) + " " + describe(others[i]->state));
  }
  if (shown < others.size()) {
    const bool all_wait = others[shown]->state.doing == ActivityKind::wait;
    parts.push_back(fmt::format("{} more ranks {}", others.size() - shown,
                                all_wait ? "wait for others" : "are not shown"));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::chrono::milliseconds KernelSleep::look(Clock::time_point now) {
  const auto switches = switches_asleep();
  if (!switches) {
    since_.reset();
  } else if (!since_ || *switches != switches_) {
    since_ = now;
    switches_ = *switches;
  }
  return since_ ? std::chrono::duration_cast<std::chrono::milliseconds>(now - *since_)
                : std::chrono::milliseconds(0);
}

std::string KernelSleep::where() const {
  const std::string function = read("wchan");
  return function == "0" ? "" : function;
}

std::optional<long> KernelSleep::switches_asleep() const {
  std::istringstream lines(read("status"));
  bool sleeps = false;
  long switches = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("State:")) sleeps = line.find('D') != std::string::npos;
    if (line.find("_ctxt_switches:") != std::string::npos)
      switches += std::strtol(line.c_str() + line.find(':') + 1, nullptr, 10);
  }
  return sleeps ? std::optional(switches) : std::nullopt;
}

std::string KernelSleep::read(const char* file) const {
  std::ifstream in(fmt::format("/proc/self/task/{}/{}", thread_, file));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace pptrain::comm
