// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/control_connection.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <utility>
#include <variant>
#include <vector>

#include "peerlane/os/process.h"
#include "tests/os/child_process.h"
#include "tests/os/few_descriptors.h"
#include "tests/os/open_files.h"
#include "tests/os/refused_calls.h"

namespace peerlane {
namespace {

using std::chrono::milliseconds;

// One end, and what it was told.
struct End {
  std::unique_ptr<EventLoop> loop = EventLoop::create().value();
  std::unique_ptr<ControlConnection> connection;
  bool isAuthenticated = false;
  std::vector<ControlMessage> messages;
  std::vector<Status> ends;
  std::function<void()> onMessage;
  size_t taken = 0;  // of messages, by dropFds()

  void dropFds() {
    for (; taken < messages.size(); ++taken)
      if (const auto* reply = std::get_if<control::ImportReply>(&messages[taken]))
        (void)connection->takeFds(reply->fdCount);
  }

  void open(Fd socket, Handshake::Role role, uint8_t name) {
    HandshakeOptions options;
    std::array<std::byte, 32> secret{};
    secret.fill(std::byte{7});
    options.secret = Secret(secret);
    options.keyId = keyIdOf(options.secret);
    std::array<std::byte, 16> self{};
    self.fill(std::byte{name});
    options.self = ContextId(self);
    auto made = ControlConnection::create(
        *loop, std::move(socket), false, role, std::move(options),
        {.authenticated = [this](const PeerIdentity&) { isAuthenticated = true; },
         .message =
             [this](ControlMessage message) {
               messages.push_back(std::move(message));
               if (onMessage) onMessage();
             },
         .ended = [this](Status status) { ends.push_back(std::move(status)); }});
    ASSERT_TRUE(made.isOk()) << made.status().toString();
    connection = std::move(*made);
  }
};

class ControlConnections : public testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> sockets{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
    near.open(Fd(sockets[0]), Handshake::Role::kInitiator, 1);
    far.open(Fd(sockets[1]), Handshake::Role::kAcceptor, 2);
    for (int round = 0; round < 100 && !(near.isAuthenticated && far.isAuthenticated); ++round) {
      near.loop->waitOnce(milliseconds(1));
      far.loop->waitOnce(milliseconds(1));
    }
    ASSERT_TRUE(near.isAuthenticated && far.isAuthenticated);
  }
  // Until `count` messages came, or an end.
  void hear(End& end, size_t count) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (end.messages.size() < count && end.ends.empty() &&
           std::chrono::steady_clock::now() < limit) {
      near.loop->waitOnce(milliseconds(1));
      far.loop->waitOnce(milliseconds(1));
    }
    ASSERT_EQ(end.messages.size(), count)
        << (end.ends.empty() ? "nothing came" : end.ends.front().toString());
  }
  End near, far;
};

TEST_F(ControlConnections, WhatThePeerSaidBeforeItsEndIsReadThoughNothingCanBeSentAnyMore) {
  for (uint64_t beat = 0; beat < 3; ++beat)
    ASSERT_TRUE(far.connection->send(control::Heartbeat{beat, true}).isOk());
  ASSERT_TRUE(far.connection->sendLast(control::Bye{Code::kOk, "that is all"}).isOk());
  far.connection->close();
  ASSERT_TRUE(near.connection->send(control::Heartbeat{9, false}).isOk());
  EXPECT_FALSE(near.connection->flushed()) << "the socket took it, this test shows nothing";
  for (int round = 0; round < 100 && near.ends.empty(); ++round)
    near.loop->waitOnce(milliseconds(1));
  ASSERT_EQ(near.ends.size(), 1u);
  ASSERT_EQ(near.messages.size(), 4u);
  EXPECT_TRUE(std::holds_alternative<control::Bye>(near.messages.back()));
  EXPECT_FALSE(near.connection->open());
}

