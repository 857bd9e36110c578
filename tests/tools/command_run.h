// SPDX-License-Identifier: Apache-2.0
//
// CommandRun: the built command line `peerlane` (beside this test's program) as a process of its
// own, with its output collected. It sees no GPU, also where there are some, unless `environment`
// says otherwise. Killed when it goes away. External synchronization required.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace peerlane {

class CommandRun {
 public:
  // What its standard output is: read by this test, a full disk, a pipe that nobody reads, or
  // nothing at all.
  enum class Output { kRead, kFull, kNoReader, kClosed };

  // `environment`: "NAME=value" texts that replace or join ours; PEERLANE_* of ours is left out.
  explicit CommandRun(const std::vector<std::string>& arguments,
                      const std::vector<std::string>& environment = {},
                      const std::string& folder = "/", Output output = Output::kRead);
  ~CommandRun();
  CommandRun(const CommandRun&) = delete;
  CommandRun& operator=(const CommandRun&) = delete;

  pid_t pid() const { return pid_; }
  // The first line of its standard output, waited for (10 s); empty when it ends without one.
  std::string firstLine();
  // The exit code, 128 + n after signal n; -1 when it still runs after `timeout`.
  int wait(std::chrono::milliseconds timeout = std::chrono::seconds(60));
  void signal(int number) const;
  // SIGSTOP, and every thread of it stands still; false when it has ended.
  [[nodiscard]] bool freeze() const;
  // No file that the process writes may become larger than this.
  void limitFileSize(uint64_t bytes) const;

  // After wait() (out() up to 64 KiB).
  std::string out();
  std::string err() const;

 private:
  pid_t pid_ = -1;
  int output_ = -1;  // reading end of its standard output
  int errors_ = -1;  // an unnamed file
  std::string read_;
  int code_ = -1;
};

// The lines of a text, without their breaks.
std::vector<std::string> linesOf(const std::string& text);

}  // namespace peerlane
