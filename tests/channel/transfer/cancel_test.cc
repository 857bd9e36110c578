// SPDX-License-Identifier: Apache-2.0
//
// cancel() of what an agent carries: it stops long before the last byte, both sides are free
// afterwards, and the connection goes on.
#include <atomic>
#include <future>
#include <thread>

#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/context_pair.h"
#include "tests/progress/standing_callback.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

// Not instrumented, as firstDifference().
__attribute__((noinline, no_sanitize("thread"))) void setAll(std::vector<std::byte>& bytes,
                                                             std::byte value) {
  volatile std::byte* const at = bytes.data();
  for (size_t i = 0; i < bytes.size(); ++i) at[i] = value;
}

class CancelTest : public RouteTest {
 protected:
  // Far more than any wire holds: half of it says that the transfer was stopped.
#if defined(__SANITIZE_THREAD__)  // it looks at each word that is copied
  static constexpr size_t kBytes = size_t{16} << 20;
#else
  static constexpr size_t kBytes = size_t{64} << 20;
#endif
  static constexpr std::byte kOld{0x11};

  CancelTest() : near_(kBytes, kOld), far_(kBytes, kOld) {
    local_ = MUST(pair_.a->registerRegion(near_.data(), kBytes, Access::kLocal));
    owned_ = MUST(pair_.b->registerRegion(far_.data(), kBytes, Access::kRemoteReadWrite));
    remote_ = MUST(pair_.toB.importRegion(owned_.share()));
    EXPECT_OK(remote_.prepare(kSoon));
    // The wire is there.
    for (const Direction direction : {Direction::kPut, Direction::kGet})
      EXPECT_OK(MUST(post(direction, blocks(1, 8))).wait(kSoon));
  }
  ~CancelTest() override {
    takeBack();
  }
  // Nothing of either side is in use any more.
  void takeBack() {
    if (local_) {
      EXPECT_OK(pair_.a->unregister(std::exchange(local_, {}), kSoon));
    }
    if (owned_) {
      EXPECT_OK(pair_.b->unregister(std::exchange(owned_, {}), kSoon));
    }
  }
  std::vector<Block> blocks(size_t count, uint64_t bytes) const {
    std::vector<Block> list;
    for (size_t i = 0; i < count; ++i)
      list.push_back({&local_, i * bytes, &remote_, i * bytes, bytes});
    return list;
  }
  Result<Transfer> post(Direction direction, const std::vector<Block>& list,
                        const PostOptions& options = {}) const {
    return direction == Direction::kPut ? put(pair_.toB, list, options)
                                        : get(pair_.toB, list, options);
  }
  void fill(Direction direction, std::byte fresh) {
    setAll(direction == Direction::kPut ? near_ : far_, fresh);
  }
  std::vector<std::byte>& destination(Direction direction) {
    return direction == Direction::kPut ? far_ : near_;
  }
  // What was posted while the other side stood still, and cancelled.
  void expectStopped(const Transfer& transfer, Direction direction, std::byte fresh) {
    const Status ended = transfer.wait(kSoon);
    EXPECT_EQ(ended.code(), Code::kCancelled) << ended.toString();
    EXPECT_NE(ended.message().find("bytes are undefined"), std::string_view::npos)
        << ended.toString();
    EXPECT_LT(countOf(destination(direction).data(), kBytes, fresh), kBytes / 2);
  }
  void expectMoved(const Status& ended, Direction direction, std::byte fresh) {
    EXPECT_OK(ended);
    EXPECT_EQ(countOf(destination(direction).data(), kBytes, fresh), kBytes);
  }

  std::vector<std::byte> near_;
  std::vector<std::byte> far_;
  Region local_;
  Region owned_;
  RemoteRegion remote_;
};

INSTANTIATE_TEST_SUITE_P(Routes, CancelTest, testing::Values(kRing, kTcp), routeName);

TEST_P(CancelTest, StopsOneBlockAndLists) {
  std::byte fresh{0x20};
  for (const Direction direction : {Direction::kPut, Direction::kGet})
    for (const size_t count : {1, 2048}) {
      SCOPED_TRACE(std::string(direction == Direction::kPut ? "put" : "get") + " of " +
                   std::to_string(count) + " blocks");
      fresh = static_cast<std::byte>(static_cast<int>(fresh) + 1);
      fill(direction, fresh);
      const std::vector<Block> list = blocks(count, kBytes / count);
      StandingCallback other(pair_.toA.core()->progress());
      const Transfer transfer = MUST(post(direction, list));
      EXPECT_FALSE(transfer.done());
      transfer.cancel();
      other.goOn();
      expectStopped(transfer, direction, fresh);
      expectMoved(MUST(post(direction, list)).wait(kSoon), direction, fresh);
    }
  takeBack();
}

TEST_P(CancelTest, StopsPostsOfAPlan) {
  for (const Direction direction : {Direction::kPut, Direction::kGet}) {
    const std::byte fresh{direction == Direction::kPut ? uint8_t{0x31} : uint8_t{0x32}};
    fill(direction, fresh);
    Plan plan = MUST(Plan::create(pair_.toB, direction, blocks(2048, kBytes / 2048)));
    StandingCallback other(pair_.toA.core()->progress());
    const Transfer transfer = MUST(plan.post());
    EXPECT_FALSE(transfer.done());
    transfer.cancel();
    other.goOn();
    expectStopped(transfer, direction, fresh);
    // A late cancel of that post is none of the next one.
    const Transfer next = MUST(plan.post());
    transfer.cancel();
    expectMoved(next.wait(kSoon), direction, fresh);
  }
  takeBack();
}

