// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/command_run.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "tests/os/child_process.h"

extern char** environ;

namespace peerlane {
namespace {

using child::Clock;
using child::pointersTo;

std::vector<std::string> environmentWith(const std::vector<std::string>& changes) {
  const std::string gpus = "CUDA_VISIBLE_DEVICES=";
  std::vector<std::string> all = changes;
  const auto namesGpus = [&](const std::string& change) { return change.starts_with(gpus); };
  if (std::none_of(changes.begin(), changes.end(), namesGpus)) all.push_back(gpus);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    const auto renames = [&](const std::string& change) { return change.starts_with(name); };
    if (text.starts_with("PEERLANE_") || text.starts_with(gpus) ||
        std::any_of(changes.begin(), changes.end(), renames))
      continue;
    all.push_back(text);
  }
  return all;
}

}  // namespace

CommandRun::CommandRun(const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment, const std::string& folder,
                       Output output) {
  const std::string program = child::besideThis("peerlane");
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  output_ = ends[0];
  if (output == Output::kNoReader) {
    ::close(output_);
    output_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  errors_ = ::memfd_create("errors", MFD_CLOEXEC);
  std::vector<std::string> words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environmentWith(environment);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (output == Output::kFull)
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/full", O_WRONLY, 0);
  else if (output == Output::kClosed)
    ::posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
  else
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

std::string CommandRun::firstLine() {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (read_.find('\n') == std::string::npos)
    if (!child::readSome(output_, read_, deadline)) return "";
  return read_.substr(0, read_.find('\n'));
}

int CommandRun::wait(std::chrono::milliseconds timeout) {
  return code_ = child::collect(pid_, Clock::now() + timeout);
}

void CommandRun::signal(int number) const {
  ::kill(pid_, number);
}

bool CommandRun::freeze() const {
  signal(SIGSTOP);
  siginfo_t info{};
  // Reported once the last thread has stopped.
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED) == 0;
}

void CommandRun::limitFileSize(uint64_t bytes) const {
  const rlimit limit{bytes, bytes};
  EXPECT_EQ(::prlimit(pid_, RLIMIT_FSIZE, &limit, nullptr), 0);
}

std::string CommandRun::out() {
  while (child::readSome(output_, read_, Clock::now())) {
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
