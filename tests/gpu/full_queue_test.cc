// SPDX-License-Identifier: Apache-2.0
//
// More posts than the queue in front of a GPU holds, behind waits that nobody satisfies, with many
// hardware queues and with one: whatever ends the waits (time, a cancel, the peer's death) ends
// them all, everything else is done in its order, and the streams can be used afterwards. Threads
// that post stop while a queue is full; what ends the waits does not.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <span>
#include <thread>

#include "peerlane/memory/cuda/legacy_probe.h"
#include "peerlane/os/cuda_driver.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kRounds = 1500;  // three to five pieces of work each: the queue holds 1024
constexpr size_t kEach = 64;
constexpr size_t kStreamBytes = 4096 + kRounds * kEach;
constexpr size_t kStreams = 4;
constexpr size_t kBytes = kStreams * kStreamBytes;
constexpr uint32_t kNever = 4, kSoon = 5;  // signals

class FullQueue : public ::testing::TestWithParam<const char*> {
 protected:
  // For the GPU's first use in this process.
  static void chooseQueues() {
    if (std::string(GetParam()) == "OneQueue") setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
  }
  // The side that posts: what it puts to is imported, and there are signals to wait for.
  struct Ready {
    explicit Ready(const Line& line)
        : side((chooseQueues(), 0), line, kBytes),
          never(must(Signal::create(side.peer, kNever), "signal")),
          soon(must(Signal::create(side.peer, kSoon), "signal")) {
      must(side.remote.prepare(kPatience), "prepare");
    }
    const Side side;
    const Signal never, soon;
  };
};

INSTANTIATE_TEST_SUITE_P(Queues, FullQueue, ::testing::Values("ManyQueues", "OneQueue"),
                         [](const auto& tested) { return std::string(tested.param); });

// Makes no turns: what is waited for is other threads' affair.
template <typename Is>
void waitUntil(const Is& is) {
  for (const auto end = Clock::now() + kPatience; !is();) {
    if (Clock::now() > end) die("what was to come", Status(Code::kTimeout, "it has not come"));
    std::this_thread::sleep_for(1ms);
  }
}

// Posts to one stream in a thread of its own: fresh bytes and a put of them to a place of their
// own, over and over.
class Poster {
 public:
  // `wait` is posted first, by the caller, and after start() again after every `every` of them.
  Poster(const Side& side, size_t index, size_t every,
         std::function<Result<Transfer>(DeviceStream)> wait)
      : side_(side),
        index_(index),
        every_(every),
        wait_(std::move(wait)),
        stream_(index == 0 ? side.stream : makeStream()) {
    keep(wait_(side_.deviceStream(stream_)), waits_);
  }
  void start() {
    thread_ = std::thread([this] {
      mustCuda(cudaSetDevice(side_.device.index), "cudaSetDevice");
      // So that they do not all stop in the same call.
      for (size_t i = 0; i < index_; ++i) touch(0);
      for (size_t i = 0; i < kRounds && !isLost_; ++i) {
        if (i != 0 && i % every_ == 0) keep(wait_(side_.deviceStream(stream_)), waits_);
        postOne(i);
        made_.store(i + 1, std::memory_order_release);
      }
    });
  }
  ~Poster() { thread_.join(); }
  Poster(const Poster&) = delete;
  Poster& operator=(const Poster&) = delete;

  cudaStream_t stream() const { return stream_; }
  void join() {
    const auto end = Clock::now() + kPatience;
    while (made_.load(std::memory_order_acquire) < kRounds && !isLost_ && Clock::now() < end)
      std::this_thread::sleep_for(1ms);
    if (made_ < kRounds && !isLost_)
      die("a full queue", Status(Code::kTimeout, "nobody empties it"));
  }
  bool isStopped() const { return stopsShort(made_, kRounds); }
  // With the lock: the poster may be at it.
  template <class Look>
  void eachWait(const Look& look) {
    const std::lock_guard lock(mutex_);
    for (const Transfer& wait : waits_) look(wait);
  }
  const std::vector<Transfer>& waits() const { return waits_; }  // after join()
  const std::vector<Transfer>& puts() const { return puts_; }

  // What the other side finds: every value where it belongs.
  static uint64_t wrongPlaces(const Region& region, size_t index) {
    std::vector<unsigned char> seen(kStreamBytes);
    mustCuda(cudaMemcpy(seen.data(), region.data() + index * kStreamBytes, kStreamBytes,
                        cudaMemcpyDefault),
             "copy");
    uint64_t wrong = 0;
    for (size_t i = 0; i < kRounds * kEach; ++i) wrong += seen[4096 + i] != i / kEach % 251;
    return wrong;
  }

