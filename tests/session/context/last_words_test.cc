// SPDX-License-Identifier: Apache-2.0
//
// What a process said before its end: every message that was accepted there can be received here,
// whichever way it went.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "peerlane/session/context/farewell.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/progress/standing_callback.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kChannels = 3;
constexpr uint32_t kMessages = 60;  // on each

// A forked child that connects to the ticket it is told, sends, and leaves.
class Speaker {
 public:
  Speaker(const char* link, size_t bytes, const std::function<void(Context*, Peer)>& leave) {
    EXPECT_EQ(pipe(toChild_), 0);
    EXPECT_EQ(pipe(toParent_), 0);
    child_ = fork();
    if (child_ == 0) speak(link, bytes, leave);
  }
  ~Speaker() {
    kill();
    for (const int fd : {toChild_[0], toChild_[1], toParent_[0], toParent_[1]}) close(fd);
  }
  void tell(const std::string& ticket) {
    const std::string line = ticket + "\n";
    ASSERT_EQ(write(toChild_[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }
  void go() { ASSERT_EQ(write(toChild_[1], "g", 1), 1); }
  // All is in the kernel's hands.
  void awaitSaid() {
    char said = 0;
    ASSERT_EQ(read(toParent_[0], &said, 1), 1);
  }
  void awaitEnd() {
    if (child_ > 0) waitpid(std::exchange(child_, 0), nullptr, 0);
  }
  void kill() {
    if (child_ > 0) ::kill(child_, SIGKILL);
    awaitEnd();
  }
  void said() const {
    if (write(toParent_[1], "s", 1) != 1) _exit(8);
  }

 private:
  [[noreturn]] void speak(const char* link, size_t bytes,
                          const std::function<void(Context*, Peer)>& leave) {
    std::string ticket;
    for (char c = 0; read(toChild_[0], &c, 1) == 1 && c != '\n';) ticket += c;
    static Context* context = makeContext(withLinks({link})).release();
    const Peer peer = MUST(context->connect(ticket, kSoon));
    char go = 0;
    if (read(toChild_[0], &go, 1) != 1) _exit(7);
    // What is sent now waits for the progress thread, so that who leaves too soon loses it.
    peer.core()->progress().post([] { std::this_thread::sleep_for(20ms); });
    const std::vector<std::byte> filler(bytes);
    for (uint32_t i = 0; i < kMessages; ++i)
      for (uint32_t channel = 0; channel < kChannels; ++channel) {
        std::vector<std::byte> message(filler);
        message.at(0) = static_cast<std::byte>(i);
        if (!peer.sendMessage(channel, message).isOk()) _exit(9);
      }
    leave(context, peer);
    said();
    for (;;) pause();
  }
  int toChild_[2] = {-1, -1};
  int toParent_[2] = {-1, -1};
  pid_t child_ = 0;
};

void expectAll(const Peer& peer) {
  for (uint32_t channel = 0; channel < kChannels; ++channel) {
    for (uint32_t i = 0; i < kMessages; ++i) {
      const auto message = peer.receiveMessage(channel, kSoon);
      ASSERT_TRUE(message.isOk()) << "message " << i << " of channel " << channel << ": "
                                  << message.status().toString();
      ASSERT_EQ(message->at(0), static_cast<std::byte>(i)) << "of channel " << channel;
    }
    EXPECT_EQ(peer.receiveMessage(channel, kSoon).status().code(), Code::kPeerLost);
  }
}

class LastWords : public testing::TestWithParam<const char*> {
 protected:
  void leavesBy(size_t bytes, const std::function<void(Context*, Peer)>& way) {
    Speaker speaker(GetParam(), bytes, way);
    const auto context = makeContext(withLinks({GetParam()}), {"127.0.0.1:0"});
    speaker.tell(context->ticket());
    const Peer peer = MUST(context->accept(kSoon));
    speaker.go();
    speaker.awaitEnd();
    expectAll(peer);
  }
};

INSTANTIATE_TEST_SUITE_P(Links, LastWords, testing::Values("shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(LastWords, OfAContextThatIsDestroyed) {
  leavesBy(4096, [](Context* context, const Peer&) {
    delete context;
    _exit(0);
  });
}

TEST_P(LastWords, OfAProcessThatCallsExit) {
  leavesBy(4096, [](Context*, const Peer&) { exit(0); });
}

TEST_P(LastWords, OfAPeerThatWasClosedBeforeExit) {
  leavesBy(4096, [](Context*, const Peer& peer) {
    peer.close();
    exit(0);
  });
}

// What a port holds it holds until the process ends.
TEST_P(LastWords, OfAProcessThatHoldsThePeersMemory) {
  leavesBy(4096, [](Context*, const Peer& peer) {
    if (!peer.core()->peerSlab()->gate.enter()) _exit(10);
    exit(0);
  });
}

// The kernel has all of it, and this side reads it when it already knows of the end.
TEST_P(LastWords, OfAProcessThatIsKilled) {
  Speaker speaker(GetParam(), 16, [](Context*, const Peer& peer) {
    (void)peer.core()->progress().call([] {});  // what was sent is written
  });
  const auto context = makeContext(withLinks({GetParam()}), {"127.0.0.1:0"});
  speaker.tell(context->ticket());
  const Peer peer = MUST(context->accept(kSoon));
  StandingCallback stands(peer.core()->progress());
  speaker.go();
  speaker.awaitSaid();
  speaker.kill();
  stands.goOn();
  ASSERT_TRUE(soon([&] { return peer.state() == "lost"; }));
  expectAll(peer);
}

// As from a socket, what was said can be had by whoever takes the connection afterwards.
TEST_P(LastWords, OfAProcessThatNobodyHadAccepted) {
  Speaker speaker(GetParam(), 16, [](Context*, const Peer&) { exit(0); });
  const auto context = makeContext(withLinks({GetParam()}), {"127.0.0.1:0"});
  speaker.tell(context->ticket());
  speaker.go();
  speaker.awaitEnd();
  ASSERT_TRUE(soon([&] { return context->peers().empty(); }));
  EXPECT_NE(context->dump().find("1 peers connected and not taken"), std::string::npos);
  expectAll(MUST(context->accept(kSoon)));
}

// A callback that does not return: there is nobody who could say goodbye.
TEST(Farewell, DoesNotWaitForACallback) {
  const pid_t child = fork();
  if (child == 0) {
    static Context* context = makeContext().release();
    static Context* other = makeContext().release();
    const Peer peer = MUST(context->connect(other->ticket(), kSoon));
    [[maybe_unused]] static const auto* const stands =
        new StandingCallback(peer.core()->progress());
    exit(17);
  }
  const int process = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  pollfd ended{process, POLLIN, 0};
  const bool hasEnded = poll(&ended, 1, 60'000) == 1;
  close(process);
  if (!hasEnded) ::kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(hasEnded);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 17) << status;
}

using Clock = std::chrono::steady_clock;  // one for all processes

// A process of three contexts whose first cannot say goodbye, and whose third is connected with
// this process: how long after the beginning of its exit the third one's goodbye is seen here.
Clock::duration delayOfAnother() {
  int toChild[2];
  int toParent[2];
  EXPECT_EQ(pipe(toChild), 0);
  EXPECT_EQ(pipe(toParent), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::string ticket;
    for (char c = 0; read(toChild[0], &c, 1) == 1 && c != '\n';) ticket += c;
    static Context* first = makeContext().release();
    static Context* second = makeContext().release();
    const Peer stuck = MUST(first->connect(second->ticket(), kSoon));
    static Context* third = makeContext().release();
    const Peer parent = MUST(third->connect(ticket, kSoon));
    // Who leaves nothing and is gone before it is accepted is not handed out.
    if (!parent.sendMessage(0, std::as_bytes(std::span("here"))).isOk()) _exit(9);
    [[maybe_unused]] static const auto* const stands =
        new StandingCallback(stuck.core()->progress());
    const Clock::time_point now = Clock::now();
    if (write(toParent[1], &now, sizeof now) != sizeof now) _exit(8);
    exit(17);
  }
  close(toChild[0]);
  close(toParent[1]);
  const auto context = makeContext();
  const std::string line = context->ticket() + "\n";
  EXPECT_EQ(write(toChild[1], line.data(), line.size()), static_cast<ssize_t>(line.size()));
  const Peer peer = MUST(context->accept(kSoon));
  Clock::time_point exits;
  EXPECT_EQ(read(toParent[0], &exits, sizeof exits), ssize_t{sizeof exits});
  EXPECT_TRUE(soon([&] { return peer.state() != "ready"; }));
  const auto delay = Clock::now() - exits;
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 17) << status;
  for (const int fd : {toChild[1], toParent[0]}) close(fd);
  return delay;
}

// One context of the process waits in vain; the others do not wait for it with their goodbye. Once
// in five tries is enough: a busy machine may delay each, but a goodbye that waits is late each
// time.
TEST(Farewell, AllContextsBeginBeforeOneIsWaitedFor) {
  bool isInTime = false;
  for (int i = 0; i < 5 && !isInTime; ++i) isInTime = delayOfAnother() < kGoodbyePatience;
  EXPECT_TRUE(isInTime) << "the third context said goodbye after the first had given up";
}

}  // namespace
}  // namespace peerlane
