// SPDX-License-Identifier: Apache-2.0
//
// Triggered queues whose programs run on a stream of a GPU and move nothing by themselves, over a
// link that an agent serves and over a mapped one, between two contexts of one process.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <string>

#include "tests/gpu/trigger_fixture.h"
#include "tests/gpu/trigger_kernels.h"

namespace peerlane::gputest {
namespace {

using namespace std::chrono_literals;

using Stream = TriggerStreamOfTest;
constexpr Device kGpu = kTriggerGpu;
constexpr uint64_t kBytes = 64 * 1024;

class TriggerStreamTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    PEERLANE_NEEDS_GPUS(1);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    TriggerPair pair({GetParam()});
    a_ = std::move(pair.a);
    b_ = std::move(pair.b);
    toB_ = pair.toB;
    toA_ = pair.toA;
    near_ = std::make_unique<TestMemory>(*a_, kBytes, false, Access::kRemoteReadWrite, 1);
    far_ = std::make_unique<TestMemory>(*b_, kBytes, false, Access::kRemoteReadWrite, 2);
    remote_ = far_->importedBy(toB_);
    stream_ = std::make_unique<Stream>();
  }
  TriggeredQueue queue(TriggerEmitter emitter = TriggerEmitter::kDoorbell) {
    return MUST(TriggeredQueue::create(toB_, {.emitter = emitter, .device = kGpu}));
  }
  Status put(TriggeredQueue& queue, uint64_t from, uint64_t to, uint64_t bytes) {
    const Block block{&near_->region(), from, &remote_, to, bytes};
    return queue.put({&block, 1});
  }
  void expectPut(uint64_t from, uint64_t to, uint64_t bytes) {
    std::memcpy(far_->shadow() + to, near_->shadow() + from, bytes);
  }

  std::unique_ptr<Context> a_, b_;
  Peer toB_, toA_;
  std::unique_ptr<TestMemory> near_, far_;
  RemoteRegion remote_;
  std::unique_ptr<Stream> stream_;
};

INSTANTIATE_TEST_SUITE_P(Links, TriggerStreamTest, ::testing::Values("tcp", "self"),
                         [](const auto& link) { return std::string(link.param); });

