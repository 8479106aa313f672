#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "app/quick/answers.h"
#include "core/base/cores.h"

namespace pptrain::app {

bool has_gpu_driver() {
  return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr;
}

std::string this_machine() {
  if (has_gpu_driver()) return "";
  std::string text;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {  // of the first core
    if (line.starts_with("model name") || line.starts_with("flags")) text += line + '\n';
  }
  for (const char* name : {"PPTRAIN_ISA", "ATEN_CPU_CAPABILITY"}) {
    const char* const value = std::getenv(name);
    text += std::string(name) + '=' + (value == nullptr ? "" : value) + '\n';
  }
  return text + std::to_string(core_count()) + " cores";
}

}  // namespace pptrain::app
