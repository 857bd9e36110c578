// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/os/file.h"
#include "tests/os/scratch_folder.h"

namespace peerlane {
namespace {

std::span<const std::byte> bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void waitFor(int fd, short events) {
  pollfd entry{fd, events, 0};
  ASSERT_EQ(::poll(&entry, 1, 10'000), 1);
}

struct Connection {
  Fd client;
  Fd server;
};

// Connects to `listener` and accepts.
Connection connectTo(int listener) {
  Connection both;
  both.client = connectStart(localAddress(listener).value()).value();
  waitFor(both.client.get(), POLLOUT);
  EXPECT_TRUE(connectResult(both.client.get()).isOk());
  waitFor(listener, POLLIN);
  both.server = acceptOne(listener).value();
  return both;
}

class SocketFamilies : public ::testing::TestWithParam<const char*> {
 protected:
  std::string address() const {
    std::string text = GetParam();
    return text == "path"       ? "unix:" + folder_.file("socket")
           : text == "abstract" ? "unix:@peerlane-test-" + std::to_string(::getpid())
                                : text;
  }
  ScratchFolder folder_;
};

TEST_P(SocketFamilies, ConnectAcceptSendReceiveEnd) {
  auto listener = listenOn(SocketAddress::parse(address()).value());
  ASSERT_TRUE(listener.isOk()) << listener.status().toString();
  EXPECT_EQ(acceptOne(listener->get()).status().code(), Code::kTryAgain);
  Connection both = connectTo(listener->get());
  EXPECT_TRUE(setNoDelay(both.client.get()).isOk());
  EXPECT_EQ(peerAddress(both.client.get()).value(), localAddress(listener->get()).value());

  std::byte space[16];
  EXPECT_EQ(recvSome(both.server.get(), space).status().code(), Code::kTryAgain);
  EXPECT_EQ(sendSome(both.client.get(), bytesOf("hello")).value(), 5u);
  waitFor(both.server.get(), POLLIN);
  ASSERT_EQ(recvSome(both.server.get(), space).value(), 5u);
  EXPECT_EQ(std::memcmp(space, "hello", 5), 0);
  both.client.reset();
  waitFor(both.server.get(), POLLIN);
  EXPECT_EQ(recvSome(both.server.get(), space).value(), 0u);
}

INSTANTIATE_TEST_SUITE_P(All, SocketFamilies,
                         ::testing::Values("127.0.0.1:0", "[::1]:0", "path", "abstract"));

TEST(Socket, FullSocketIsBackPressureAndNothingIsLost) {
  auto [left, right] = socketPair().value();
  std::vector<std::byte> block(70'000);
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i * 7);
  size_t sent = 0;
  while (true) {
    size_t at = sent % block.size();
    auto more = sendSome(left.get(), std::span(block).subspan(at));
    if (!more.isOk()) {
      EXPECT_EQ(more.status().code(), Code::kTryAgain);
      break;
    }
    sent += *more;
  }
  ASSERT_GT(sent, 0u);
  size_t received = 0;
  std::byte space[4096];
  while (true) {
    auto more = recvSome(right.get(), space);
    if (!more.isOk()) break;
    for (size_t i = 0; i < *more; ++i) {
      ASSERT_EQ(space[i], static_cast<std::byte>(((received + i) % block.size()) * 7));
    }
    received += *more;
  }
  EXPECT_EQ(received, sent);
}

TEST(Socket, ClosedPeerIsLostAndNoSignalKillsUs) {
  auto [left, right] = socketPair().value();
  right.reset();
  EXPECT_EQ(sendSome(left.get(), bytesOf("x")).status().code(), Code::kPeerLost);
  IoSlice slice{const_cast<char*>("x"), 1};
  EXPECT_EQ(sendVec(left.get(), std::span(&slice, 1)).status().code(), Code::kPeerLost);
}

TEST(Socket, ResetConnectionIsLostForTheReceiver) {
  Fd listener = listenOn(SocketAddress::parse("127.0.0.1:0").value()).value();
  Connection both = connectTo(listener.get());
  linger abort{1, 0};
  ASSERT_EQ(::setsockopt(both.client.get(), SOL_SOCKET, SO_LINGER, &abort, sizeof abort), 0);
  both.client.reset();
  waitFor(both.server.get(), POLLIN);
  std::byte space[4];
  EXPECT_EQ(recvSome(both.server.get(), space).status().code(), Code::kPeerLost);
}

TEST(Socket, VectorsGoOutAndComeInInOrder) {
  auto [left, right] = socketPair().value();
  std::string parts[] = {"one", "", "three"};
  std::vector<IoSlice> out;
  for (auto& part : parts) out.push_back({part.data(), part.size()});
  EXPECT_EQ(sendVec(left.get(), out).value(), 8u);
  char a[2];
  char b[10];
  IoSlice in[] = {{a, sizeof a}, {b, sizeof b}};
  EXPECT_EQ(recvVec(right.get(), in).value(), 8u);
  EXPECT_EQ(std::string(a, 2) + std::string(b, 6), "onethree");
  EXPECT_EQ(recvVec(right.get(), in).status().code(), Code::kTryAgain);
  std::vector<IoSlice> many(kMaxIoSlices + 1, IoSlice{a, 1});
  EXPECT_EQ(sendVec(left.get(), many).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(recvVec(left.get(), many).status().code(), Code::kInvalidArgument);
  many.pop_back();
  EXPECT_EQ(sendVec(left.get(), many).value(), kMaxIoSlices);
}

TEST(Socket, NobodyListensIsUnavailable) {
  SocketAddress address;
  {
    Fd listener = listenOn(SocketAddress::parse("127.0.0.1:0").value()).value();
    address = localAddress(listener.get()).value();
  }
  auto fd = connectStart(address);
  Status outcome = fd.status();
  if (fd.isOk()) {
    waitFor(fd->get(), POLLOUT);
    outcome = connectResult(fd->get());
  }
  EXPECT_EQ(outcome.code(), Code::kUnavailable) << outcome.toString();
  for (const char* text : {"unix:/nonexistent/socket", "unix:@peerlane-nobody-here"}) {
    auto refused = connectStart(SocketAddress::parse(text).value());
    EXPECT_EQ(refused.status().code(), Code::kUnavailable) << text;
    EXPECT_NE(refused.status().message().find(text), std::string_view::npos);
  }
  EXPECT_EQ(connectStart(SocketAddress()).status().code(), Code::kInvalidArgument);
}

TEST(Socket, PortInUseIsUnavailableAndNamed) {
  Fd first = listenOn(SocketAddress::parse("127.0.0.1:0").value()).value();
  SocketAddress taken = localAddress(first.get()).value();
  auto second = listenOn(taken);
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_NE(second.status().message().find(taken.toString()), std::string_view::npos);
  EXPECT_NE(second.status().message().find("; accepted: another port, or 0 for any free one"),
            std::string_view::npos)
      << second.status().toString();
}

TEST(Socket, AnAddressOfAnotherHostIsRefusedWithThoseOfThisOne) {
  const SocketAddress elsewhere = SocketAddress::parse("203.0.113.9:0").value();
  for (const auto& refused :
       {listenOn(elsewhere).status(), listenInRange(elsewhere, 40000, 65000).status()}) {
    EXPECT_EQ(refused.code(), Code::kUnavailable);
    EXPECT_NE(refused.message().find("203.0.113.9"), std::string_view::npos);
    EXPECT_NE(refused.message().find("; this host has: "), std::string_view::npos)
        << refused.toString();
    EXPECT_NE(refused.message().find("lo 127.0.0.1"), std::string_view::npos) << refused.toString();
    EXPECT_EQ(refused.message().find("no port of the range"), std::string_view::npos)
        << "a free port is not what is missing: " << refused.toString();
  }
}

TEST(Socket, RangeTakesTheNextFreePort) {
  SocketAddress ip = SocketAddress::parse("127.0.0.1:0").value();
  // Two neighbouring ports that were free a moment ago; strangers may take one, so try a few.
  for (int attempt = 0; attempt < 20; ++attempt) {
    Fd first = listenOn(ip).value();
    uint16_t low = localAddress(first.get())->port();
    if (low == 65535) continue;
    auto next = static_cast<uint16_t>(low + 1);
    auto second = listenInRange(ip, low, next);
    if (!second.isOk()) continue;
    EXPECT_EQ(localAddress(second->get())->port(), next);
    auto third = listenInRange(ip, low, next);
    EXPECT_EQ(third.status().code(), Code::kUnavailable);
    std::string range = std::to_string(low) + "-" + std::to_string(next);
    EXPECT_NE(third.status().message().find(range), std::string_view::npos);
    EXPECT_EQ(listenInRange(ip, next, low).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(listenInRange(ip, 0, low).status().code(), Code::kInvalidArgument);
    return;
  }
  FAIL() << "no two neighbouring free ports in 20 attempts";
}

TEST(UnixPath, StaleSocketIsReplacedAndALiveOneIsNot) {
  ScratchFolder folder;
  SocketAddress address = SocketAddress::parse("unix:" + folder.file("s")).value();
  { Fd stale = listenOn(address).value(); }
  ASSERT_TRUE(std::filesystem::exists(folder.file("s")));
  Fd live = listenOn(address).value();
  auto refused = listenOn(address);
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_TRUE(connectStart(address).isOk());
}

TEST(UnixPath, FilesOfTheDeadAreSweptAndNoOthers) {
  ScratchFolder folder;
  const auto at = [&](const std::string& name) {
    return SocketAddress::parse("unix:" + folder.file(name)).value();
  };
  const auto age = [&](const std::string& name) {
    const std::array<timespec, 2> old{};  // 1970
    ASSERT_EQ(::utimensat(AT_FDCWD, folder.file(name).c_str(), old.data(), 0), 0);
  };
  for (const char* name : {"peerlane-dead", "peerlane-young", "other-dead", "peerlane-others"})
    (void)listenOn(at(name)).value();
  const Fd live = listenOn(at("peerlane-live")).value();
  ASSERT_TRUE(writeFile(folder.file("peerlane-file"), "content"));
  for (const char* name :
       {"peerlane-dead", "other-dead", "peerlane-live", "peerlane-file", "peerlane-others"})
    age(name);
  // Only an administrator can make one that belongs to somebody else.
  const bool isOthers = ::chown(folder.file("peerlane-others").c_str(), 65534, 65534) == 0;
  removeStaleSockets(folder.path(), "peerlane-", NFS_SUPER_MAGIC);
  EXPECT_TRUE(std::filesystem::exists(folder.file("peerlane-dead")))
      << "its process may live on another host";
  removeStaleSockets(folder.path(), "peerlane-", TMPFS_MAGIC);
  EXPECT_FALSE(std::filesystem::exists(folder.file("peerlane-dead")));
  EXPECT_EQ(std::filesystem::exists(folder.file("peerlane-others")), isOthers);
  for (const char* name : {"peerlane-young", "other-dead", "peerlane-live", "peerlane-file"})
    EXPECT_TRUE(std::filesystem::exists(folder.file(name))) << name;
  EXPECT_EQ(acceptOne(live.get()).status().code(), Code::kTryAgain) << "its owner does not notice";
  removeStaleSockets(folder.file("missing"), "peerlane-");
}

TEST(UnixPath, OnlyFileSystemsOfOneKernelTellWhoIsDead) {
  for (const long one : {long{TMPFS_MAGIC}, long{EXT4_SUPER_MAGIC}, long{BTRFS_SUPER_MAGIC},
                         long{OVERLAYFS_SUPER_MAGIC}})
    EXPECT_TRUE(isOfOneKernel(one)) << one;
  const long kCifs = 0xff534d42, kLustre = 0x0bd00bd0, kUnknown = 0x12345678;
  for (const long shared : {long{NFS_SUPER_MAGIC}, long{FUSE_SUPER_MAGIC}, long{V9FS_MAGIC},
                            long{CEPH_SUPER_MAGIC}, kCifs, kLustre, kUnknown})
    EXPECT_FALSE(isOfOneKernel(shared)) << shared;
  // The type is asked for: this folder is of one kernel, or nothing is swept in it.
  ScratchFolder folder;
  (void)listenOn(SocketAddress::parse("unix:" + folder.file("peerlane-dead")).value()).value();
  const std::array<timespec, 2> old{};
  ASSERT_EQ(::utimensat(AT_FDCWD, folder.file("peerlane-dead").c_str(), old.data(), 0), 0);
  struct statfs of {};
  ASSERT_EQ(::statfs(folder.path().c_str(), &of), 0);
  removeStaleSockets(folder.path(), "peerlane-");
  EXPECT_EQ(std::filesystem::exists(folder.file("peerlane-dead")),
            !isOfOneKernel(static_cast<long>(of.f_type)));
}

TEST(UnixPath, OtherFilesAreKept) {
  ScratchFolder folder;
  std::string path = folder.file("precious");
  ASSERT_TRUE(writeFile(path, "content"));
  SocketAddress address = SocketAddress::parse("unix:" + path).value();
  EXPECT_EQ(listenOn(address).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(readWhole(path).value(), "content");
  // Not even a symbolic link to a socket is followed.
  { Fd stale = listenOn(SocketAddress::parse("unix:" + folder.file("s")).value()).value(); }
  std::filesystem::create_symlink(folder.file("s"), folder.file("link"));
  SocketAddress link = SocketAddress::parse("unix:" + folder.file("link")).value();
  EXPECT_EQ(listenOn(link).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::exists(folder.file("s")));
}

}  // namespace
}  // namespace peerlane
