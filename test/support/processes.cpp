#include "test/support/processes.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <thread>

#include "core/net/socket.h"

namespace pptrain::test {
namespace {

using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& more) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (!more.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : more) result.push_back(name + "=" + value);
  return result;
}

pid_t start(const Process& process, std::FILE* output) {
  std::vector<std::string> arguments = process.arguments;
  std::vector<std::string> environment = merged_environment(process.environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(output), 1);
  posix_spawn_file_actions_adddup2(&actions, fileno(output), 2);
  pid_t pid = 0;
  const int code = posix_spawnp(&pid, arguments[0].c_str(), &actions, nullptr, pointers(arguments).data(),
                                pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (code != 0) throw std::runtime_error("cannot start " + process.arguments[0]);
  return pid;
}

std::string read_all(std::FILE* file) {
  std::rewind(file);
  std::string text;
  char block[4096];
  while (const size_t got = std::fread(block, 1, sizeof(block), file)) text.append(block, got);
  return text;
}

}  // namespace

std::vector<Ended> run_processes(const std::vector<Process>& processes, double seconds) {
  std::vector<File> outputs;
  std::vector<pid_t> running;
  for (const Process& process : processes) {
    outputs.emplace_back(std::tmpfile(), &std::fclose);
    running.push_back(start(process, outputs.back().get()));
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::vector<Ended> ended(processes.size());
  for (size_t left = processes.size(); left > 0;) {
    const bool late = std::chrono::steady_clock::now() > deadline;
    for (size_t i = 0; i < running.size(); ++i) {
      if (running[i] == 0) continue;
      if (late) kill(running[i], SIGKILL);
      int status = 0;
      if (waitpid(running[i], &status, late ? 0 : WNOHANG) != running[i]) continue;
      ended[i].code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      running[i] = 0;
      --left;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (size_t i = 0; i < ended.size(); ++i) ended[i].output = read_all(outputs[i].get());
  return ended;
}

int free_port() {
  int error = 0;
  return net::port_of(net::listen_at("127.0.0.1", 0, error));
}

}  // namespace pptrain::test