 private:
  void touch(size_t i) const {
    mustCuda(cudaMemsetAsync(side_.region.data() + index_ * kStreamBytes, static_cast<int>(i % 251),
                             kEach, stream_),
             "memset");
  }
  void postOne(size_t i) {
    const size_t source = index_ * kStreamBytes;
    touch(i);
    const Block block{&side_.region, source, &side_.remote, source + 4096 + i * kEach, kEach};
    static constexpr Engine kEngines[] = {Engine::kAuto, Engine::kCe, Engine::kSm};
    keep(put(side_.peer, {&block, 1},
             {.notify = {.signal = 1},
              .deviceStream = side_.deviceStream(stream_),
              .engine = kEngines[i % 3]}),
         puts_);
  }
  void keep(Result<Transfer> posted, std::vector<Transfer>& where) {
    if (!posted.isOk()) {
      EXPECT_EQ(posted.status().code(), Code::kPeerLost) << posted.status().toString();
      isLost_ = true;
      return;
    }
    const std::lock_guard lock(mutex_);
    where.push_back(std::move(*posted));
  }

  const Side& side_;
  const size_t index_, every_;
  const std::function<Result<Transfer>(DeviceStream)> wait_;
  const cudaStream_t stream_;
  std::atomic<size_t> made_{0};
  std::atomic<bool> isLost_{false};
  std::mutex mutex_;
  std::vector<Transfer> waits_, puts_;  // under mutex_
  std::thread thread_;
};

// A queue that others have filled, behind a wait that was posted to `stream` before: by a thread
// that has stopped for it.
class OthersWork {
 public:
  OthersWork(const Device& device, cudaStream_t stream) {
    mustCuda(cudaMalloc(&scratch_, 16), "cudaMalloc");
    thread_ = std::thread([this, device, stream] {
      mustCuda(cudaSetDevice(device.index), "cudaSetDevice");
      for (; made_ < kPieces; ++made_) mustCuda(cudaMemsetAsync(scratch_, 0, 16, stream), "memset");
    });
    EXPECT_TRUE(stopsShort(made_, kPieces));
  }
  ~OthersWork() { thread_.join(); }
  OthersWork(const OthersWork&) = delete;
  OthersWork& operator=(const OthersWork&) = delete;

 private:
  static constexpr size_t kPieces = 3000;
  void* scratch_ = nullptr;
  std::atomic<size_t> made_{0};
  std::thread thread_;
};

// The other side: it holds still until it is asked to look.
void answer(const Line& line, Memory memory) {
  const Side side(1, line, kBytes, memory);
  for (;;) {
    const std::string said = line.receive();
    if (said == "region") {
      const Region fresh =
          must(side.context->allocate(1 << 20, {.device = side.device}), "allocate");
      const auto mine = fresh.share();
      line.send(std::string(reinterpret_cast<const char*>(mine.data()), mine.size()));
    } else if (said == "pid") {
      line.send(std::to_string(getpid()));
    } else if (said == "signal") {
      must(addSignal(side.peer, kSoon), "addSignal");
    } else if (said == "look") {
      uint64_t wrong = 0;
      for (size_t i = 0; i < kStreams; ++i) wrong += Poster::wrongPlaces(side.region, i);
      line.send(std::to_string(wrong));
    } else {
      return;
    }
  }
}

void lookAtPlaces(const Line& line) {
  answer(line, Memory::kVmm);
}

// One that is not imported here.
RemoteRegion freshRegion(const Peer& peer, const Line& line) {
  line.send("region");
  const std::string named = line.receive();
  return must(peer.importRegion(std::as_bytes(std::span(named))), "importRegion");
}

using Posters = std::vector<std::unique_ptr<Poster>>;

Posters postersOn(const Side& side, size_t every,
                  const std::function<Result<Transfer>(DeviceStream)>& wait) {
  Posters posters;
  for (size_t i = 0; i < kStreams; ++i)
    posters.push_back(std::make_unique<Poster>(side, i, every, wait));
  // Not before: who has filled a queue stops everybody who posts, the caller too.
  for (const auto& poster : posters) poster->start();
  return posters;
}

