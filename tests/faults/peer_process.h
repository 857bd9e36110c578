// SPDX-License-Identifier: Apache-2.0
//
// PeerProcess: the program `fault_peer` or `torture_peer` (beside this test's program) as a process
// of its own, spoken to by lines on its standard input and output. Killed and collected when it
// goes away. External synchronization required.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace peerlane {

class PeerProcess {
 public:
  // `arguments`: see fault_peer.cc. It waits to be told the ticket it shall connect with.
  explicit PeerProcess(const std::vector<std::string>& arguments,
                       const char* program = "fault_peer");
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  pid_t pid() const { return pid_; }
  // Writes one line; the process may be dead.
  void tell(const std::string& line) const;
  // Its next line, waited for; empty when it ends, or is silent for long.
  std::string line();
  // tell() and line().
  std::string ask(const std::string& what) {
    tell(what);
    return line();
  }
  // When the signal was sent.
  std::chrono::steady_clock::time_point signal(int number) const;
  // SIGSTOP, and every thread of it stands still.
  void freeze() const;
  void thaw() const;
  // SIGKILL; returns when it was sent. The dead process is not collected yet.
  std::chrono::steady_clock::time_point kill() const;
  // Waits for its end and collects it; 128 + n after signal n, -1 when it does not end.
  int collect();

 private:
  pid_t pid_ = -1;
  int input_ = -1;   // writing end of its standard input
  int output_ = -1;  // reading end of its standard output
  std::string read_;
  bool collected_ = false;
};

}  // namespace peerlane
