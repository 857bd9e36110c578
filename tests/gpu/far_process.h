// SPDX-License-Identifier: Apache-2.0
//
// FarProcess: a process with a NearSide in it, which does what letters ask. It is made before any
// test of the program begins: CUDA does not survive a fork. One question at a time.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace peerlane::gputest {

class FarProcess {
 public:
  static constexpr size_t kWindowBytes = size_t{1} << 20;

  // Requires: CUDA has not been touched here. Once for all tests.
  static void start();
  // Ends this process where it was not started.
  static FarProcess& instance();

  pid_t pid() const { return pid_; }
  int socket() const { return socket_; }
  // What bytes go through, from and to memory over there.
  std::byte* window() const { return window_; }

 private:
  FarProcess(pid_t pid, int socket, std::byte* window)
      : pid_(pid), socket_(socket), window_(window) {}
  const pid_t pid_;
  const int socket_;
  std::byte* const window_;
};

}  // namespace peerlane::gputest
