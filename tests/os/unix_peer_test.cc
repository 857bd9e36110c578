// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/unix_peer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/os/file.h"
#include "peerlane/os/process.h"
#include "peerlane/os/socket.h"
#include "tests/os/few_descriptors.h"
#include "tests/os/open_files.h"
#include "tests/os/scratch_folder.h"

namespace peerlane {
namespace {

const std::byte kOne[1] = {std::byte{7}};

TEST(PassFds, DescriptorsArriveWithTheirBytes) {
  auto [left, right] = socketPair().value();
  Fd first = makeEventFd().value();
  Fd second = makeEventFd().value();
  int fds[] = {first.get(), second.get()};
  ASSERT_EQ(sendWithFds(left.get(), kOne, fds).value(), 1u);
  std::vector<Fd> got;
  std::byte space[8];
  ASSERT_EQ(recvWithFds(right.get(), space, got).value(), 1u);
  EXPECT_EQ(space[0], kOne[0]);
  ASSERT_EQ(got.size(), 2u);
  signalEventFd(got[1].get());
  EXPECT_EQ(drainEventFd(second.get()), 1u);
  EXPECT_EQ(drainEventFd(first.get()), 0u);
  EXPECT_NE(::fcntl(got[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ(recvWithFds(right.get(), space, got).status().code(), Code::kTryAgain);
  left.reset();
  EXPECT_EQ(recvWithFds(right.get(), space, got).value(), 0u);
  EXPECT_EQ(got.size(), 2u);
}

TEST(PassFds, WhatArrivesIsNullInForkedChildren) {
  auto [left, right] = socketPair().value();
  const Fd event = makeEventFd().value();
  const int fds[] = {event.get()};
  ASSERT_EQ(sendWithFds(left.get(), kOne, fds).value(), 1u);
  std::vector<Fd> got;
  std::byte space[8];
  ASSERT_EQ(recvWithFds(right.get(), space, got).value(), 1u);
  const pid_t child = ::fork();
  if (child == 0) {
    struct stat file {};
    struct stat null {};
    ::_exit(::fstat(got[0].get(), &file) == 0 && ::stat("/dev/null", &null) == 0 &&
                    file.st_rdev == null.st_rdev
                ? 17
                : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 17);
}

TEST(PassFds, PlainBytesBringNoDescriptors) {
  auto [left, right] = socketPair().value();
  ASSERT_TRUE(sendWithFds(left.get(), kOne, {}).isOk());
  std::vector<Fd> got;
  std::byte space[8];
  EXPECT_EQ(recvWithFds(right.get(), space, got).value(), 1u);
  EXPECT_TRUE(got.empty());
}

TEST(PassFds, LimitsAreChecked) {
  auto [left, right] = socketPair().value();
  Fd event = makeEventFd().value();
  std::vector<int> many(kMaxPassedFds + 1, event.get());
  EXPECT_EQ(sendWithFds(left.get(), kOne, many).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(sendWithFds(left.get(), {}, {}).status().code(), Code::kInvalidArgument);
  many.pop_back();
  ASSERT_TRUE(sendWithFds(left.get(), kOne, many).isOk());
  std::vector<Fd> got;
  std::byte space[1];
  ASSERT_TRUE(recvWithFds(right.get(), space, got).isOk());
  EXPECT_EQ(got.size(), kMaxPassedFds);
}

// A hostile peer is not bound by our own limit: send 40 descriptors by hand.
TEST(PassFds, TooManyDescriptorsAreAnErrorAndLeakNothing) {
  auto [left, right] = socketPair().value();
  Fd event = makeEventFd().value();
  constexpr size_t kMany = 40;
  std::vector<int> fds(kMany, event.get());
  alignas(cmsghdr) char control[CMSG_SPACE(kMany * sizeof(int))] = {};
  char byte = 1;
  iovec slice{&byte, 1};
  msghdr message{};
  message.msg_iov = &slice;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* entry = CMSG_FIRSTHDR(&message);
  entry->cmsg_level = SOL_SOCKET;
  entry->cmsg_type = SCM_RIGHTS;
  entry->cmsg_len = CMSG_LEN(kMany * sizeof(int));
  std::memcpy(CMSG_DATA(entry), fds.data(), kMany * sizeof(int));
  ASSERT_EQ(::sendmsg(left.get(), &message, 0), 1);

  size_t before = openFileCount().value();
  std::vector<Fd> got;
  std::byte space[8];
  EXPECT_EQ(recvWithFds(right.get(), space, got).status().code(), Code::kCorrupt);
  EXPECT_TRUE(got.empty());
  EXPECT_EQ(openFileCount().value(), before);
}

TEST(PassFds, WhatThisProcessHasNoRoomForIsMarkedAndNobodysLie) {
  auto [left, right] = socketPair().value();
  const Fd event = makeEventFd().value();
  const std::vector<int> three(3, event.get());
  ASSERT_TRUE(sendWithFds(left.get(), kOne, three).isOk());
  std::vector<Fd> got;
  std::byte space[8];
  {
    const FewDescriptors two(2);
    const auto came = recvWithFds(right.get(), space, got);
    ASSERT_TRUE(came.isOk()) << came.status().toString();
    EXPECT_EQ(*came, 1u);
  }
  ASSERT_EQ(got.size(), 3u);
  EXPECT_TRUE(got[0] && got[1]);
  EXPECT_FALSE(got[2]) << "an empty one stands for what was lost";
}

// Runs `body` in a child that is connected to the returned socket.
struct Child {
  pid_t pid = -1;
  Fd socket;
};

// The child connects to a listener, so that the kernel records the child's credentials and not
// ours.
Child startChild() {
  static int count = 0;
  std::string name =
      "unix:@peerlane-child-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
  SocketAddress address = SocketAddress::parse(name).value();
  Fd listener = listenOn(address).value();
  Child child;
  child.pid = ::fork();
  if (child.pid == 0) {
    auto fd = connectStart(address);
    if (!fd.isOk()) ::_exit(1);
    pollfd entry{fd->get(), POLLIN, 0};
    ::poll(&entry, 1, 20'000);  // until the parent closes or kills
    ::_exit(0);
  }
  pollfd entry{listener.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 20'000), 1);
  child.socket = acceptOne(listener.get()).value();
  return child;
}

TEST(PeerCredentials, NameTheConnectedProcess) {
  Child child = startChild();
  auto who = peerCredentials(child.socket.get());
  ASSERT_TRUE(who.isOk());
  EXPECT_EQ(who->pid, child.pid);
  EXPECT_EQ(who->uid, ::getuid());
  EXPECT_EQ(who->gid, ::getgid());
  child.socket.reset();
  ASSERT_EQ(::waitpid(child.pid, nullptr, 0), child.pid);
}

TEST(PeerCredentials, IpSocketsHaveNone) {
  Fd listener = listenOn(SocketAddress::parse("127.0.0.1:0").value()).value();
  EXPECT_FALSE(peerCredentials(listener.get()).isOk());
  EXPECT_FALSE(peerPidFd(listener.get()).isOk());
}

TEST(PeerPidFd, FollowsTheProcessToItsEnd) {
  Child child = startChild();
  auto pidFd = peerPidFd(child.socket.get());
  ASSERT_TRUE(pidFd.isOk()) << pidFd.status().toString();
  const std::string kernelSays =
      readWhole("/proc/self/fdinfo/" + std::to_string(pidFd->get()), 1 << 16).value();
  EXPECT_NE(kernelSays.find("\nPid:\t" + std::to_string(child.pid) + "\n"), std::string::npos)
      << kernelSays;
  const auto handle = ProcessHandle::of(std::move(*pidFd), child.pid);
  EXPECT_TRUE(handle.alive());
  ASSERT_EQ(::kill(child.pid, SIGKILL), 0);
  pollfd entry{handle.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 20'000), 1);
  EXPECT_FALSE(handle.alive());
  ASSERT_EQ(::waitpid(child.pid, nullptr, 0), child.pid);
  EXPECT_FALSE(handle.alive());
}

TEST(PeerPidFd, DeadProcessIsNotConfusedWithAnother) {
  Child child = startChild();
  ASSERT_EQ(::kill(child.pid, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child.pid, nullptr, 0), child.pid);
  auto pidFd = peerPidFd(child.socket.get());
  if (pidFd.isOk()) {
    // Newer kernels hand out a pidfd of the dead process itself.
    pollfd entry{pidFd->get(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 0), 1);
  } else {
    EXPECT_EQ(pidFd.status().code(), Code::kPeerLost) << pidFd.status().toString();
  }
}

}  // namespace
}  // namespace peerlane
