// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/peer_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

extern char** environ;

namespace peerlane {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kPatience{20};  // a bound, no pace

int millisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::max<std::chrono::milliseconds::rep>(left.count(), 0));
}

}  // namespace

PeerProcess::PeerProcess(const std::vector<std::string>& arguments) {
  ::signal(SIGPIPE, SIG_IGN);  // it may be dead when it is told something
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> words{(here.parent_path() / "fault_peer").string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  int in[2];
  int out[2];
  EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  EXPECT_EQ(
      ::posix_spawn(&pid_, words.front().c_str(), &actions, nullptr, pointers.data(), environ), 0)
      << words.front();
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(in[0]);
  ::close(out[1]);
  input_ = in[1];
  output_ = out[0];
}

PeerProcess::~PeerProcess() {
  if (!collected_) {
    kill();
    (void)collect();
  }
  ::close(input_);
  ::close(output_);
}

void PeerProcess::tell(const std::string& line) const {
  const std::string text = line + "\n";
  (void)!::write(input_, text.data(), text.size());
}

std::string PeerProcess::line() {
  const auto deadline = Clock::now() + kPatience;
  for (;;) {
    if (const size_t end = read_.find('\n'); end != std::string::npos) {
      std::string text = read_.substr(0, end);
      read_.erase(0, end + 1);
      return text;
    }
    pollfd readable{.fd = output_, .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, millisecondsUntil(deadline)) != 1) return "";
    char piece[4096];
    const ssize_t got = ::read(output_, piece, sizeof piece);
    if (got <= 0) return "";
    read_.append(piece, static_cast<size_t>(got));
  }
}

Clock::time_point PeerProcess::signal(int number) const {
  const auto now = Clock::now();
  EXPECT_EQ(::kill(pid_, number), 0);
  return now;
}

Clock::time_point PeerProcess::kill() const {
  return signal(SIGKILL);
}

void PeerProcess::freeze() const {
  signal(SIGSTOP);
  siginfo_t info{};
  // Reported once the last thread has stopped.
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED), 0);
}

void PeerProcess::thaw() const {
  signal(SIGCONT);
}

int PeerProcess::collect() {
  const auto deadline = Clock::now() + kPatience;
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  pollfd ended{.fd = process, .events = POLLIN, .revents = 0};
  const bool inTime = ::poll(&ended, 1, millisecondsUntil(deadline)) == 1;
  ::close(process);
  if (!inTime) return -1;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  collected_ = true;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace peerlane
