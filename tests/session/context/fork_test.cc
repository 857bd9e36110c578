// SPDX-License-Identifier: Apache-2.0
//
// In a forked child a context of the parent is of no use: its threads are not there. Every call
// says so or does nothing; none hangs, none harms the parent.
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <future>

#include "peerlane/channel/communicator/communicator.h"
#include "peerlane/channel/operation/host_stream.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

class ForkTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    a_ = makeContext(withLinks({GetParam()}));
    b_ = makeContext(withLinks({GetParam()}));
    toB_ = MUST(a_->connect(b_->ticket(), kSoon));
    toA_ = MUST(b_->accept(kSoon));
    near_ = MUST(a_->allocate(4096));
    far_ = MUST(b_->allocate(4096));
    remote_ = MUST(toB_.importRegion(far_.share()));
    ASSERT_OK(remote_.prepare(kSoon));
    const Block block = this->block();
    plan_ = MUST(Plan::create(toB_, Direction::kPut, {&block, 1}));
  }
  Block block() { return {&near_, 0, &remote_, 0, 4096}; }

  // Runs in a child; 0 for success, else the number of the first call that was wrong.
  using Checks = std::vector<std::function<bool()>>;
  void expectInChild(const Checks& checks) {
    runInChild(checks);
    // The parent goes on as if nothing had been.
    const Block block = this->block();
    EXPECT_OK(MUST(put(toB_, {&block, 1})).wait(kSoon));
    EXPECT_OK(MUST(plan_.post()).wait(kSoon));
  }
  void runInChild(const Checks& checks) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(30);  // a hang ends the child by a signal
      for (size_t i = 0; i < checks.size(); ++i)
        if (!checks[i]()) _exit(static_cast<int>(i + 1));
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0) << "the number of the check that failed";
  }
  void meet() {
    auto other = std::async(std::launch::async, [&] {
      return Communicator::create(*b_, {toA_, Peer()}, 1);
    });
    zero_ = MUST(Communicator::create(*a_, {Peer(), toB_}, 0));
    one_ = MUST(other.get());
  }
  static bool isRefused(const Status& status) { return status.code() == Code::kNotSupported; }

  std::unique_ptr<Context> a_;
  std::unique_ptr<Context> b_;
  Peer toB_;
  Peer toA_;
  Region near_;
  Region far_;
  RemoteRegion remote_;
  Plan plan_;
  std::unique_ptr<Communicator> zero_;
  std::unique_ptr<Communicator> one_;
};

