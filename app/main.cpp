// The whole program: the only place that catches.
#include <dlfcn.h>
#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "app/commands/command_line.h"
#include "app/commands/commands.h"
#include "app/completion/completion.h"
#include "app/launch/launcher_patience.h"
#include "app/quick/answers.h"
#include "core/base/error.h"
#include "core/base/host_memory.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/io/atomic_file.h"
#include "core/io/mapped_file.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/out_of_memory.h"

namespace {

int run(int argc, char** argv) {
  try {
    pptrain::kernels::cpu::loops();  // refuses a wrong PPTRAIN_ISA before anything starts
    pptrain::app::CommandLine command_line(pptrain::app::commit());
    const auto build_asks = [&](const char* option) {
      return argc == 3 && std::strcmp(argv[1], option) == 0;
    };
    const auto version = [] { return pptrain::app::version_text(pptrain::app::commit()); };
    if (build_asks("--write-quick-answers")) {
      pptrain::io::write_file_atomically(argv[2],
                                         pptrain::app::quick_answers_source(command_line.cli(), version()));
      return 0;
    }
    if (build_asks("--write-man-page")) {
      const std::string text = version();
      pptrain::io::write_file_atomically(
          argv[2], pptrain::app::man_page(command_line.cli(), text.substr(0, text.find('\n'))));
      return 0;
    }
    return command_line.run(argc, argv);
  } catch (const pptrain::UsageError& error) {
    fmt::print(stderr, "{}\n", pptrain::printable(error.what()));
    return pptrain::app::final_exit(pptrain::exit_usage);
  } catch (const std::exception& error) {
    fmt::print(stderr, "pptrain: {}\n", pptrain::printable(pptrain::kernels::plain_message(error)));
    return pptrain::exit_failed;
  }
}

// Destructors of statics and what atexit() knows are for those who measure a process to its end.
bool ends_in_full() {
#ifdef PPTRAIN_SANITIZED
  return true;
#endif
  return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != nullptr;  // profilers of GPUs
}

// Else a file that is opened later would become standard output, and get its lines.
void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", O_RDWR) != stream) std::abort();
  }
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  prctl(PR_SET_NAME, "pptrain");  // in top and ps; the file is pptrain_whole or pptrain_cuda
  // A kernel that is loaded at its first run waits for the whole GPU, and for ever if a receive waits there.
  // With this, CUDA loads the programs' kernels at its start; cuBLAS still loads some at their first use, so
  // that ranks warm up too (app/rank/warm_up.h). The user's setting is kept.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  // Streams that share a hardware queue wait for each other, even for a waiting receive. 32 queues are the
  // most, 8 the default, and each of NCCL's links has a stream.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  spdlog::set_pattern("%v");
  pptrain::io::report_file_faults();
  pptrain::keep_freed_memory();
  int code = run(argc, argv);
  // A reader that has gone (EPIPE) has all that it wanted.
  if (std::fflush(stdout) != 0 && errno != EPIPE && errno != EBADF && code == 0) {
    fmt::print(stderr, "pptrain: standard output: {}\n", std::strerror(errno));
    code = pptrain::exit_failed;
  }
  if (ends_in_full()) return code;
  // LibTorch would take a tenth of a second to unregister its operators one by one.
  std::fflush(nullptr);
  _exit(code);
}
