// SPDX-License-Identifier: Apache-2.0
//
// Mapped triggered queues of a GPU: the stream itself copies, adds to signals of the peer by words
// that the queue is lent, and waits for signals that the server counts for it.
#include <cuda_runtime_api.h>

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/trigger_fixture.h"
#include "tests/gpu/trigger_kernels.h"

namespace peerlane::gputest {
namespace {

constexpr uint64_t kMappedBytes = 256 * 1024;
constexpr uint32_t kWordsOfDevices = 7;  // of a signal

// Memory of the GPU, of one of the contexts.
class GpuMemory {
 public:
  GpuMemory(Context& context, Access access) : context_(context) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), kMappedBytes), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0, kMappedBytes), cudaSuccess);
    region_ = MUST(context.registerRegion(data_, kMappedBytes, access));
  }
  ~GpuMemory() {
    EXPECT_OK(context_.unregister(region_, kSoon));
    EXPECT_EQ(cudaFree(data_), cudaSuccess);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  std::byte* data() const { return data_; }
  Region& region() { return region_; }
  std::vector<uint8_t> bytes(uint64_t count) const {
    std::vector<uint8_t> copy(count);
    EXPECT_EQ(cudaMemcpy(copy.data(), data_, count, cudaMemcpyDefault), cudaSuccess);
    return copy;
  }

 private:
  Context& context_;
  std::byte* data_ = nullptr;
  Region region_;
};

class TriggerMappedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PEERLANE_NEEDS_GPUS(1);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    pair_ = std::make_unique<TriggerPair>(std::vector<std::string>{"self", "cuda_ipc"});
    near_ = std::make_unique<GpuMemory>(*pair_->a, Access::kRemoteReadWrite);
    far_ = std::make_unique<GpuMemory>(*pair_->b, Access::kRemoteReadWrite);
    remote_ = MUST(pair_->toB.importRegion(far_->region().share()));
    back_ = MUST(pair_->toA.importRegion(near_->region().share()));
    stream_ = std::make_unique<TriggerStreamOfTest>();
  }
  TriggeredQueue queue() {
    return MUST(TriggeredQueue::create(
        pair_->toB, {.emitter = TriggerEmitter::kMapped, .device = kTriggerGpu}));
  }
  Signal signalOfB(uint32_t number) { return MUST(Signal::create(pair_->toA, number)); }
  Status put(TriggeredQueue& queue, uint64_t from, uint64_t to, uint64_t bytes) {
    const Block block{&near_->region(), from, &remote_, to, bytes};
    return queue.put({&block, 1});
  }
  // Launches what was posted.
  void launch(TriggeredQueue& queue, const TriggerStreamOfTest& stream) {
    const TriggerProgram commit = MUST(queue.commit());
    ASSERT_OK(queue.enqueueCommit(commit.id, stream));
  }

  std::unique_ptr<TriggerPair> pair_;
  std::unique_ptr<GpuMemory> near_, far_;
  RemoteRegion remote_, back_;
  std::unique_ptr<TriggerStreamOfTest> stream_;
};

