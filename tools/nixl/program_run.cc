// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/program_run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "peerlane/core/text.h"

extern char** environ;

namespace peerlane {
namespace {

constexpr off_t kLongestOutput = 1 << 20;

// A file without a name that cannot become larger: a program that prints for ever fills no memory.
class CapturedStream {
 public:
  CapturedStream() : descriptor_(::memfd_create("output", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    if (descriptor_ < 0 || ::ftruncate(descriptor_, kLongestOutput) != 0 ||
        ::fcntl(descriptor_, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) != 0)
      error_ = errno;
  }
  ~CapturedStream() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  CapturedStream(const CapturedStream&) = delete;
  CapturedStream& operator=(const CapturedStream&) = delete;

  int descriptor() const { return descriptor_; }
  int error() const { return error_; }
  // All processes that inherited it move one position.
  std::string text() const {
    std::string text(static_cast<size_t>(std::max<off_t>(::lseek(descriptor_, 0, SEEK_CUR), 0)), 0);
    const ssize_t got = ::pread(descriptor_, text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return text;
  }

 private:
  int descriptor_;
  int error_ = 0;
};

Result<pid_t> start(std::vector<std::string>& words, int out, int errors) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, errors, STDERR_FILENO);
  pid_t pid = 0;
  const int error =
      ::posix_spawnp(&pid, pointers.front(), &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) return pid;
  return Status(Code::kUnavailable, peerlane::quoted(words.front(), 4096) +
                                        " cannot be started: " + std::strerror(error));
}

bool endedWithin(pid_t pid, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  pollfd ended{
      .fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)), .events = POLLIN, .revents = 0};
  int ready = -1;
  do {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    ready = ::poll(&ended, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
  } while (ready < 0 && errno == EINTR);
  ::close(ended.fd);
  return ready == 1;
}

std::string failureOf(int status) {
  if (WIFSIGNALED(status)) return "was killed by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) == 0) return "";
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

std::string ProgramEnd::lastError() const {
  const size_t last = errors.find_last_not_of(" \r\n");
  if (last == std::string::npos) return "";
  const size_t before = errors.rfind('\n', last);
  return errors.substr(before + 1, last - before);  // npos + 1 is 0
}

Result<ProgramEnd> runProgram(std::vector<std::string> words, std::chrono::seconds timeout) {
  const CapturedStream out;
  const CapturedStream errors;
  if (out.error() != 0 || errors.error() != 0)
    return Status::system(std::max(out.error(), errors.error()), "memfd_create");
  PEERLANE_ASSIGN(const pid_t pid, start(words, out.descriptor(), errors.descriptor()));
  const bool ended = endedWithin(pid, timeout);
  if (!ended) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended)
    return Status(Code::kTimeout, peerlane::quoted(words.front(), 4096) + " did not end within " +
                                      formatDuration(timeout));
  return ProgramEnd{out.text(), errors.text(), failureOf(status)};
}

}  // namespace peerlane
