#include "parallel/comm/liveness/kernel_sleep.h"

#include <spdlog/fmt/fmt.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>

namespace pptrain::comm {

std::chrono::milliseconds KernelSleep::look(Clock::time_point now) {
  const Sample seen = sample();
  if (!seen.sleeps) {
    since_.reset();
  } else if (!since_ || seen.switches != switches_) {
    since_ = now;
  }
  switches_ = seen.switches;
  return since_ ? std::chrono::duration_cast<std::chrono::milliseconds>(now - *since_)
                : std::chrono::milliseconds(0);
}

std::string KernelSleep::where() const {
  const std::string function = read("wchan");
  return function == "0" ? "" : function;
}

KernelSleep::Sample KernelSleep::sample() const {
  Sample sample;
  std::istringstream lines(read("status"));
  long switches = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string_view text(line);
    if (text.starts_with("State:")) sample.sleeps = text.find('D') != std::string_view::npos;
    const size_t count = text.find("_ctxt_switches:");
    if (count != std::string_view::npos)
      switches += std::strtol(line.c_str() + line.find(':') + 1, nullptr, 10);
  }
  sample.switches = switches;
  return sample;
}

std::string KernelSleep::read(const char* file) const {
  std::ifstream in(fmt::format("/proc/self/task/{}/{}", thread_, file));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace pptrain::comm