// Who has read the signal reads the bytes of that commit, of every block.
TEST_F(TriggerMappedTest, ASignalFollowsItsBytes) {
  TriggeredQueue queue = MUST(TriggeredQueue::create(pair_->toB, {.device = kTriggerGpu}));
  const Signal arrived = signalOfB(3);
  const uint64_t othersBefore = otherWorkOfStreams();
  uint64_t others = 0;
  for (int round = 1; round <= 20; ++round) {
    const Block blocks[] = {{&near_->region(), 0, &remote_, 4096, 100000},
                            {&near_->region(), 128 * 1024, &remote_, 0, 64}};
    ASSERT_OK(queue.put(blocks));
    ASSERT_OK(queue.signal(3));
    const TriggerProgram commit = MUST(queue.commit());
    ASSERT_EQ(queue.emitter(), "mapped");
    const TriggerProgram peek = MUST(queue.peek(commit.id.number));
    ASSERT_EQ(cudaMemsetAsync(near_->data(), round, kMappedBytes, stream_->get()), cudaSuccess);
    ++others;
    ASSERT_OK(queue.enqueueCommit(commit.id, *stream_));
    ASSERT_OK(queue.enqueuePeek(peek.id, *stream_));
    ASSERT_OK(arrived.wait(static_cast<uint64_t>(round), kSoon));
    const std::vector<uint8_t> seen = far_->bytes(104096);
    for (size_t i = 0; i < seen.size(); ++i) {
      const bool isPut = i < 64 || i >= 4096;
      ASSERT_EQ(seen[i], isPut ? round : 0) << "wrong bytes at " << i;
    }
    ASSERT_TRUE(soon([&] { return queue.poll(commit.id.number).isOk(); }));
  }
  EXPECT_EQ(arrived.value(), 20u);
  // This test's own are fills.
  const uint64_t othersAfter = otherWorkOfStreams();
  EXPECT_EQ(othersAfter - othersBefore, othersAfter == 0 ? 0 : others);
}

// Posts, what is taken back, and others that add to the same signals, against sums.
// A commit whose program cannot be made keeps what was posted: the next one fails as well, and does
// not pass for a commit of nothing.
TEST_F(TriggerMappedTest, ACommitThatFailsConsumesNothing) {
  // As a GPU behind PCIe, which does not add to words of the host.
  setenv("SOFTWARE_GPU_NO_HOST_ATOMICS", "1", 1);
  TriggerPair pair({"self", "cuda_ipc"});
  unsetenv("SOFTWARE_GPU_NO_HOST_ATOMICS");
  const Region words = MUST(pair.b->allocate(4096));
  const Region from = MUST(pair.a->allocate(4096));
  const RemoteRegion remoteWords = MUST(pair.toB.importRegion(words.share()));
  TriggeredQueue queue = MUST(TriggeredQueue::create(
      pair.toB, {.emitter = TriggerEmitter::kMapped, .device = kTriggerGpu}));
  const Block block{&from, 0, &remoteWords, 64, 64};
  ASSERT_OK(queue.put({&block, 1}));
  ASSERT_OK(queue.add(remoteWords, 0, 5));
  const uint32_t ops = queue.commitOps();
  for (int i = 0; i < 2; ++i) {
    const auto refused = queue.commit();
    ASSERT_EQ(refused.status().code(), Code::kNotSupported);
    EXPECT_EQ(queue.commitOps(), ops);
  }
  queue.discard();
}

TEST_F(TriggerMappedTest, WhatIsTakenBackAddsNothing) {
  constexpr uint32_t kSignals = 3;
  struct Made {
    TriggerId id;
    std::array<uint64_t, kSignals> adds{};
  };
  for (const uint64_t seed : {1, 2, 3, 4}) {
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t below) { return random() % below; };
    TriggeredQueue queue = this->queue();
    std::array<uint64_t, kSignals> before{}, sums{};
    for (uint32_t i = 0; i < kSignals; ++i) before[i] = signalOfB(i).value();
    Made batch;
    std::deque<Made> made;  // and not enqueued
    const auto enqueue = [&] {
      ASSERT_OK(queue.enqueueCommit(made.front().id, *stream_));
      for (uint32_t i = 0; i < kSignals; ++i) sums[i] += made.front().adds[i];
      made.pop_front();
    };
    bool isPosted = false;
    for (int step = 0; step < 400; ++step) {
      const auto number = static_cast<uint32_t>(pick(kSignals));
      const uint64_t add = pick(1000);
      switch (pick(9)) {
        case 0:
        case 1:
        case 2:
          ASSERT_OK(queue.signal(number, add));
          batch.adds[number] += add;
          isPosted = true;
          break;
        case 3:
          ASSERT_OK(put(queue, pick(1000), pick(1000), pick(5000) + 1));
          isPosted = true;
          break;
        case 4:
          queue.discard();
          batch = {};
          isPosted = false;
          break;
        case 5: {
          if (!isPosted) break;
          const auto commit = queue.commit();
          if (commit.status().code() == Code::kTryAgain) break;
          batch.id = MUST(commit).id;
          made.push_back(std::exchange(batch, {}));
          isPosted = false;
          break;
        }
        case 6:
          if (isPosted || made.empty() || pick(2) == 0) break;
          ASSERT_OK(queue.rollback(made.back().id));
          made.pop_back();
          break;
        case 7:
          if (!made.empty()) enqueue();
          break;
        case 8: {  // others: a thread of the host, and a post on a stream
          const bool byHost = pick(2) == 0;
          const Block block{&near_->region(), 0, &remote_, 0, 64};
          PostOptions options;
          options.notify.signal = number;
          options.notify.signalAdd = add;
          options.deviceStream = *stream_;
          ASSERT_OK(byHost ? MUST(addSignal(pair_->toB, number, add)).wait(kSoon)
                           : peerlane::put(pair_->toB, {&block, 1}, options).status());
          sums[number] += add;
          break;
        }
      }
    }
    while (!made.empty()) enqueue();
    queue.discard();
    stream_->synchronize();
    for (uint32_t i = 0; i < kSignals; ++i) {
      const Signal signal = signalOfB(i);
      EXPECT_TRUE(soon([&] { return signal.value() - before[i] >= sums[i]; }));
      EXPECT_EQ(signal.value() - before[i], sums[i]) << "seed " << seed << ", signal " << i;
    }
  }
}

