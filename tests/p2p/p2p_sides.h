// SPDX-License-Identifier: Apache-2.0
//
// Two processes that are each other's other side: fresh ones, which have not used the library yet,
// in namespaces of their own where a test asks for it.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "peerlane/p2p.h"
#include "tests/os/child_process.h"

namespace peerlane::p2p_test {

// One end of a socket pair. Whoever finds the other one gone ends.
class SideLine {
 public:
  explicit SideLine(int fd) : fd_(fd) {}
  template <typename T>
  void send(const T& blob) const {
    if (::send(fd_, &blob, sizeof blob, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof blob))
      ::_exit(90);
  }
  template <typename T>
  T receive() const {
    T blob;
    if (::recv(fd_, &blob, sizeof blob, MSG_WAITALL) != static_cast<ssize_t>(sizeof blob))
      ::_exit(91);
    return blob;
  }
  void meet() const {
    send(char{1});
    (void)receive<char>();
  }
  // The other side has ended.
  void awaitEnd() const {
    char byte;
    while (::recv(fd_, &byte, 1, 0) == 1) {
    }
  }

 private:
  int fd_;
};

// Inside a side: what must be so.
#define SIDE_CHECK(condition)                                                                 \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      (void)std::fprintf(stderr, "%s:%d: %s is not so: %s\n", __FILE__, __LINE__, #condition, \
                         P2PGetLastError());                                                  \
      ::_exit(1);                                                                             \
    }                                                                                         \
  } while (false)
#define SIDE_OK(call) SIDE_CHECK((call) == HCCL_SUCCESS)

using SideFunction = std::function<void(const SideLine& line)>;

// Namespaces of one side: flags of unshare(2). With CLONE_NEWPID it is the first process of its
// own.
struct Surroundings {
  int namespaces = 0;
  std::string socketDirectory{};  // PEERLANE_SOCKET_DIR
  unsigned seconds = 60;          // after which a side is ended
};

// `other`: the other end, which this side must not hold open.
inline pid_t startSide(const SideFunction& side, int fd, int other, const Surroundings& around) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::close(other);
  ::alarm(around.seconds);
  if (!around.socketDirectory.empty())
    ::setenv("PEERLANE_SOCKET_DIR", around.socketDirectory.c_str(), 1);
  if (around.namespaces != 0 && ::unshare(around.namespaces) != 0) ::_exit(77);
  if ((around.namespaces & CLONE_NEWPID) != 0) {
    // Whoever unshares stays where he is; his children are in the new one.
    const pid_t inner = ::fork();
    if (inner != 0) {
      int status = 0;
      ::waitpid(inner, &status, 0);
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
    ::alarm(around.seconds);
  }
  side(SideLine(fd));
  ::_exit(testing::Test::HasFailure() ? 2 : 0);
}

// Runs both; true when both ended well. Says so when the system allows no such namespaces.
inline testing::AssertionResult runSides(const SideFunction& first, const SideFunction& second,
                                         const Surroundings& around = {}) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return testing::AssertionFailure() << "socketpair: " << std::strerror(errno);
  const pid_t one = startSide(first, fds[0], fds[1], around);
  const pid_t two = startSide(second, fds[1], fds[0], around);
  ::close(fds[0]);
  ::close(fds[1]);
  const auto deadline = child::Clock::now() + std::chrono::seconds(around.seconds + 30);
  const int firstCode = child::collect(one, deadline), secondCode = child::collect(two, deadline);
  if (firstCode == 0 && secondCode == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "the sides ended with " << firstCode << " and " << secondCode;
}

// This system lets this process have such namespaces.
inline bool mayUnshare(int namespaces) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(namespaces) == 0 ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The comm of a side: the first one makes the root.
inline P2PComm meetOver(const SideLine& line, bool isRoot, P2pKind kind = P2P_BIDIRECTIONAL,
                        P2pLink link = P2P_LINK_AUTO) {
  HcclRootInfo root;
  if (isRoot) {
    SIDE_OK(P2PGetRootInfo(&root));
    line.send(root);
  } else {
    root = line.receive<HcclRootInfo>();
  }
  P2PCommInitOptions options;
  options.timeoutMs = 20000;
  P2PComm comm = nullptr;
  SIDE_OK(P2PCommInitRootInfo(&root, kind, link, &comm, &options));
  return comm;
}

}  // namespace peerlane::p2p_test
