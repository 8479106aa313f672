// pptrain loaded once and started often: loading LibTorch takes most of a short command's time. For each
// request of pptrain.py a fork of this process becomes the command, beside those that still run.
//
//     loaded_pptrain FD
//
// FD: a Unix socket. A request is one message: the files for standard input, output and error, a socket for
// the answers, and texts that end with NUL: the folder, the number of arguments, the arguments, the variables
// of the environment. The answers are two ints: the process, and at its end the status from waitpid(). When
// the other side of FD is closed, what still runs is killed.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

int pptrain_main(int argc, char** argv);  // app/main.cpp's main

namespace {

constexpr size_t longest = 1 << 18;

struct Request {
  std::array<int, 4> files{};  // the last one is for the answers
  std::vector<char> text;
};

struct Command {
  pid_t process;
  int end;  // a file that can be read when the process has ended
  int answers;
};

// False if there are no more requests.
bool receive(int socket, Request& request) {
  request.text.resize(longest);
  iovec part{.iov_base = request.text.data(), .iov_len = request.text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof request.files)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t bytes = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (bytes <= 0) return false;
  request.text.resize(static_cast<size_t>(bytes));
  std::memcpy(request.files.data(), CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof request.files);
  return true;
}

[[noreturn]] void become(Request request, int socket, const std::vector<Command>& others) {
  close(socket);
  for (const Command& other : others) {
    close(other.end);
    close(other.answers);
  }
  for (int i = 0; i < 3; ++i) dup2(request.files[static_cast<size_t>(i)], i);
  for (const int file : request.files) close(file);
  std::vector<char*> words;
  for (char* word = request.text.data(); word < request.text.data() + request.text.size();
       word += std::strlen(word) + 1)
    words.push_back(word);
  if (chdir(words.at(0)) != 0) _exit(127);
  const auto arguments = static_cast<size_t>(std::atoi(words.at(1)));
  std::vector<char*> argv(words.begin() + 2, words.begin() + 2 + static_cast<std::ptrdiff_t>(arguments));
  argv.push_back(nullptr);
  clearenv();
  for (size_t i = 2 + arguments; i < words.size(); ++i) putenv(words[i]);
  std::exit(pptrain_main(static_cast<int>(arguments), argv.data()));
}

// The exit code; `commands` then has those that still run.
int serve(int socket, std::vector<Command>& commands) {
  while (true) {
    std::vector<pollfd> events{{.fd = socket, .events = POLLIN, .revents = 0}};
    for (const Command& command : commands) events.push_back({command.end, POLLIN, 0});
    if (poll(events.data(), events.size(), -1) < 0) return 1;
    for (size_t i = commands.size(); i-- > 0;) {
      if (events[i + 1].revents == 0) continue;
      int status = 0;
      if (waitpid(commands[i].process, &status, 0) != commands[i].process) return 1;
      send(commands[i].answers, &status, sizeof status, MSG_NOSIGNAL);  // the test may have ended
      close(commands[i].answers);
      close(commands[i].end);
      commands.erase(commands.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (events[0].revents == 0) continue;
    Request request;
    if (!receive(socket, request)) return 0;
    const pid_t child = fork();
    if (child == 0) become(std::move(request), socket, commands);
    if (child < 0) return 1;
    send(request.files[3], &child, sizeof child, MSG_NOSIGNAL);
    for (size_t i = 0; i < 3; ++i) close(request.files[i]);
    commands.push_back({child, static_cast<int>(syscall(SYS_pidfd_open, child, 0)), request.files[3]});
    if (commands.back().end < 0) return 1;  // before Linux 5.3
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::vector<Command> commands;
  const int code = serve(std::atoi(argv[1]), commands);
  for (const Command& command : commands) kill(command.process, SIGKILL);
  return code;
}