// Puts to a region that is not imported, and not before all of them are posted, for then the next
// one would stop its poster: the other side stands still meanwhile. More of them than a queue has
// room for that stopped others: what needs several of its places stops before the last is taken.
std::vector<Transfer> putsBehind(const Peer& peer, const Block& block, const Line& line) {
  line.send("pid");
  const pid_t other = std::stoi(line.receive());
  freeze(other);
  std::vector<Transfer> puts;
  for (int i = 0; i < 16; ++i) puts.push_back(must(put(peer, {&block, 1}), "put"));
  thaw(other);
  return puts;
}

void expectAllEnded(const Posters& posters, Code waitsEndedBy) {
  for (const auto& poster : posters) poster->join();
  for (const auto& poster : posters) {
    for (const Transfer& put : poster->puts()) must(put.wait(kPatience), "put");
    for (const Transfer& wait : poster->waits())
      EXPECT_EQ(wait.wait(kPatience).code(), waitsEndedBy);
    mustSync(poster->stream());
  }
}

TEST_P(FullQueue, WaitsEndByTime) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [](const Line& line) {
    const Ready ready(line);
    const auto& [side, never, soon] = ready;
    const auto posters =
        postersOn(side, 100, [&](DeviceStream stream) { return never.waitOn(stream, 1, 100ms); });
    expectAllEnded(posters, Code::kTimeout);
    line.send("look");
    EXPECT_EQ(line.receive(), "0");
    line.send("end");
  };
  EXPECT_TRUE(runTwo(active, lookAtPlaces, 120));
}

// While the threads that post are stopped, other waits end, and a cancel sets them free.
TEST_P(FullQueue, CancelledWaitsSetItFree) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [](const Line& line) {
    const Ready ready(line);
    const auto& [side, never, soon] = ready;
    const cudaStream_t other = makeStream();
    const Transfer early = must(soon.waitOn(side.deviceStream(other), 1), "waitOn");
    const auto posters =
        postersOn(side, kRounds, [&](DeviceStream stream) { return never.waitOn(stream, 1); });
    for (const auto& poster : posters) EXPECT_TRUE(poster->isStopped());
    // Whose region is imported by now must not be enqueued by the thread on which all this waits.
    const RemoteRegion fresh = freshRegion(side.peer, line);
    const Block little{&side.region, 0, &fresh, 0, 4096};
    const Transfer late = must(put(side.peer, {&little, 1}), "put");
    must(fresh.prepare(kPatience), "prepare");
    line.send("signal");
    must(early.wait(kPatience), "a wait on another stream");
    for (const auto& poster : posters)
      poster->eachWait([](const Transfer& wait) { wait.cancel(); });
    expectAllEnded(posters, Code::kCancelled);
    must(late.wait(kPatience), "a put whose region was imported meanwhile");
    line.send("look");
    EXPECT_EQ(line.receive(), "0");
    line.send("end");
  };
  EXPECT_TRUE(runTwo(active, lookAtPlaces, 120));
}

// A plan whose posts are under way is looked at by every turn; the thread that posts it once more
// is stopped.
TEST_P(FullQueue, APlanThatIsPostedHoldsUpNobody) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [](const Line& line) {
    const Ready ready(line);
    const auto& [side, never, soon] = ready;
    const Block little{&side.region, 0, &side.remote, 4096, kEach};
    PlanOptions options;
    options.engine = Engine::kCe;  // two pieces of work for each post
    Plan plan =
        must(Plan::create(side.peer, Direction::kPut, std::span(&little, 1), options), "plan");
    const cudaStream_t other = makeStream();
    const Transfer early = must(soon.waitOn(side.deviceStream(other), 1), "waitOn");
    const Transfer gate = must(never.waitOn(side.deviceStream(), 1), "waitOn");
    std::atomic<size_t> made{0};
    std::vector<Transfer> posts;
    std::thread poster([&] {
      mustCuda(cudaSetDevice(side.device.index), "cudaSetDevice");
      for (; made < 1000; ++made) posts.push_back(must(plan.post(side.deviceStream()), "post"));
    });
    EXPECT_TRUE(stopsShort(made, 1000));
    line.send("signal");
    must(early.wait(kPatience), "a wait on another stream");
    gate.cancel();
    EXPECT_EQ(gate.wait(kPatience).code(), Code::kCancelled);
    poster.join();
    for (const Transfer& post : posts) must(post.wait(kPatience), "post");
    line.send("end");
  };
  EXPECT_TRUE(runTwo(active, lookAtPlaces, 120));
}