// A queue has its word until its end. Then it is lent on, and the sum stays what it was.
TEST_F(TriggerMappedTest, EachQueueHoldsAWordOfTheSignal) {
  const Signal arrived = signalOfB(5);
  ASSERT_OK(remote_.prepare(kSoon));  // else the host would add for a post
  std::deque<TriggeredQueue> queues;
  std::deque<TriggerStreamOfTest> streams;
  uint64_t sum = 0;
  const auto add = [&](TriggeredQueue& to, const TriggerStreamOfTest& on, uint64_t value) {
    ASSERT_OK(to.signal(5, value));
    launch(to, on);
    sum += value;
    ASSERT_OK(arrived.wait(sum, kSoon));
  };
  for (uint32_t i = 0; i < kWordsOfDevices; ++i) {
    queues.push_back(queue());
    streams.emplace_back();
    add(queues.back(), streams.back(), 10 + i);
  }
  TriggeredQueue last = queue();
  const Status full = last.signal(5);
  EXPECT_EQ(full.code(), Code::kUnavailable) << full.toString();
  EXPECT_NE(full.toString().find("all 7 words"), std::string::npos) << full.toString();
  // Nothing was posted.
  EXPECT_EQ(MUST(last.commit()).id.making, 0u);
  // A post on a stream has no word either; another signal, and the other queues, have theirs.
  const Block block{&near_->region(), 0, &remote_, 0, 64};
  PostOptions options;
  options.notify.signal = 5;
  options.deviceStream = *stream_;
  EXPECT_EQ(peerlane::put(pair_->toB, {&block, 1}, options).status().code(), Code::kUnavailable);
  ASSERT_OK(last.signal(6));
  last.discard();
  add(queues[3], streams[3], 1000);
  queues.pop_front();
  EXPECT_TRUE(soon([&] { return last.signal(5, 100000).isOk(); }));
  launch(last, *stream_);
  sum += 100000;
  ASSERT_OK(arrived.wait(sum, kSoon));
  EXPECT_EQ(arrived.value(), sum);
  // The first word of all is held by `last`; after all are gone a post has one again.
  queues.clear();
  last = {};
  EXPECT_TRUE(soon([&] {
    const auto posted = peerlane::put(pair_->toB, {&block, 1}, options);
    return posted.isOk() && MUST(posted).wait(kSoon).isOk();
  }));
  ASSERT_OK(arrived.wait(sum + 1, kSoon));
  EXPECT_EQ(arrived.value(), sum + 1);
}