TEST_P(TriggerStreamTest, LaunchesWhenTheStreamGetsThere) {
  TriggeredQueue queue = this->queue();
  const Signal arrived = MUST(Signal::create(toA_, 3));
  // Work before the commit holds it up.
  ASSERT_OK(queue.receive(0, 1));
  const TriggerProgram start = MUST(queue.commit());
  const TriggerProgram started = MUST(queue.peek(start.id.number));
  ASSERT_OK(put(queue, 0, 100, 5000));
  ASSERT_OK(queue.signal(3));
  const TriggerProgram send = MUST(queue.commit());
  const TriggerProgram sent = MUST(queue.peek(send.id.number));
  ASSERT_OK(queue.enqueueCommit(start.id, *stream_));
  ASSERT_OK(queue.enqueuePeek(started.id, *stream_));
  ASSERT_OK(queue.enqueueCommit(send.id, *stream_));
  ASSERT_OK(queue.enqueuePeek(sent.id, *stream_));
  EXPECT_TRUE(stream_->isBusy());
  EXPECT_EQ(arrived.value(), 0u);
  EXPECT_TRUE(far_->isAsExpected());
  EXPECT_EQ(queue.poll(send.id.number).code(), Code::kTryAgain);
  EXPECT_EQ(queue.rollback(send.id).code(), Code::kInvalidArgument);
  EXPECT_OK(MUST(addSignal(toA_, 0)).wait(kSoon));
  stream_->synchronize();
  EXPECT_TRUE(soon([&] { return queue.poll(send.id.number).isOk(); })) << queue.status().toString();
  ASSERT_OK(arrived.wait(1, kSoon));
  expectPut(0, 100, 5000);
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(TriggerStreamTest, ManyRoundsInOneGo) {
  TriggeredQueue queue = this->queue();
  const Signal arrived = MUST(Signal::create(toA_, 1));
  for (uint64_t batch = 0; batch < 10; ++batch) {
    for (uint64_t i = 0; i < 8; ++i) {
      ASSERT_OK(put(queue, i * 64, (batch * 8 + i) * 64, 60));
      expectPut(i * 64, (batch * 8 + i) * 64, 60);
      ASSERT_OK(queue.signal(1));
      const TriggerProgram commit = MUST(queue.commit());
      const TriggerProgram peek = MUST(queue.peek(commit.id.number));
      ASSERT_OK(queue.enqueueCommit(commit.id, *stream_));
      ASSERT_OK(queue.enqueuePeek(peek.id, *stream_));
    }
    stream_->synchronize();
    ASSERT_TRUE(soon([&] { return queue.poll(batch * 8 + 8).isOk(); }));
  }
  ASSERT_OK(arrived.wait(80, kSoon));
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(TriggerStreamTest, AFailureReleasesTheStream) {
  const Stream others;
  for (const bool byTimeout : {false, true}) {
    TriggeredQueue queue = this->queue();
    ASSERT_OK(put(queue, 0, 0, 64));
    ASSERT_OK(queue.receive(9, 1));
    const TriggerProgram commit = MUST(queue.commit());
    const TriggerProgram peek = MUST(queue.peek(commit.id.number));
    ASSERT_OK(queue.enqueueCommit(commit.id, *stream_));
    EXPECT_EQ(queue.enqueuePeek(peek.id, others).code(), Code::kInvalidArgument);
    ASSERT_OK(queue.enqueuePeek(peek.id, *stream_, byTimeout ? 20ms : kSoon));
    if (!byTimeout) queue.cancel();
    stream_->synchronize();
    EXPECT_EQ(queue.status().code(), byTimeout ? Code::kTimeout : Code::kCancelled);
    EXPECT_EQ(queue.poll(commit.id.number).code(), queue.status().code());
  }
}

TEST_P(TriggerStreamTest, APeerThatLeavesReleasesTheStream) {
  TriggeredQueue queue = this->queue();
  ASSERT_OK(queue.receive(9, 1));
  const TriggerProgram commit = MUST(queue.commit());
  const TriggerProgram peek = MUST(queue.peek(commit.id.number));
  ASSERT_OK(queue.enqueueCommit(commit.id, *stream_));
  ASSERT_OK(queue.enqueuePeek(peek.id, *stream_, kSoon));
  far_->abandon();
  toA_ = {};
  b_.reset();
  stream_->synchronize();
  EXPECT_NE(queue.status().code(), Code::kOk);
  far_.reset();
}

// Also while its programs are on the stream.
TEST_P(TriggerStreamTest, ClosesWhileTheStreamWaits) {
  {
    TriggeredQueue queue = this->queue();
    ASSERT_OK(queue.receive(9, 1));
    const TriggerProgram commit = MUST(queue.commit());
    const TriggerProgram peek = MUST(queue.peek(commit.id.number));
    ASSERT_OK(queue.enqueueCommit(commit.id, *stream_));
    ASSERT_OK(queue.enqueuePeek(peek.id, *stream_, kSoon));
  }
  stream_->synchronize();
}

TEST_P(TriggerStreamTest, ThreadsOfTheHostAndGraphsAreRefused) {
  TriggeredQueue queue = this->queue();
  ASSERT_OK(put(queue, 0, 0, 64));
  const TriggerProgram commit = MUST(queue.commit());
  EXPECT_EQ(queue.execute(commit.id).code(), Code::kInvalidArgument);
  EXPECT_EQ(queue.wait(commit.id.number, 0s).code(), Code::kInvalidArgument);
  ASSERT_EQ(cudaStreamBeginCapture(stream_->get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(queue.enqueueCommit(commit.id, *stream_).code(), Code::kNotSupported);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_->get(), &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  TriggeredQueue ofHost = MUST(TriggeredQueue::create(toB_));
  EXPECT_EQ(ofHost.enqueueCommit({1, 1}, *stream_).code(), Code::kInvalidArgument);
}

// Both sides are kernels, on one GPU: each waits for the other's bytes, changes them and sends them
// back, eight rounds without the host. The bytes are the host's, pinned.
TEST_P(TriggerStreamTest, TwoKernelsPlayWithoutTheHost) {
  constexpr uint32_t kRounds = 8;
  constexpr uint64_t kSize = 3000;
  struct Player {
    Player(const Peer& peer, bool isFirst, TriggerEmitter emitter)
        : queue(MUST(TriggeredQueue::create(peer, {.emitter = emitter, .device = kGpu}))),
          signal(emitter == TriggerEmitter::kMapped ? 1 : 0),
          isFirst_(isFirst) {
      EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&game), sizeof(TriggerGame), 0),
                cudaSuccess);
      *game = {};
      EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&game->bytes), kBytes, 0), cudaSuccess);
      for (uint64_t i = 0; i < kBytes; ++i) game->bytes[i] = static_cast<uint8_t>(i);
      game->size = kSize;
      game->count = kRounds;
    }
    ~Player() {
      EXPECT_EQ(cudaFreeHost(game->bytes), cudaSuccess);
      EXPECT_EQ(cudaFreeHost(game), cudaSuccess);
    }
    Player(const Player&) = delete;
    Player& operator=(const Player&) = delete;
    void prepare(const Region& own, const RemoteRegion& other) {
      for (uint32_t i = 0; i < kRounds; ++i) {
        ASSERT_OK(queue.receive(signal, isFirst_ ? i : i + 1));
        const TriggerProgram arrival = MUST(queue.commit());
        const Block block{&own, 0, &other, 0, kSize};
        ASSERT_OK(queue.put({&block, 1}));
        ASSERT_OK(queue.signal(signal));
        const TriggerProgram send = MUST(queue.commit());
        const TriggerProgram peek = MUST(queue.peek(arrival.id.number));
        const TriggerList wait = MUST(queue.resolve(peek, game->rounds[i].wait));
        game->rounds[i].waitOps = wait.ops;
        game->rounds[i].sendOps = MUST(queue.resolve(send, game->rounds[i].send)).ops;
        game->status = wait.status;
        ASSERT_OK(queue.enqueueCommit(arrival.id));
        ASSERT_OK(queue.enqueueCommit(send.id));
        ASSERT_OK(queue.enqueuePeek(peek.id));
      }
    }
    TriggeredQueue queue;
    const uint32_t signal;  // signals only grow
    TriggerGame* game = nullptr;

   private:
    const bool isFirst_;
  };
  for (const TriggerEmitter emitter : {TriggerEmitter::kDoorbell, TriggerEmitter::kMapped}) {
    if (emitter == TriggerEmitter::kMapped && std::string(GetParam()) == "tcp") continue;
    Player a(toB_, true, emitter), b(toA_, false, emitter);
    const Region near = MUST(a_->registerRegion(reinterpret_cast<std::byte*>(a.game->bytes), kBytes,
                                                Access::kRemoteReadWrite));
    const Region far = MUST(b_->registerRegion(reinterpret_cast<std::byte*>(b.game->bytes), kBytes,
                                               Access::kRemoteReadWrite));
    const RemoteRegion there = MUST(toB_.importRegion(far.share()));
    const RemoteRegion back = MUST(toA_.importRegion(near.share()));
    a.prepare(near, there);
    b.prepare(far, back);
    const Stream other;
    launchTriggerGame(a.game, stream_->get());
    launchTriggerGame(b.game, other.get());
    stream_->synchronize();
    other.synchronize();
    EXPECT_EQ(a.game->outcome, 0u) << a.queue.status().toString();
    EXPECT_EQ(b.game->outcome, 0u) << b.queue.status().toString();
    // The last message is b's.
    EXPECT_OK(MUST(Signal::create(toB_, a.signal)).wait(kRounds, kSoon));
    for (uint64_t i = 0; i < kSize; ++i)
      ASSERT_EQ(a.game->bytes[i], static_cast<uint8_t>(i + 2 * kRounds)) << i;
    for (const Player* player : {&a, &b})
      EXPECT_TRUE(soon([&] { return TriggeredQueue(player->queue).poll(2 * kRounds).isOk(); }));
    EXPECT_OK(a_->unregister(near, kSoon));
    EXPECT_OK(b_->unregister(far, kSoon));
  }
}

}  // namespace
}  // namespace peerlane::gputest
