// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/command_run.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

extern char** environ;

namespace peerlane {
namespace {

using Clock = std::chrono::steady_clock;

int millisecondsUntil(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::max<std::chrono::milliseconds::rep>(left.count(), 0));
}

std::vector<char*> pointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environmentWith(const std::vector<std::string>& changes) {
  std::vector<std::string> all = changes;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    const auto renames = [&](const std::string& change) { return change.starts_with(name); };
    if (text.starts_with("PEERLANE_") || std::any_of(changes.begin(), changes.end(), renames))
      continue;
    all.push_back(text);
  }
  return all;
}

}  // namespace

CommandRun::CommandRun(const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment, const std::string& folder) {
  const std::filesystem::path here = std::filesystem::read_symlink("/proc/self/exe");
  const std::string program = (here.parent_path() / "peerlane").string();
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  output_ = ends[0];
  errors_ = ::memfd_create("errors", MFD_CLOEXEC);
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environmentWith(environment);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, errors_, STDERR_FILENO);
  ::posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, pointersTo(words).data(),
                          pointersTo(variables).data()),
            0)
      << program;
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
}

CommandRun::~CommandRun() {
  if (code_ < 0 && pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(output_);
  ::close(errors_);
}

bool CommandRun::readSome(Clock::time_point deadline) {
  pollfd readable{.fd = output_, .events = POLLIN, .revents = 0};
  if (::poll(&readable, 1, millisecondsUntil(deadline)) != 1) return false;
  char piece[4096];
  const ssize_t got = ::read(output_, piece, sizeof piece);
  if (got <= 0) return false;
  read_.append(piece, static_cast<size_t>(got));
  return true;
}

std::string CommandRun::firstLine() {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (read_.find('\n') == std::string::npos)
    if (!readSome(deadline)) return "";
  return read_.substr(0, read_.find('\n'));
}

int CommandRun::wait(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  pollfd ended{.fd = process, .events = POLLIN, .revents = 0};
  const bool inTime = ::poll(&ended, 1, millisecondsUntil(deadline)) == 1;
  ::close(process);
  if (!inTime) return -1;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return code_;
}

void CommandRun::signal(int number) const {
  ::kill(pid_, number);
}

void CommandRun::limitFileSize(uint64_t bytes) const {
  const rlimit limit{bytes, bytes};
  EXPECT_EQ(::prlimit(pid_, RLIMIT_FSIZE, &limit, nullptr), 0);
}

std::string CommandRun::out() {
  while (readSome(Clock::now())) {
  }
  return read_;
}

std::string CommandRun::err() const {
  std::string text(static_cast<size_t>(::lseek(errors_, 0, SEEK_END)), '\0');
  const ssize_t got = ::pread(errors_, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

std::vector<std::string> linesOf(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t from = 0; from < text.size();) {
    const size_t end = std::min(text.find('\n', from), text.size());
    lines.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return lines;
}

}  // namespace peerlane