// Two streams, each of a mapped queue, send to and fro, all rounds enqueued ahead.
TEST_F(TriggerMappedTest, StreamsReceiveAndAnswer) {
  PEERLANE_NEEDS_TWO_QUEUES();
  constexpr uint32_t kRounds = 6;
  constexpr uint64_t kSize = 30000;
  const TriggerStreamOfTest other;
  TriggeredQueue a = queue();
  TriggeredQueue b = MUST(TriggeredQueue::create(pair_->toA, {.device = kTriggerGpu}));
  const uint64_t othersBefore = otherWorkOfStreams();
  uint64_t last = 0;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    // a sends what b's stream puts back into another place of a, from where a's next round sends.
    const Block there{&near_->region(), (round - 1) * kSize, &remote_, 0, kSize};
    ASSERT_OK(a.put({&there, 1}));
    ASSERT_OK(a.signal(1));
    ASSERT_OK(a.receive(2, round));
    const TriggerProgram send = MUST(a.commit());
    last = send.id.number;
    const TriggerProgram answered = MUST(a.peek(last));
    ASSERT_OK(a.enqueueCommit(send.id, *stream_));
    ASSERT_OK(a.enqueuePeek(answered.id, *stream_));
    ASSERT_OK(b.receive(1, round));
    const TriggerProgram arrival = MUST(b.commit());
    const TriggerProgram arrived = MUST(b.peek(arrival.id.number));
    const Block home{&far_->region(), 0, &back_, round * kSize, kSize};
    ASSERT_OK(b.put({&home, 1}));
    ASSERT_OK(b.signal(2));
    const TriggerProgram answer = MUST(b.commit());
    EXPECT_EQ(b.emitter(), "mapped");
    ASSERT_OK(b.enqueueCommit(arrival.id, other));
    ASSERT_OK(b.enqueuePeek(arrived.id, other));
    // The GPU adds its mark between arrival and answer.
    ASSERT_EQ(cudaMemsetAsync(far_->data() + round, static_cast<int>(round), 1, other.get()),
              cudaSuccess);
    ASSERT_OK(b.enqueueCommit(answer.id, other));
  }
  stream_->synchronize();
  other.synchronize();
  ASSERT_OK(a.status());
  ASSERT_TRUE(soon([&] { return a.poll(last).isOk() && b.poll(2 * kRounds).isOk(); }));
  const std::vector<uint8_t> seen = near_->bytes((kRounds + 1) * kSize);
  for (uint64_t i = 0; i < seen.size(); ++i) {
    const uint64_t round = i / kSize, at = i % kSize;
    const bool isMarked = at >= 1 && at <= round;
    ASSERT_EQ(seen[i], isMarked ? at : 0) << "wrong bytes at " << i;
  }
  const uint64_t othersAfter = otherWorkOfStreams();
  EXPECT_EQ(othersAfter - othersBefore, othersAfter == 0 ? 0 : kRounds);  // the fills of this test
}

// Released, and the words of its signals are free again, though its programs were on the stream.
TEST_F(TriggerMappedTest, AClosedQueueReleasesTheStreamAndGivesItsWordsBack) {
  const Signal arrived = signalOfB(4);
  for (uint32_t i = 0; i < 3 * kWordsOfDevices; ++i) {
    TriggeredQueue queue = this->queue();
    TriggeredQueue* const one = &queue;
    ASSERT_TRUE(soon([one] { return one->signal(4).isOk(); }));
    ASSERT_OK(queue.receive(9, 1));  // nobody adds to it
    const TriggerProgram commit = MUST(queue.commit());
    const TriggerProgram peek = MUST(queue.peek(commit.id.number));
    ASSERT_OK(queue.enqueueCommit(commit.id, *stream_));
    ASSERT_OK(queue.enqueuePeek(peek.id, *stream_, kSoon));
    EXPECT_TRUE(stream_->isBusy());
    queue = {};
    stream_->synchronize();
    ASSERT_OK(arrived.wait(i + 1, kSoon));
  }
}

}  // namespace
}  // namespace peerlane::gputest
