// SPDX-License-Identifier: Apache-2.0
//
// What tests do with programs that they started as processes: tell them their words, read what they
// say, wait for their end; nothing of it for ever. Thread-safe: there is no state.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace peerlane::child {

using Clock = std::chrono::steady_clock;

// The program `name` in the folder of this test's program.
inline std::string besideThis(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

// As posix_spawn takes words. Lifetime: that of `texts`.
inline std::vector<char*> pointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Whether `descriptor` is readable by then.
inline bool readableUntil(int descriptor, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd readable{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&readable, 1, static_cast<int>(std::max<decltype(left)>(left, 0))) == 1;
}

// Appends what is there by then; false when that is nothing, or the end.
inline bool readSome(int descriptor, std::string& text, Clock::time_point deadline) {
  if (!readableUntil(descriptor, deadline)) return false;
  char piece[4096];
  const ssize_t got = ::read(descriptor, piece, sizeof piece);
  if (got <= 0) return false;
  text.append(piece, static_cast<size_t>(got));
  return true;
}

// Collects the process: its exit code, 128 + n after signal n; -1 when it still runs by then.
inline int collect(pid_t pid, Clock::time_point deadline) {
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  const bool ended = readableUntil(process, deadline);
  ::close(process);
  if (!ended) return -1;
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace peerlane::child
