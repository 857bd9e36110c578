// SPDX-License-Identifier: Apache-2.0
//
// Two programs that know nothing of each other but an address: the root goes over a TCP connection,
// which is a barrier, too. Run alone, either of them starts the other one.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/p2p/c/original_scene.h"

namespace original {

constexpr uint32_t kBatch = 64;
constexpr size_t kSmallest = 128 * 1024, kLargest = 512 * 1024;
constexpr int kSamples = 3;

struct Listener {
  int socket;
  uint16_t port;
};

inline Listener listenHere() {
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  MUST(listening >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  MUST(bind(listening, reinterpret_cast<const sockaddr*>(&address), length) == 0);
  MUST(listen(listening, 3) == 0);
  MUST(getsockname(listening, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return {listening, ntohs(address.sin_port)};
}

inline int acceptOne(int listening) {
  const int connection = accept(listening, nullptr, nullptr);
  MUST(connection >= 0);
  close(listening);
  return connection;
}

// It listens already.
inline int connectTo(uint16_t port) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  MUST(connection >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  MUST(connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return connection;
}

inline void meetOver(int connection) {
  writeTo(connection, uint64_t{1});
  MUST(readFrom<uint64_t>(connection) == 1);
}

// The other program, which lies beside this one or is in it, with a number for its argument.
inline pid_t startProgram(const char* name, long number) {
  char self[4096];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  MUST(length > 0);
  self[length] = '\0';
  std::string program = self;
  const std::string argument = std::to_string(number);
  std::fflush(nullptr);
  const pid_t pid = fork();
  MUST(pid >= 0);
  if (pid != 0) return pid;
#ifdef P2P_C_ALL_IN_ONE
  execl(self, self, name, argument.c_str(), nullptr);
#else
  program = program.substr(0, program.rfind('/') + 1) + "p2p_c_" + name;
  execl(program.c_str(), program.c_str(), argument.c_str(), nullptr);
#endif
  die("exec", program, __LINE__);
  return -1;
}

inline int endOf(pid_t pid) {
  int status = 0;
  MUST(waitpid(pid, &status, 0) == pid);
  MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::puts("[  PASSED  ] 1 test.");
  return 0;
}

}  // namespace original