TEST_P(CancelTest, TellsThePeerNothing) {
  const Signal signal = MUST(Signal::create(pair_.toA, 3));
  const uint8_t text[] = {1, 2, 3};
  PostOptions options;
  options.notify = {.message = std::as_bytes(std::span(text)), .tag = 1, .signal = 3u};
  {
    StandingCallback other(pair_.toA.core()->progress());
    const Transfer transfer = MUST(post(Direction::kPut, blocks(1, kBytes), options));
    transfer.cancel();
    other.goOn();
    EXPECT_EQ(transfer.wait(kSoon).code(), Code::kCancelled);
  }
  options.notify.tag = 2;
  EXPECT_OK(MUST(post(Direction::kPut, blocks(1, 8), options)).wait(kSoon));
  EXPECT_EQ(MUST(waitNotification(pair_.toA, kSoon)).tag, 2u);
  EXPECT_EQ(signal.value(), 1u);
}

TEST_P(CancelTest, MayComeTwiceOrTooLate) {
  const Transfer early = MUST(post(Direction::kPut, blocks(1, 8)));
  EXPECT_OK(early.wait(kSoon));
  early.cancel();
  EXPECT_OK(early.status());

  std::atomic<int> ends{0};
  StandingCallback other(pair_.toA.core()->progress());
  const Transfer transfer = MUST(post(Direction::kPut, blocks(1, kBytes)));
  transfer.onEnd([&](const Status& status) {
    EXPECT_EQ(status.code(), Code::kCancelled);
    ++ends;
  });
  for (int i = 0; i < 3; ++i) transfer.cancel();
  other.goOn();
  EXPECT_EQ(transfer.wait(kSoon).code(), Code::kCancelled);
  transfer.cancel();
  EXPECT_EQ(transfer.status().code(), Code::kCancelled);
  // Callbacks run in their order: this one's is behind that one's.
  std::promise<void> behind;
  pair_.toB.core()->progress().post([&] { behind.set_value(); });
  behind.get_future().wait();
  EXPECT_EQ(ends.load(), 1);
}

TEST_P(CancelTest, MayBeCalledInACallback) {
  StandingCallback other(pair_.toA.core()->progress());
  const Transfer first = MUST(post(Direction::kPut, blocks(1, 64)));
  const Transfer second = MUST(post(Direction::kPut, blocks(1, kBytes)));
  auto ended = std::make_shared<std::promise<Status>>();
  second.onEnd([ended](const Status& status) { ended->set_value(status); });
  first.onEnd([first, second](const Status&) {
    first.cancel();
    second.cancel();
  });
  other.goOn();
  EXPECT_EQ(ended->get_future().get().code(), Code::kCancelled);
  EXPECT_OK(first.wait(kSoon));
}

TEST_P(CancelTest, SetsMemoryFreeThatIsBeingUnregistered) {
  for (const bool own : {true, false}) {
    StandingCallback other(pair_.toA.core()->progress());
    const Transfer transfer = MUST(post(Direction::kPut, blocks(1, kBytes)));
    if (own) {
      EXPECT_EQ(pair_.a->unregister(local_, 10ms).code(), Code::kTimeout);
    }
    transfer.cancel();
    other.goOn();
    if (!own) {
      EXPECT_OK(pair_.b->unregister(std::exchange(owned_, {}), kSoon));
    }
    EXPECT_EQ(transfer.wait(kSoon).code(), Code::kCancelled);
    if (own) {
      EXPECT_OK(pair_.a->unregister(std::exchange(local_, {}), kSoon));
      local_ = MUST(pair_.a->registerRegion(near_.data(), kBytes, Access::kLocal));
    }
  }
}

TEST_P(CancelTest, EndsWithTheConnection) {
  StandingCallback other(pair_.toA.core()->progress());
  const Transfer transfer = MUST(post(Direction::kPut, blocks(1, kBytes)));
  transfer.cancel();
  pair_.toB.close();
  other.goOn();
  EXPECT_EQ(transfer.wait(kSoon).code(), Code::kCancelled);
}

// Threads that post and cancel on one connection, at all moments; what was not cancelled is right.
TEST_P(CancelTest, FromManyThreadsAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 30;
  constexpr size_t kShare = 2 << 20;
  for (size_t i = 0; i < kThreads * kShare; ++i)
    near_[i] = static_cast<std::byte>(i * 7 + i / 4096);
  std::atomic<int> cancelled{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      const uint64_t begin = static_cast<uint64_t>(thread) * kShare;
      std::vector<Block> list;
      for (uint64_t at = begin; at < begin + kShare; at += kShare / 64)
        list.push_back({&local_, at, &remote_, at, kShare / 64});
      for (int round = 0; round < kRounds; ++round) {
        const Transfer there = MUST(post(Direction::kPut, list));
        std::thread canceller([&] { there.cancel(); });
        const Status first = there.wait(kSoon);
        canceller.join();
        cancelled += first.code() == Code::kCancelled;
        ASSERT_TRUE(first.isOk() || first.code() == Code::kCancelled) << first.toString();
        ASSERT_OK(MUST(post(Direction::kPut, list)).wait(kSoon));
        const Transfer back = MUST(post(Direction::kGet, list));
        if (round % 2 == 0) back.cancel();
        const Status second = back.wait(kSoon);
        cancelled += second.code() == Code::kCancelled;
        ASSERT_TRUE(second.isOk() || second.code() == Code::kCancelled) << second.toString();
        ASSERT_EQ(firstDifference(far_.data() + begin, near_.data() + begin, kShare), kShare);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(cancelled.load(), 0);
  takeBack();
}

}  // namespace
}  // namespace peerlane
