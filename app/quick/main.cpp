// pptrain as users start it: gives the quick answers itself, and becomes a whole program for everything else.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

#include "app/quick/answers.h"

namespace {

const pptrain::app::QuickAnswer* find_answer(int argc, char** argv) {
  std::string arguments;
  for (int i = 1; i < argc; ++i) {
    if (std::strchr(argv[i], ' ') != nullptr) return nullptr;
    arguments += (i > 1 ? " " : "") + std::string(argv[i]);
  }
  for (const auto& answer : pptrain::app::quick_answers()) {
    if (arguments != answer.arguments) continue;
    const bool of_all = *answer.machine == '\0';
    return of_all || pptrain::app::this_machine() == answer.machine ? &answer : nullptr;
  }
  return nullptr;
}

// Next to this program, wherever both were copied to.
std::filesystem::path beside(const char* name) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).replace_filename(name);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto* const answer = find_answer(argc, argv)) {
    if (std::fputs(answer->text, stdout) >= 0 && std::fflush(stdout) == 0) return 0;
    std::fprintf(stderr, "pptrain: cannot write: %s\n", std::strerror(errno));
    return 1;
  }
  // A build without CUDA has no pptrain_cuda.
  if (pptrain::app::has_gpu_driver()) execv(beside("pptrain_cuda").c_str(), argv);
  const std::filesystem::path program = beside("pptrain_whole");
  execv(program.c_str(), argv);
  std::fprintf(stderr, "pptrain: cannot start %s, which belongs beside this program: %s\n", program.c_str(),
               std::strerror(errno));
  return 1;
}
