// SPDX-License-Identifier: Apache-2.0
#include "tools/trial/spawned_process.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

extern char** environ;

namespace peerlane {
namespace {

constexpr size_t kMostLastWords = 4096;
// How long a failure waits for the words of a child that may be about to say why.
constexpr int kWordsMs = 1000;

// Our environment, with `changes` in place of the variables that they name.
std::vector<std::string> environmentWith(const std::vector<std::string>& changes) {
  std::vector<std::string> all = changes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& change : changes) replaced |= change.starts_with(name);
    if (!replaced) all.push_back(text);
  }
  return all;
}

std::vector<char*> pointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Result<std::unique_ptr<SpawnedProcess>> SpawnedProcess::create(
    const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Status::system(errno, "socketpair");
  std::vector<std::string> words{"peerlane"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environmentWith(environment);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr,
                                  pointersTo(words).data(), pointersTo(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[0]);
  if (error != 0) {
    ::close(ends[1]);
    return Status::system(error, "cannot start a second process of this program");
  }
  return std::unique_ptr<SpawnedProcess>(new SpawnedProcess(pid, ends[1]));
}

SpawnedProcess::~SpawnedProcess() {
  ::close(input_);
  if (reaped_) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Status SpawnedProcess::writeLine(const std::string& line) {
  const std::string text = line + "\n";
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::send(input_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Status::system(errno, "write to the second process");
    done += static_cast<size_t>(wrote);
  }
  return Status::ok();
}

Status SpawnedProcess::running() {
  if (!reaped_ && ::waitpid(pid_, &exitStatus_, WNOHANG) == 0) return Status::ok();
  hearLastWords();
  Status status = ended();
  return status.isOk() ? Status(Code::kUnavailable, "the second process ended") : status;
}

Status SpawnedProcess::wait() {
  while (!reaped_) {
    if (::waitpid(pid_, &exitStatus_, 0) == pid_)
      hearLastWords();
    else if (errno != EINTR)
      return Status::system(errno, "waitpid");
  }
  return ended();
}

Status SpawnedProcess::explained(const Status& failure) {
  pollfd words{.fd = input_, .events = POLLIN, .revents = 0};
  while (!reaped_ && ::poll(&words, 1, kWordsMs) < 0 && errno == EINTR) {
  }
  if (!reaped_) takeWords();
  if (lastWords_.empty()) return failure;
  return Status(failure.code(),
                std::string(failure.message()) + "; the second process said: " + lastWords_);
}

void SpawnedProcess::takeWords() {
  std::array<char, kMostLastWords> words{};
  const ssize_t got = ::recv(input_, words.data(), words.size(), MSG_DONTWAIT);
  if (got > 0) lastWords_.append(words.data(), static_cast<size_t>(got));
}

void SpawnedProcess::hearLastWords() {
  if (!std::exchange(reaped_, true)) takeWords();
}

Status SpawnedProcess::ended() const {
  if (WIFEXITED(exitStatus_) && WEXITSTATUS(exitStatus_) == 0) return Status::ok();
  std::string how = WIFSIGNALED(exitStatus_)
                        ? "was killed by signal " + std::to_string(WTERMSIG(exitStatus_))
                        : "ended with exit code " + std::to_string(WEXITSTATUS(exitStatus_));
  if (!lastWords_.empty()) how += ": " + lastWords_;
  return Status(Code::kUnavailable, "the second process " + how);
}

bool sayLastWords(const std::string& words) {
  const ssize_t said = ::send(STDIN_FILENO, words.data(), std::min(words.size(), kMostLastWords),
                              MSG_NOSIGNAL | MSG_DONTWAIT);
  return said > 0;
}

}  // namespace peerlane