TEST_F(ControlConnections, NothingIsSentBehindTheLastMessage) {
  ASSERT_TRUE(near.connection->sendLast(control::Bye{Code::kOk, ""}).isOk());
  EXPECT_EQ(near.connection->sendIfOpen(control::RevokeDone{1, Code::kOk}).code(), Code::kClosed);
  EXPECT_EQ(near.connection->send(control::Heartbeat{1, false}).code(), Code::kClosed);
  near.connection->close();
  for (int round = 0; round < 100 && far.ends.empty(); ++round) far.loop->waitOnce(milliseconds(1));
  ASSERT_EQ(far.ends.size(), 1u);
  EXPECT_EQ(far.messages.size(), 1u);
}

// --- Messages of which there are many ---

int bytesWaiting(const End& end) {
  int bytes = 0;
  EXPECT_EQ(::ioctl(end.connection->socket(), FIONREAD, &bytes), 0);
  return bytes;
}

// Each write is a system call here and a wake-up there.
TEST_F(ControlConnections, WhatIsGatheredIsWrittenTogether) {
  {
    const ControlConnection::Gathering releases(*near.connection);
    for (uint64_t i = 1; i <= 20; ++i)
      ASSERT_TRUE(near.connection->send(control::Release{i, 7}).isOk());
    EXPECT_EQ(bytesWaiting(far), 0);
  }
  EXPECT_GT(bytesWaiting(far), 20 * 16);
  hear(far, 20);
  for (uint64_t i = 1; i <= 20; ++i)
    EXPECT_EQ(std::get<control::Release>(far.messages[i - 1]).allocation, i);
}

TEST_F(ControlConnections, NothingGatheredWaitsBehindAnotherMessage) {
  const ControlConnection::Gathering releases(*near.connection);
  ASSERT_TRUE(near.connection->send(control::Release{1, 7}).isOk());
  ASSERT_EQ(bytesWaiting(far), 0);
  ASSERT_TRUE(near.connection->send(control::Ready{}).isOk());
  hear(far, 2);
}

// So that the peer has something to do meanwhile.
TEST_F(ControlConnections, MuchIsNotGathered) {
  const ControlConnection::Gathering releases(*near.connection);
  for (uint64_t i = 0; i < 1000; ++i)
    ASSERT_TRUE(near.connection->send(control::Release{i, 7}).isOk());
  EXPECT_GT(bytesWaiting(far), 0);
}

// And before a message is handled that may call the program: it may wait for what the peer does.
TEST_F(ControlConnections, AnswersToWhatWasReadAtOnceAreWrittenTogether) {
  std::vector<int> waited;
  far.onMessage = [&] {
    waited.push_back(bytesWaiting(near));
    if (const auto* asked = std::get_if<control::Revoke>(&far.messages.back())) {
      EXPECT_TRUE(far.connection->send(control::RevokeDone{asked->request, Code::kOk}).isOk());
    }
  };
  for (uint64_t i = 1; i <= 20; ++i)
    ASSERT_TRUE(near.connection->send(control::Revoke{i, i, 7, false}).isOk());
  ASSERT_TRUE(near.connection->send(control::Ready{}).isOk());
  ASSERT_EQ(far.loop->waitOnce(milliseconds(1000)), 1u);
  ASSERT_EQ(waited.size(), 21u);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(waited[i], 0);
  EXPECT_GT(waited.back(), 0);
  hear(near, 20);
}

// --- A peer that asks and does not read ---

std::vector<Fd> copiesOf(const std::vector<int>& fds) {
  std::vector<Fd> copies;
  for (const int fd : fds) copies.push_back(duplicateFd(fd).value());
  return copies;
}

// What `far` answers each import with.
struct Answers {
  explicit Answers(End& end, std::vector<int> with = {}) : far(end), fds(std::move(with)) {}
  // Answers what came since.
  void answer() {
    for (; answered < far.messages.size(); ++answered) {
      const auto* asked = std::get_if<control::ImportRequest>(&far.messages[answered]);
      if (asked == nullptr) continue;
      ++requests;
      control::ImportReply reply;
      reply.request = asked->request;
      reply.reason = std::string(1000, 'x');
      reply.fdCount = static_cast<uint32_t>(fds.size());
      ASSERT_TRUE(far.connection->send(reply, copiesOf(fds)).isOk());
      mostFds = std::max(mostFds, far.connection->queuedFds());
    }
  }
  End& far;
  const std::vector<int> fds;
  size_t answered = 0;
  size_t requests = 0;
  size_t mostFds = 0;
};