// What stands behind what the driver takes no more of can be taken back at once.
TEST_P(FullQueue, CancelledDeferredSubmissionsEnd) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [](const Line& line) {
    const Ready ready(line);
    const auto& [side, never, soon] = ready;
    const auto posters =
        postersOn(side, kRounds, [&](DeviceStream stream) { return never.waitOn(stream, 1); });
    for (const auto& poster : posters) EXPECT_TRUE(poster->isStopped());
    const RemoteRegion fresh = freshRegion(side.peer, line);
    const Block little{&side.region, 0, &fresh, 0, 4096};
    const std::vector<Transfer> puts = putsBehind(side.peer, little, line);
    must(fresh.prepare(kPatience), "prepare");
    if (std::string(GetParam()) == "OneQueue") {
      waitUntil([&] { return side.context->dump().find("for the import") == std::string::npos; });
      puts.back().cancel();
      EXPECT_EQ(puts.back().wait(kPatience).code(), Code::kCancelled);
      EXPECT_FALSE(puts.front().done());
    }
    for (const auto& poster : posters)
      poster->eachWait([](const Transfer& wait) { wait.cancel(); });
    expectAllEnded(posters, Code::kCancelled);
    const size_t kept = puts.size() - (std::string(GetParam()) == "OneQueue" ? 1 : 0);
    for (const Transfer& put : std::span(puts).first(kept))
      must(put.wait(kPatience), "a put that was not cancelled");
    line.send("end");
  };
  EXPECT_TRUE(runTwo(active, lookAtPlaces, 120));
}

// The same for a transfer that is staged.
TEST_P(FullQueue, CancelledDeferredStagingEnds) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [](const Line& line) {
    chooseQueues();
    const Side side(0, line, kBytes);
    // Host memory is pinned by who posts the first one, which a full queue would stop.
    const Block whole = side.block(0, kBytes);
    must(must(put(side.peer, {&whole, 1}), "put").wait(kPatience), "wait");
    const Signal never = must(Signal::create(side.peer, kNever), "signal");
    const Transfer wait = must(never.waitOn(side.deviceStream(), 1), "waitOn");
    const OthersWork others(side.device, side.stream);
    const RemoteRegion fresh = freshRegion(side.peer, line);
    const Block little{&side.region, 0, &fresh, 0, 4096};
    const std::vector<Transfer> puts = putsBehind(side.peer, little, line);
    must(fresh.prepare(kPatience), "prepare");
    const Transfer staged = must(put(side.peer, {&whole, 1}), "put");
    if (std::string(GetParam()) == "OneQueue") {
      waitUntil([&] {
        return staged.done() || side.context->dump().find("is staged") != std::string::npos;
      });
      staged.cancel();
      // Copies get past on real GPUs, where their engines have queues of their own.
      const Code ended = staged.wait(kPatience).code();
      EXPECT_TRUE(ended == Code::kCancelled || (!inSoftware() && ended == Code::kOk));
      EXPECT_TRUE(!inSoftware() || !puts.front().done());
    }
    wait.cancel();
    for (const Transfer& put : puts) must(put.wait(kPatience), "a put that was not cancelled");
    if (std::string(GetParam()) != "OneQueue") must(staged.wait(kPatience), "a staged put");
    line.send("end");
  };
  EXPECT_TRUE(runTwo(
      active, [](const Line& line) { answer(line, Memory::kPrivate); }, 120));
}

// By work of others, behind a wait of ours.
TEST_P(FullQueue, TheEndOfTheContextSetsItFree) {
  PEERLANE_NEEDS_GPUS(1);
  const auto active = [](const Line& line) {
    chooseQueues();
    const Device device = gpu(0);
    auto context = makeContext({device});
    const Peer peer = meetPeer(*context, line, false);
    const Region region = must(context->allocate(kBytes, {.device = device}), "allocate");
    const RemoteRegion remote = exchange(peer, region, line);
    const Signal never = must(Signal::create(peer, kNever), "signal");
    const cudaStream_t stream = makeStream();
    const Transfer wait = must(never.waitOn(DeviceStream::cuda(stream), 1), "waitOn");
    const OthersWork others(device, stream);
    const RemoteRegion fresh = freshRegion(peer, line);
    const Block little{&region, 0, &fresh, 0, 4096};
    const Transfer late = must(put(peer, {&little, 1}), "put");
    must(fresh.prepare(kPatience), "prepare");
    if (std::string(GetParam()) == "OneQueue")
      waitUntil([&] { return context->dump().find("waits for room") != std::string::npos; });
    context.reset();
    EXPECT_TRUE(late.done());
    line.send("end");
  };
  EXPECT_TRUE(runTwo(active, lookAtPlaces, 120));
}

