// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/peer_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/os/child_process.h"

extern char** environ;

namespace peerlane {
namespace {

using child::Clock;
constexpr std::chrono::seconds kPatience{60};  // a bound, no pace

}  // namespace

PeerProcess::PeerProcess(const std::vector<std::string>& arguments, const char* program) {
  ::signal(SIGPIPE, SIG_IGN);  // it may be dead when it is told something
  std::vector<std::string> words{child::besideThis(program)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  int in[2];
  int out[2];
  EXPECT_EQ(::pipe2(in, O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  EXPECT_EQ(::posix_spawn(&pid_, words.front().c_str(), &actions, nullptr,
                          child::pointersTo(words).data(), environ),
            0)
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
    if (!child::readSome(output_, read_, deadline)) return "";
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
  const int code = child::collect(pid_, Clock::now() + kPatience);
  collected_ = code >= 0;
  return code;
}

}  // namespace peerlane