class Greed : public ControlConnections {
 protected:
  // near asks `count` times and reads nothing; returns how many of them far has read when it reads
  // no more.
  size_t askWithoutReading(Answers& answers, uint64_t count) {
    far.onMessage = [&answers] { answers.answer(); };
    for (uint64_t request = 1; request <= count; ++request)
      EXPECT_TRUE(near.connection->send(control::ImportRequest{request, 1, 1, 3, {}}).isOk());
    size_t before = 0;
    for (int quiet = 0; quiet < 20; before = answers.requests) {
      far.loop->waitOnce(milliseconds(1));
      (void)near.connection->sendIfOpen(control::Ready{});  // what waits before it goes on
      quiet = answers.requests == before ? quiet + 1 : 0;
    }
    return answers.requests;
  }
  void expectAllAnswered(uint64_t count) {
    for (int round = 0; round < 20000 && near.messages.size() < count; ++round) {
      near.loop->waitOnce(milliseconds(0));
      far.loop->waitOnce(milliseconds(0));
      near.dropFds();
    }
    ASSERT_EQ(near.messages.size(), count);
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(std::holds_alternative<control::ImportReply>(near.messages[i]));
      ASSERT_EQ(std::get<control::ImportReply>(near.messages[i]).request, i + 1) << "in order";
    }
    EXPECT_TRUE(near.ends.empty() && far.ends.empty());
  }
};

TEST_F(Greed, WhoDoesNotReadAnswersIsNotRead) {
  constexpr uint64_t kCount = 4000;  // of more than 1 KiB each
  Answers answers(far);
  const size_t read = askWithoutReading(answers, kCount);
  // The bound, and what the socket holds.
  EXPECT_GE(read, limits::kAnswerBytes / 1200);
  EXPECT_LE(read, limits::kAnswerBytes / 1000 + 512);
  expectAllAnswered(kCount);
}

TEST_F(Greed, WhoDoesNotReadDescriptorsIsNotRead) {
  constexpr uint64_t kCount = 2000;
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Answers answers(far, {null.get()});
  EXPECT_LT(askWithoutReading(answers, kCount), kCount);
  EXPECT_LE(answers.mostFds, limits::kAnswerDescriptors);
  EXPECT_GT(answers.mostFds, limits::kAnswerDescriptors / 2);
  expectAllAnswered(kCount);
}

TEST_F(Greed, OneHeartbeatIsQueued) {
  const control::UserMessage some{1, std::vector<std::byte>(4096)};
  while (near.connection->flushed()) ASSERT_TRUE(near.connection->send(some).isOk());
  for (uint64_t beat = 0; beat < 1000; ++beat)
    ASSERT_TRUE(near.connection->send(control::Heartbeat{beat, false}).isOk());
  for (int round = 0; round < 1000 && !near.connection->flushed(); ++round) {
    far.loop->waitOnce(milliseconds(1));
    near.loop->waitOnce(milliseconds(1));
  }
  ASSERT_TRUE(near.connection->flushed());
  for (int round = 0; round < 10; ++round) far.loop->waitOnce(milliseconds(1));
  const auto isBeat = [](const ControlMessage& message) {
    return std::holds_alternative<control::Heartbeat>(message);
  };
  EXPECT_LE(std::count_if(far.messages.begin(), far.messages.end(), isBeat), 1);
  ASSERT_TRUE(near.connection->send(control::Heartbeat{7, false}).isOk());
  for (int round = 0; round < 100 && !isBeat(far.messages.back()); ++round)
    far.loop->waitOnce(milliseconds(1));
  EXPECT_TRUE(isBeat(far.messages.back()));
}