INSTANTIATE_TEST_SUITE_P(Links, ForkTest, testing::Values("self", "shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(ForkTest, PostsAreRefused) {
  const Block block = this->block();
  Notify what;
  what.signal = 0;
  expectInChild({
      [&] {
        return isRefused(put(toB_, {&block, 1}).status());
      },
      [&] {
        return isRefused(get(toB_, {&block, 1}).status());
      },
      [&] { return isRefused(notify(toB_, what).status()); },
      [&] { return isRefused(addSignal(toB_, 0).status()); },
      [&] { return isRefused(flush(toB_, kSoon)); },
      [&] { return isRefused(plan_.post().status()); },
      [&] {
        return isRefused(Plan::create(toB_, Direction::kPut, {&block, 1}).status());
      },
      [&] { return isRefused(toB_.sendMessage(1, {})); },
      [&] { return isRefused(toB_.importRegion(far_.share()).status()); },
      [&] { return isRefused(toB_.status()); },
  });
}

TEST_P(ForkTest, WaitsAreRefused) {
  const Signal signal = MUST(Signal::create(toA_, 5));
  Notify what;
  what.message = std::span<const std::byte>();
  std::vector<Transfer> sent;
  for (int i = 0; i < 17; ++i) sent.push_back(MUST(notify(toB_, what)));
  const RemoteRegion fresh = MUST(toB_.importRegion(far_.share()));
  expectInChild({
      [&] { return isRefused(signal.wait(1, kSoon)); },
      [&] { return isRefused(signal.fd(1).status()); },
      [&] { return isRefused(waitNotification(toA_, kSoon).status()); },
      [&] { return isRefused(pollNotification(toA_).status()); },
      [&] { return isRefused(notificationFd(toA_).status()); },
      [&] { return isRefused(toA_.receiveMessage(1, kSoon).status()); },
      [&] { return isRefused(toA_.messageFd(1).status()); },
      [&] { return isRefused(sent.back().wait(kSoon)); },
      [&] { return sent.back().cancel(), true; },
      [&] { return isRefused(fresh.prepare(kSoon)); },
  });
}

TEST_P(ForkTest, CallsOnTheContextAreRefused) {
  std::vector<std::byte> heap(100);
  expectInChild({
      [&] { return isRefused(a_->connect(b_->ticket(), kSoon).status()); },
      [&] { return isRefused(a_->connect("127.0.0.1:1", std::string(64, '1'), kSoon).status()); },
      [&] { return isRefused(b_->accept(kSoon).status()); },
      [&] { return isRefused(b_->acceptFd().status()); },
      [&] {
        return isRefused(a_->registerRegion(heap.data(), heap.size(), Access::kLocal).status());
      },
      [&] { return isRefused(a_->allocate(4096).status()); },
      [&] { return isRefused(a_->unregister(near_, kSoon)); },
      [&] { return a_->dump().find("fork") != std::string::npos; },
      [&] { return a_->peers().empty(); },
      [&] { return a_->onPeer(nullptr), true; },
      [&] { return a_->metrics().find("# NotSupported") == 0; },
      [&] { return !a_->ticket().empty() && !a_->addresses().empty(); },
      [&] { return a_->id().size() == 32; },
      [&] { return !toB_.state().empty(); },
  });
}

TEST_P(ForkTest, HandlesMayGoInAnyOrder) {
  auto stream = MUST(HostStream::create());
  expectInChild({
      [&] { return stream.reset(), true; },
      [&] { return toB_.close(), true; },
      [&] { return plan_ = Plan(), true; },
      [&] { return remote_ = RemoteRegion(), true; },
      [&] { return toB_ = toA_ = Peer(), true; },
      [&] { return a_.reset(), b_.reset(), true; },
  });
}

TEST_P(ForkTest, CommunicatorsAreOfNoUse) {
  meet();
  std::vector<std::byte> bytes(64);
  const auto pending = MUST(zero_->recv(1, std::span(bytes)));
  auto group = zero_->group();
  group.recv(1, std::span(bytes));
  std::atomic<int> told{0};
  expectInChild({
      [&] { return isRefused(zero_->send(1, std::span<const std::byte>(bytes)).status()); },
      [&] { return isRefused(zero_->recv(1, std::span(bytes)).status()); },
      [&] { return isRefused(group.post().status()); },
      [&] {
        return isRefused(Communicator::create(*a_, {Peer(), toB_}, 0).status());
      },
      [&] { return isRefused(pending.wait(kSoon)) && isRefused(pending.status()); },
      [&] { return isRefused(pending.fd().status()); },
      [&] {
        pending.onEnd([&](const Status& status) { told += isRefused(status) ? 1 : 100; });
        return told == 1;
      },
      [&] { return !zero_->explain(1).empty() && zero_->peer(1) && zero_->size() == 2; },
      [&] { return zero_.reset(), one_.reset(), true; },
  });
  EXPECT_OK(MUST(one_->send(0, std::span<const std::byte>(bytes))).wait(kSoon));
  EXPECT_OK(pending.wait(kSoon));
  EXPECT_EQ(told.load(), 0) << "of the child's own memory";
}

// What the child cancels or drops stays posted in the parent: words of the peer are not touched.
TEST_P(ForkTest, MessagesOfTheParentAreNotTheChildsToCancel) {
  meet();
  auto stream = MUST(HostStream::create());
  MessageOptions behind;
  behind.stream = stream.get();
  std::vector<std::byte> in(64);
  std::vector<std::byte> out(64, std::byte{7});
  std::vector<std::byte> landed(64);
  const auto first = MUST(zero_->recv(1, std::span(in), behind));
  const auto held = MUST(zero_->send(1, std::span<const std::byte>(out), behind));
  const auto received = MUST(one_->recv(0, std::span(landed)));
  expectInChild({
      [&] { return held.cancel(), first.cancel(), received.cancel(), true; },
      [&] { return zero_.reset(), one_.reset(), true; },
  });
  EXPECT_OK(MUST(one_->send(0, std::span<const std::byte>(out))).wait(kSoon));
  EXPECT_OK(first.wait(kSoon));
  EXPECT_OK(held.wait(kSoon));
  EXPECT_OK(received.wait(kSoon));
  EXPECT_EQ(landed, out);
}

// A thread that is inside the library at the moment of the fork holds its locks in the child for
// ever.
TEST_P(ForkTest, LocksHeldAtTheForkHangNobody) {
  meet();
  std::vector<std::byte> bytes(64);
  const auto message = MUST(zero_->recv(1, std::span(bytes)));
  Notify what;
  what.message = std::span<const std::byte>();
  std::vector<Transfer> sent;
  for (uint32_t i = 0; i <= slab::kNotifySlots; ++i) sent.push_back(MUST(notify(toB_, what)));
  const RemoteRegion fresh = MUST(toB_.importRegion(far_.share()));
  // The condition of a sleeping thread is looked at by others, under the lock of all waiters.
  Progress& progress = toB_.core()->progress();
  std::atomic<bool> held{false};
  std::promise<void> mayGo;
  std::thread sleeper([&, released = mayGo.get_future().share()] {
    const std::thread::id self = std::this_thread::get_id();
    const auto ready = [&] {
      if (std::this_thread::get_id() == self) return held.load();
      held = true;
      released.wait();
      return true;
    };
    EXPECT_OK(progress.wait(ready, Progress::deadlineIn(kSoon)));
  });
  ASSERT_TRUE(soon([&] {
    progress.post([&] { progress.notifyWaiters(); });
    return held.load();
  }));
  runInChild({
      [&] { return message.cancel(), sent.back().cancel(), true; },
      [&] { return isRefused(fresh.prepare(kSoon)); },
      [&] { return isRefused(message.wait(kSoon)) && isRefused(sent.back().wait(kSoon)); },
      [&] { return toB_.close(), true; },
      [&] { return zero_.reset(), one_.reset(), true; },
      [&] { return a_.reset(), b_.reset(), true; },
  });
  mayGo.set_value();
  sleeper.join();
  EXPECT_FALSE(message.done());
  // The message has `bytes`.
  zero_.reset();
  one_.reset();
}

#if !defined(__SANITIZE_THREAD__)  // it allows no threads in a forked child
// A new context is all a child needs.
TEST_P(ForkTest, ANewContextWorksInTheChild) {
  const std::string ticket = b_->ticket();
  const std::string link = GetParam();
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    auto mine = Context::create({link == "self" ? Config() : withLinks({link}), {}, ""});
    if (!mine.isOk()) _exit(1);
    const auto peer = (*mine)->connect(ticket, kSoon);
    // In another process the parent's context is no "self" any more.
    if (peer.isOk() != (link != "self")) _exit(2);
    if (peer.isOk() && !peer->sendMessage(1, {}).isOk()) _exit(3);
    mine->reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}
#endif

}  // namespace
}  // namespace peerlane