// What is tried when a peer of another PID namespace comes.
TEST_P(FullQueue, ALegacyProbeGivesUp) {
  PEERLANE_NEEDS_GPUS(1);
  const auto only = [](const Line&) {
    chooseQueues();
    const auto device = must(cuda::PrimaryContext::retain(gpu(0).index), "retain");
    const cuda::CurrentContext current(device);
    uint64_t* word = nullptr;
    mustCuda(cudaMallocHost(reinterpret_cast<void**>(&word), 64), "cudaMallocHost");
    std::atomic_ref<uint64_t> gate(*word);
    gate = 0;
    const cudaStream_t stream = makeStream();
    mustCuda(cuda::api().cuStreamWaitValue64(stream, reinterpret_cast<CUdeviceptr>(word), 1,
                                             CU_STREAM_WAIT_VALUE_GEQ),
             "wait");
    const OthersWork others(gpu(0), stream);
    const Status tried = legacyProbeOn(device).status();
    EXPECT_EQ(tried.code(), Code::kUnavailable) << tried.toString();
    gate = 1;
  };
  EXPECT_TRUE(runOne(only));
}

TEST_P(FullQueue, ALostPeerSetsItFree) {
  PEERLANE_NEEDS_GPUS(1);
  const auto survive = [](const Victims& victims) {
    const Victim victim = victims.next();
    const Ready ready(victim.line());
    const auto& [side, never, soon] = ready;
    const auto posters =
        postersOn(side, kRounds, [&](DeviceStream stream) { return never.waitOn(stream, 1); });
    for (const auto& poster : posters) EXPECT_TRUE(poster->isStopped());
    victim.kill();
    for (const auto& poster : posters)
      poster->eachWait(
          [](const Transfer& wait) { EXPECT_EQ(wait.wait(kPatience).code(), Code::kPeerLost); });
    for (const auto& poster : posters) poster->join();
    for (const auto& poster : posters) {
      for (const Transfer& put : poster->puts()) {
        const Code code = put.wait(kPatience).code();
        EXPECT_TRUE(code == Code::kOk || code == Code::kPeerLost);
      }
      mustSync(poster->stream());
    }
    clear(side.region.data(), kBytes, 1);  // the device works
  };
  EXPECT_TRUE(runWithVictims(
      survive,
      [](const Line& line) {
        const Side side(1, line, kBytes);
        for (;;) pause();
      },
      120));
}

// Another peer's end is told and done with while threads that post are stopped by waits for this
// one: its words are forgotten by the thread on which all of this waits.
TEST_P(FullQueue, AnotherPeerIsForgotten) {
  PEERLANE_NEEDS_GPUS(1);
  const auto survive = [](const Victims& victims) {
    chooseQueues();
    const Victim lasting = victims.next(), other = victims.next();
    const Side side(0, lasting.line(), kBytes);
    must(side.remote.prepare(kPatience), "prepare");
    {
      const Peer peer = meetPeer(*side.context, other.line(), false);
      (void)exchange(peer, side.region, other.line());
      // Streams have looked at its words.
      const Signal signal = must(Signal::create(peer, kNever), "signal");
      const Transfer wait = must(signal.waitOn(side.deviceStream(), 1, 1ms), "waitOn");
      EXPECT_EQ(wait.wait(kPatience).code(), Code::kTimeout);
    }
    const Signal never = must(Signal::create(side.peer, kNever), "signal");
    const auto posters =
        postersOn(side, kRounds, [&](DeviceStream stream) { return never.waitOn(stream, 1); });
    for (const auto& poster : posters) EXPECT_TRUE(poster->isStopped());
    other.kill();
    waitUntil([&] { return side.context->peers().size() == 1; });
    // Carried out by that thread: no other makes turns.
    for (const auto& poster : posters)
      poster->eachWait([](const Transfer& wait) { wait.cancel(); });
    expectAllEnded(posters, Code::kCancelled);
    lasting.kill();
  };
  EXPECT_TRUE(runWithVictims(
      survive,
      [](const Line& line) {
        const Side side(1, line, kBytes);
        for (;;) pause();
      },
      120));
}

}  // namespace
}  // namespace peerlane::gputest