TEST_F(ControlConnections, TheRestIsReadWhenItsEndIsKnown) {
  for (uint32_t i = 0; i < 40; ++i)
    ASSERT_TRUE(far.connection->send(control::UserMessage{i, {}}).isOk());
  near.connection->readRest();
  EXPECT_EQ(near.messages.size(), 40u);
  EXPECT_TRUE(near.ends.empty());
}

// --- Shortage here is nobody's lie ---

TEST_F(ControlConnections, ADescriptorThatFindsNoRoomCostsItsMessageAlone) {
  ASSERT_TRUE(near.connection->send(control::Heartbeat{1, true}, copiesOf({0})).isOk());
  {
    const FewDescriptors none(0);
    hear(far, 1);
  }
  const auto lost = far.connection->takeFds(1);
  EXPECT_EQ(lost.status().code(), Code::kUnavailable) << lost.status().toString();
  ASSERT_TRUE(near.connection->send(control::Heartbeat{2, true}, copiesOf({0})).isOk());
  hear(far, 2);
  const auto taken = far.connection->takeFds(1);
  ASSERT_TRUE(taken.isOk()) << taken.status().toString();
  EXPECT_TRUE(taken->front());
}

// Those of one user under way are limited, and an administrator's are not.
TEST_F(ControlConnections, TooManyDescriptorsUnderWayDelayTheRest) {
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(1);
    rlimit most{};
    getrlimit(RLIMIT_NOFILE, &most);
    const rlimit few{.rlim_cur = 40, .rlim_max = most.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    const std::vector<int> files(kMaxPassedFds, 0);
    for (uint64_t i = 0; i < 4; ++i)
      if (!near.connection->send(control::UserMessage{1, {}}, copiesOf(files)).isOk()) _exit(2);
    if (near.connection->flushed()) _exit(3);  // no limit was met: this shows nothing
    // Ready to be written to all the while, and refused by the kernel.
    for (int round = 0; round < 10; ++round) near.loop->waitOnce(milliseconds(1));
    if (!near.ends.empty()) _exit(5);
    setrlimit(RLIMIT_NOFILE, &most);  // room for those that come
    hear(far, 4);
    _exit(far.messages.size() == 4 && near.ends.empty() && far.ends.empty() ? 0 : 4);
  }
  EXPECT_EQ(child::collect(child, child::Clock::now() + std::chrono::seconds(60)), 0);
}

// What the kernel refuses for good ends the connection though nothing comes in.
TEST_F(ControlConnections, AWriteThatFailsIsSeenByTheLoop) {
  const pid_t child = fork();
  if (child == 0) {
    refuseCalls(SYS_sendto, EIO);
    if (!near.connection->send(control::Heartbeat{1, true}).isOk()) _exit(1);
    for (int round = 0; round < 100 && near.ends.empty(); ++round)
      near.loop->waitOnce(milliseconds(1));
    _exit(near.ends.size() == 1 ? 0 : 2);
  }
  EXPECT_EQ(child::collect(child, child::Clock::now() + std::chrono::seconds(60)), 0);
}

TEST_F(ControlConnections, DescriptorsOfAStrangerAreNotTaken) {
  std::array<int, 2> sockets{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()), 0);
  End host;
  host.open(Fd(sockets[0]), Handshake::Role::kAcceptor, 3);
  const Fd stranger(sockets[1]);
  const std::vector<int> files(kMaxPassedFds, 0);
  const size_t before = openFileCount().value();
  for (const char letter : {'P', 'E', 'E', 'R'}) {
    const auto byte = static_cast<std::byte>(letter);
    ASSERT_TRUE(sendWithFds(stranger.get(), {&byte, 1}, files).isOk());
  }
  for (int round = 0; round < 10; ++round) host.loop->waitOnce(milliseconds(1));
  EXPECT_EQ(openFileCount().value(), before);
}

}  // namespace
}  // namespace peerlane
