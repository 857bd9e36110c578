// SPDX-License-Identifier: Apache-2.0
//
// SpawnedProcess: this same program once more, as a child with other arguments, whose standard
// input is a socket to this one; its output goes where ours goes. External synchronization
// required.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

class SpawnedProcess {
 public:
  // `environment`: "NAME=value" texts that replace or join ours.
  static Result<std::unique_ptr<SpawnedProcess>> create(
      const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});
  // Kills the child if it still runs.
  ~SpawnedProcess();
  SpawnedProcess(const SpawnedProcess&) = delete;
  SpawnedProcess& operator=(const SpawnedProcess&) = delete;

  int pid() const { return pid_; }
  // Writes `line` and a line break to the child's standard input.
  Status writeLine(const std::string& line);
  // OK while it runs; kUnavailable with how it ended, and with its last words.
  Status running();
  // Waits until it ended by itself. OK: exit code 0.
  Status wait();
  // `failure`, with the last words of the child where they come within a second.
  Status explained(const Status& failure);

 private:
  SpawnedProcess(pid_t pid, int input) : pid_(pid), input_(input) {}
  Status ended() const;

  // It has ended with exitStatus_.
  void hearLastWords();
  void takeWords();

  pid_t pid_;
  int input_;
  bool reaped_ = false;
  int exitStatus_ = 0;
  std::string lastWords_;
};

// In such a child: what its parent is to say of its end. False: there is none that reads it.
bool sayLastWords(const std::string& words);

}  // namespace peerlane
