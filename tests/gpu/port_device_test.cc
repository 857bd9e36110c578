// SPDX-License-Identifier: Apache-2.0
//
// Port channels between kernels: of two GPUs, in one process and in two, and of one GPU, in one
// process. Bytes are made and looked at on the GPU. Letters and numbers in comments are those of
// the table in docs/port_channel.md.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "tests/gpu/port_bodies.h"
#include "tests/gpu/port_end.h"

namespace peerlane::gputest {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr PortForm kForms[] = {PortForm::kThread, PortForm::kWarp, PortForm::kBlock};
constexpr PortEngine kEngines[] = {PortEngine::kAuto, PortEngine::kInline, PortEngine::kCe};
constexpr size_t kMiB = size_t{1} << 20;

const char* nameOf(PortForm form) {
  return form == PortForm::kThread ? "thread" : form == PortForm::kWarp ? "warp" : "block";
}
const char* nameOf(PortEngine engine) {
  return engine == PortEngine::kAuto ? "auto" : engine == PortEngine::kInline ? "inline" : "ce";
}
std::string trace(PortForm form, PortEngine engine, uint64_t bytes) {
  return std::string(nameOf(form)) + ", " + nameOf(engine) + ", " + std::to_string(bytes) +
         " bytes";
}

// In software all threads of both sides share few cores.
uint64_t scaled(uint64_t onHardware, uint64_t inSoftwareOnly) {
  return inSoftware() ? inSoftwareOnly : onHardware;
}

// As many as asked for, but not for longer than seconds where a single thread or warp copies.
uint64_t roundsFor(uint64_t rounds, uint64_t bytes, PortForm form, PortEngine engine) {
  // With one hardware queue, kAuto goes inline at any size.
  const bool isInline =
      engine == PortEngine::kInline || (engine == PortEngine::kAuto && cuda::hasOneHardwareQueue());
  if (!isInline || form == PortForm::kBlock) return rounds;
  const uint64_t budget = (form == PortForm::kThread ? 128 : 4096) * kMiB;
  return std::clamp<uint64_t>(budget / bytes, 2, rounds);
}

class PortDevice : public ::testing::TestWithParam<Sides> {
 protected:
  static bool both(const std::function<void(int index, const Line& line)>& side,
                   int seconds = 100) {
    return runSides(GetParam(), side, seconds);
  }
};

INSTANTIATE_TEST_SUITE_P(Sides, PortDevice,
                         ::testing::Values(Sides::kOneProcess, Sides::kTwoProcesses),
                         [](const auto& tested) { return gputest::nameOf(tested.param); });

// D2: two contexts on one GPU, and a kernel whose first block plays with its second.
TEST(PortSelf, OneKernelIsBothSides) {
  PEERLANE_NEEDS(Sides::kOneProcess);
  constexpr size_t kBytes = 4 * kMiB;
  PortJob theirs;  // of side 1; read between two meetings
  EXPECT_TRUE(runSides(Sides::kOneProcess, [&](int index, const Line& line) {
    const PortEnd end(index, line, {.bytes = kBytes, .oneGpu = true});
    for (const PortEngine engine : kEngines) {
      PortJob job = end.job(kBytes, scaled(100, 2), engine);
      if (index == 1) theirs = job;
      line.meet();
      job.second = theirs.channel;
      job.otherOut = theirs.out;
      job.otherIn = theirs.in;
      const uint64_t rounds = job.rounds;
      for (const PortForm form : kForms) {
        if (index == 1) break;
        SCOPED_TRACE(trace(form, engine, kBytes));
        job.rounds = roundsFor(rounds, kBytes, form, engine);
        end.run(PortBody::kSelf, form, job, 2);
        EXPECT_EQ(end.notes().count[0], end.notes().count[1]);
      }
      line.meet();
    }
  }));
}

// D3: there and back, every size by everybody who may call and everybody who may copy.
TEST_P(PortDevice, PingPong) {
  PEERLANE_NEEDS(GetParam());
  const size_t most = scaled(16 * kMiB, 64 << 10);
  EXPECT_TRUE(both(
      [&](int index, const Line& line) {
        const PortEnd end(index, line, {.bytes = most});
        for (const uint64_t elements : {uint64_t{1}, uint64_t{1024}, most / 16, most / 4})
          for (const PortEngine engine : kEngines)
            for (const PortForm form : kForms)
              for (const bool polls : {false, true}) {
                const bool isPlain = engine == PortEngine::kAuto && !polls;
                if (polls && engine != PortEngine::kAuto) continue;
                SCOPED_TRACE(trace(form, engine, elements * 4) + (polls ? ", polling" : ""));
                const uint64_t rounds =
                    elements < (4 << 20) || (isPlain && form == PortForm::kThread) ? 1000 : 200;
                PortJob job = end.job(
                    elements * 4, roundsFor(scaled(rounds, 8), elements * 4, form, engine), engine);
                job.polls = polls ? 1 : 0;
                end.run(PortBody::kPingPong, form, job);
              }
      },
      200));
}

// D5: where nothing is mapped the proxy's link carries it all: memory of the host, and of GPUs.
TEST_P(PortDevice, PingPongOverTcp) {
  PEERLANE_NEEDS(GetParam());
  for (const Memory memory : {Memory::kShared, Memory::kVmm, Memory::kMalloc})
    EXPECT_TRUE(both([memory](int index, const Line& line) {
      constexpr size_t kMost = kMiB;
      const PortEnd end(index, line,
                        {.bytes = kMost, .out = memory, .in = memory, .links = {"tcp"}});
      EXPECT_NE(end.connection.engine(), "ce");
      EXPECT_FALSE(end.put().isMapped());
      for (const uint64_t bytes : {uint64_t{4}, uint64_t{4096}, scaled(kMost, 64 << 10)})
        for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe})
          for (const PortForm form : kForms) {
            SCOPED_TRACE(trace(form, engine, bytes) + ", " + gputest::nameOf(memory));
            end.run(PortBody::kPingPong, form, end.job(bytes, scaled(200, 3), engine));
          }
    }));
}

// D6: several semaphores of one connection, each with a kernel of its own.
TEST_P(PortDevice, ManySemaphoresAtOnce) {
  PEERLANE_NEEDS(GetParam());
  constexpr size_t kGames = 4, kBytes = 64 << 10;
  EXPECT_TRUE(both([](int index, const Line& line) {
    const PortEnd end(index, line, {.bytes = kGames * kBytes, .semaphores = kGames});
    std::vector<cudaStream_t> streams;
    for (size_t i = 0; i < kGames; ++i) streams.push_back(makeStream());
    line.meet();
    for (size_t i = 0; i < kGames; ++i) {
      PortJob job = end.job(kBytes, scaled(1000, 10), kEngines[i % 3], i);
      job.at = i * kBytes;
      end.launch(PortBody::kPingPong, kForms[i % 3], job, 1, streams[i]);
    }
    for (const cudaStream_t stream : streams) end.join(stream);
    for (size_t i = 0; i < kGames; ++i) end.expectGood(i);
  }));
}

TEST_P(PortDevice, Exchange) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    const PortEnd end(index, line, {.bytes = kMiB});
    for (const uint64_t bytes : {uint64_t{1024}, scaled(kMiB, 64 << 10)})
      for (const PortEngine engine : kEngines)
        for (const PortForm form : kForms) {
          SCOPED_TRACE(trace(form, engine, bytes));
          end.run(PortBody::kExchange, form,
                  end.job(bytes, roundsFor(scaled(1000, 8), bytes, form, engine), engine));
          line.meet();  // what goes by one engine does not wait for what went by another
        }
  }));
}

// Each block puts a slice; each waits for all.
TEST_P(PortDevice, ExchangeByManyBlocks) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    const PortEnd end(index, line, {.bytes = kMiB});
    const auto blocks = static_cast<uint32_t>(scaled(16, 2));
    for (const PortEngine engine : kEngines)
      for (const PortForm form : {PortForm::kWarp, PortForm::kBlock}) {
        SCOPED_TRACE(trace(form, engine, kMiB));
        end.run(PortBody::kExchangeBlocks, form,
                end.job(scaled(kMiB, 32 << 10), scaled(500, 5), engine), blocks);
        line.meet();
      }
  }));
}

// E1: both directions of copying, by the calling threads and by the proxy.
TEST_P(PortDevice, GetPingPong) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    const PortEnd end(index, line, {.bytes = 4 * kMiB});
    for (const uint64_t bytes : {uint64_t{4}, uint64_t{4096}, scaled(4 * kMiB, 64 << 10)})
      for (const PortEngine engine : kEngines)
        for (const PortForm form : kForms) {
          SCOPED_TRACE(trace(form, engine, bytes));
          // A thread that reads from afar waits for every line of it.
          uint64_t rounds = roundsFor(scaled(500, 6), bytes, form, engine);
          if (form == PortForm::kThread && bytes > kMiB) rounds = std::min<uint64_t>(rounds, 4);
          PortJob job = end.job(bytes, rounds, engine);
          job.second = end.get().deviceHandle(engine);
          end.run(PortBody::kGet, form, job);
          line.meet();
        }
  }));
}

// D4, and the packets of E1.
TEST_P(PortDevice, PacketPingPong) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    const uint64_t most = scaled(16 * kMiB, 64 << 10);
    const PortEnd end(index, line, {.bytes = 2 * most});
    for (const uint64_t bytes : {uint64_t{8}, uint64_t{4096}, scaled(4 * kMiB, 32 << 10), most})
      for (const PortForm form : kForms) {
        SCOPED_TRACE(trace(form, PortEngine::kInline, bytes));
        // Flags begin anew with the notes, and must not be those that lie there.
        clear(end.in.data(), 2 * most, 0);
        end.clearNotes();
        line.meet();
        const uint64_t rounds = roundsFor(scaled(1000, 6), bytes, form, PortEngine::kInline);
        end.run(PortBody::kPackets, form, end.job(bytes, rounds));
        line.meet();
      }
  }));
}

TEST_P(PortDevice, SignalsOfSemaphoresAlone) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    const PortEnd end(index, line);
    for (const PortForm form : kForms)
      end.run(PortBody::kSignals, form, end.job(0, scaled(10000, 30)));
  }));
}

// F1: numbered messages through a ring, both ways at once; short ones, long ones, and both.
TEST_P(PortDevice, Stress) {
  PEERLANE_NEEDS(GetParam());
  struct Case {
    PortEngine engine;
    PortForm form;
    uint64_t bytes, oddBytes, rounds;
  };
  EXPECT_TRUE(both(
      [](int index, const Line& line) {
        constexpr uint64_t kSlots = 64, kBatch = 16, kMost = 64 << 10;
        const PortEnd end(index, line, {.bytes = kSlots * kMost});
        for (const Case& each : {Case{PortEngine::kAuto, PortForm::kThread, 64, 0, 1'000'000},
                                 Case{PortEngine::kInline, PortForm::kWarp, 1024, 0, 1'000'000},
                                 Case{PortEngine::kCe, PortForm::kThread, 64, 0, 200'000},
                                 Case{PortEngine::kAuto, PortForm::kWarp, kMost, 256, 100'000},
                                 Case{PortEngine::kAuto, PortForm::kBlock, kMost, 16, 100'000}}) {
          SCOPED_TRACE(trace(each.form, each.engine, each.bytes));
          PortJob job =
              end.job(each.bytes, scaled(each.rounds, 256) / kSlots * kSlots, each.engine);
          job.oddBytes = each.oddBytes;
          job.slots = kSlots;
          job.batch = kBatch;
          // Below the long ones, so that both ways of going are taken.
          if (each.oddBytes != 0)
            for (uint64_t& limit : job.channel.inlineBytes) limit = 512;
          // A semaphore for each direction.
          if (index == 1) std::swap(job.channel, job.second);
          end.run(PortBody::kStress, each.form, job, 2);
          end.clearNotes();
          line.meet();
        }
      },
      250));
}

uint64_t wrongWordsOf(const void* at, uint64_t bytes, uint64_t round, uint32_t side) {
  const auto* const words = static_cast<const uint32_t*>(at);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < bytes / 4; ++i) wrong += words[i] != portWord(i, round, side) ? 1 : 0;
  return wrong;
}

// F2: what a wait has seen may be read by whatever stands behind it in the stream.
TEST_P(PortDevice, ACopyBehindTheWaitReadsTheBytes) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    constexpr uint64_t kBytes = 64 << 10;
    const uint64_t rounds = scaled(2000, 20);
    const PortEnd end(index, line, {.bytes = kBytes});
    void* seen = nullptr;
    mustCuda(cudaHostAlloc(&seen, kBytes, cudaHostAllocDefault), "cudaHostAlloc");
    int gpus = 0;
    mustCuda(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
    for (const PortEngine engine : kEngines) {
      // Copies of one GPU stand in one queue: the one that waits would stand before what it needs.
      if (engine == PortEngine::kCe && gpus < 2) continue;
      end.clearNotes();
      line.meet();
      if (index == 0) {
        end.run(PortBody::kPutAndFlush, PortForm::kBlock, end.job(kBytes, rounds, engine));
        continue;
      }
      uint64_t wrong = 0;
      for (uint64_t round = 1; round <= rounds; ++round) {
        end.launch(PortBody::kWait, PortForm::kThread, end.job(0, 1, engine));
        mustCuda(cudaMemcpyAsync(seen, end.in.data(), kBytes, cudaMemcpyDeviceToHost, end.stream),
                 "copy");
        end.join();
        wrong += wrongWordsOf(seen, kBytes, round, 0);
        must(end.semaphores[0].signal(), "signal");
      }
      EXPECT_EQ(wrong, 0u) << nameOf(engine);
      end.expectGood();
    }
  }));
}

// F2: and by the host, when the kernel that waited says so.
TEST_P(PortDevice, TheHostReadsTheBytes) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    constexpr uint64_t kBytes = 16 << 10;
    const uint64_t rounds = scaled(5000, 20);
    const PortEnd end(index, line, {.bytes = kBytes, .in = Memory::kShared});
    void* word = nullptr;
    mustCuda(cudaHostAlloc(&word, 64, cudaHostAllocMapped), "cudaHostAlloc");
    auto* const flag = static_cast<uint64_t*>(word);
    for (const PortEngine engine : kEngines) {
      *flag = 0;
      end.clearNotes();
      line.meet();
      if (index == 0) {
        end.run(PortBody::kPutAndFlush, PortForm::kBlock, end.job(kBytes, rounds, engine));
        continue;
      }
      PortJob job = end.job(0, rounds, engine);
      job.flag = flag;
      end.launch(PortBody::kWait, PortForm::kThread, job);
      uint64_t wrong = 0;
      for (uint64_t round = 1; round <= rounds; ++round) {
        const auto giveUp = Clock::now() + kPatience;
        while (port::loadAcquire(flag) < round && Clock::now() < giveUp) cpuRelax();
        wrong += wrongWordsOf(end.in.data(), kBytes, round, 0);
        must(end.semaphores[0].signal(), "signal");
      }
      EXPECT_EQ(wrong, 0u) << nameOf(engine);
      end.join();
      end.expectGood();
    }
  }));
}

// F3: more requests, and more threads that ask, than the FIFO and the queue behind it hold.
TEST_P(PortDevice, MoreRequestsThanThereIsRoomFor) {
  PEERLANE_NEEDS(GetParam());
  for (const uint32_t slots : {8u, 512u})
    EXPECT_TRUE(both([slots](int index, const Line& line) {
      constexpr uint64_t kBytes = 16;
      const PortEnd end(index, line, {.service = {.fifoSlots = slots}});
      const auto blocks = static_cast<uint32_t>(scaled(8, 2));
      const PortForm form = PortForm::kBlock;
      PortJob job = end.job(kBytes, scaled(30, 60), PortEngine::kCe);
      job.slots = blocks;
      job.batch = uint64_t{blocks} * portThreads(form);
      // One after the other, then at once.
      if (index == 0) end.run(PortBody::kPushes, form, job, blocks);
      end.run(index == 0 ? PortBody::kNothing : PortBody::kLookAtPushes, form, job);
      line.meet();
      if (index == 1) end.run(PortBody::kPushes, form, job, blocks);
      end.run(index == 1 ? PortBody::kNothing : PortBody::kLookAtPushes, form, job);
    }));
}

// Requests of the user's own: each thread's in its order, none lost.
TEST(PortRequests, OfManyThreads) {
  PEERLANE_NEEDS(Sides::kOneProcess);
  for (const uint32_t slots : {8u, 512u})
    EXPECT_TRUE(runSides(Sides::kOneProcess, [slots](int index, const Line& line) {
      constexpr uint32_t kKind = 70000;
      const PortEnd end(index, line, {.service = {.fifoSlots = slots}});
      std::map<uint32_t, uint64_t> last;  // of each thread; the proxy's
      std::atomic<uint64_t> handled{0}, disordered{0};
      must(end.service->onRequest(kKind,
                                  [&](const port::PortRequest& request) {
                                    uint64_t& before = last[request.to];
                                    const uint64_t value =
                                        before % 2 == 0 ? uint64_t{1} : before + 1;
                                    if (request.toOffset != before + 1 || request.value != value)
                                      ++disordered;
                                    before = request.toOffset;
                                    ++handled;
                                    return Status::ok();
                                  }),
           "onRequest");
      const auto blocks = static_cast<uint32_t>(scaled(16, 2));
      PortJob job = end.job(0, scaled(50, 60));
      job.slots = kKind;
      end.run(PortBody::kRequests, PortForm::kBlock, job, blocks);
      const uint64_t all = job.rounds * blocks * portThreads(PortForm::kBlock);
      const auto giveUp = Clock::now() + kPatience;
      while (handled < all && Clock::now() < giveUp) std::this_thread::sleep_for(1ms);
      EXPECT_EQ(handled, all);
      EXPECT_EQ(disordered, 0u);
      must(end.service->onRequest(kKind, nullptr), "onRequest");
    }));
}

// F4: captured once, replayed with fresh bytes; the proxy is told ahead by the graph itself.
TEST_P(PortDevice, ReplaysOfAGraph) {
  PEERLANE_NEEDS_TWO_QUEUES();  // many replays are under way
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both(
      [](int index, const Line& line) {
        const PortEnd end(index, line, {.bytes = 256 << 10});
        for (const PortEngine engine : kEngines)
          for (const bool wakes : {false, true}) {
            SCOPED_TRACE(nameOf(engine));
            mustCuda(cudaStreamBeginCapture(end.stream, cudaStreamCaptureModeThreadLocal), "begin");
            if (wakes) must(end.service->wakeOn(DeviceStream::cuda(end.stream)), "wakeOn");
            end.launch(PortBody::kExchange, PortForm::kBlock, end.job(4096, 1, engine));
            PortJob game = end.job(1024, 1, engine);
            game.at = 64 << 10;  // the other side may not have looked at what was exchanged
            game.notes = end.notesAt(1);
            end.launch(PortBody::kPingPong, PortForm::kWarp, game);
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t executable = nullptr;
            mustCuda(cudaStreamEndCapture(end.stream, &graph), "end");
            mustCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
            mustCuda(cudaGraphDestroy(graph), "destroy");
            line.meet();  // nobody spins while the other one may still load something
            for (uint64_t i = 1; i <= scaled(1000, 15); ++i) {
              mustCuda(cudaGraphLaunch(executable, end.stream), "launch");
              // For sides in one process. Who fills a GPU's queue waits in the launch, with a lock
              // of the driver's that the other one needs; and callbacks of all graphs of a process
              // come one after the other, in the order of the launches.
              if (wakes || i % 100 == 0) end.join();
            }
            end.join();
            end.expectGood();
            end.expectGood(1);
            line.meet();
            mustCuda(cudaGraphExecDestroy(executable), "destroy executable");
          }
      },
      200));
}

// The proxy sleeps when it is idle, and is awake when the stream has told it.
TEST(PortWake, OnAStream) {
  PEERLANE_NEEDS(Sides::kOneProcess);
  EXPECT_TRUE(runSides(Sides::kOneProcess, [](int index, const Line& line) {
    const PortEnd end(index, line);
    for (int i = 0; i < 5; ++i) {
      const uint64_t naps = end.service->naps();
      const auto giveUp = Clock::now() + kPatience;
      while (end.service->naps() <= naps && Clock::now() < giveUp) std::this_thread::sleep_for(1ms);
      EXPECT_GT(end.service->naps(), naps);
      must(end.service->wakeOn(DeviceStream::cuda(end.stream)), "wakeOn");
      end.run(PortBody::kPingPong, PortForm::kThread, end.job(4096, 3, PortEngine::kCe));
    }
  }));
}

// A thread that counts sleeps as short as the proxy's shortest nap: a yardstick for naps on a busy
// machine.
class ShortSleeps {
 public:
  ShortSleeps()
      : thread_([this] {
          for (; !stops_; ++count_) std::this_thread::sleep_for(50us);
        }) {}
  ~ShortSleeps() {
    stops_ = true;
    thread_.join();
  }
  ShortSleeps(const ShortSleeps&) = delete;
  ShortSleeps& operator=(const ShortSleeps&) = delete;
  uint64_t count() const { return count_; }

 private:
  std::atomic<bool> stops_{false};
  std::atomic<uint64_t> count_{0};
  std::thread thread_;
};

// While a copy is under way naps stay short, also where the proxy had nothing to do before. They
// would grow to 1 ms: a sixth of the short sleeps, or fewer.
TEST(PortWake, LooksOftenWhileACopyIsUnderWay) {
  PEERLANE_NEEDS(Sides::kOneProcess);
  EXPECT_TRUE(runSides(Sides::kOneProcess, [](int index, const Line& line) {
    constexpr uint64_t kBytes = 128 * kMiB, kUntilQuiet = 12;
    constexpr double kNapsPerMs = 4, kNapsPerSleep = 1.0 / 3, kLongMs = 5;
    const PortEnd end(index, line, {.bytes = kBytes, .service = {.spin = 0ns}});
    void* word = nullptr;
    mustCuda(cudaHostAlloc(&word, sizeof(uint64_t), cudaHostAllocMapped), "cudaHostAlloc");
    auto* const flag = static_cast<uint64_t*>(word);
    *flag = 0;
    double perMs = 0, perSleep = 0, longest = 0;
    // Once is enough: the proxy may be kept from the CPU.
    for (uint64_t round = 1; round <= 10; ++round) {
      const uint64_t before = end.service->naps();
      while (end.service->naps() < before + kUntilQuiet) std::this_thread::yield();
      line.meet();
      if (index == 0) {
        ShortSleeps yardstick;
        PortJob job = end.job(kBytes, 1, PortEngine::kCe);
        job.flag = flag;
        end.launch(PortBody::kPut, PortForm::kBlock, job);
        while (port::loadAcquire(flag) < round) std::this_thread::yield();
        const uint64_t napsBefore = end.service->naps(), sleepsBefore = yardstick.count();
        const auto begin = Clock::now();
        (void)line.receive();
        const double took = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
        const auto naps = static_cast<double>(end.service->naps() - napsBefore);
        const auto sleeps = static_cast<double>(yardstick.count() - sleepsBefore);
        longest = std::max(longest, took);
        perMs = std::max(perMs, naps / took);
        // The first naps behind a request are short in any case.
        if (took > kLongMs) perSleep = std::max(perSleep, naps / std::max(sleeps, 1.0));
      } else {
        end.launch(PortBody::kWait, PortForm::kThread, end.job(0, 1));
        end.join();
        line.send("it is here");
      }
      end.join();
    }
    // A device that copies this in less time gives the proxy no time to nap.
    if (index == 0 && longest > kLongMs) {
      EXPECT_GT(inSoftware() ? perSleep : perMs, inSoftware() ? kNapsPerSleep : kNapsPerMs);
    }
    mustCuda(cudaFreeHost(word), "cudaFreeHost");
  }));
}

// A wait with a bound ends by it, consumes nothing, and the next one has the signal.
TEST_P(PortDevice, WaitsWithABound) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    const PortEnd end(index, line);
    for (const PortForm form : kForms) {
      PortJob job = end.job(0, 1);
      job.bound = 30'000'000;
      if (index == 0) {
        end.launch(PortBody::kWait, form, job);
        end.join();
        const PortNotes notes = end.notes();
        EXPECT_EQ(notes.outcome, static_cast<uint64_t>(PortOutcome::kTimeout));
        EXPECT_GE(notes.nanoseconds, 29'000'000u);
        EXPECT_EQ(notes.count[0], 0u);
        end.clearNotes();
      }
      line.meet();
      if (index == 1) must(end.semaphores[0].signal(), "signal");
      job.bound = 20'000'000'000;
      if (index == 0) end.run(PortBody::kWait, form, job);
      end.clearNotes();
      line.meet();
    }
  }));
}

// A flush says that the source may be written: it is, at once.
TEST_P(PortDevice, AFlushedSourceMayBeWritten) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    const PortEnd end(index, line, {.bytes = 4 * kMiB});
    for (const uint64_t bytes : {uint64_t{256}, scaled(4 * kMiB, 128 << 10)})
      for (const PortEngine engine : kEngines)
        for (const PortForm form : kForms) {
          SCOPED_TRACE(trace(form, engine, bytes));
          const uint64_t rounds = roundsFor(scaled(200, 6), bytes, form, engine);
          end.run(index == 0 ? PortBody::kPutAndFlush : PortBody::kAnswer, form,
                  end.job(bytes, rounds, engine));
        }
  }));
}

// The same by several blocks at once, whose flushes cover each other's puts.
TEST_P(PortDevice, FlushesAtOnce) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    const PortEnd end(index, line, {.bytes = kMiB});
    const auto blocks = static_cast<uint32_t>(scaled(16, 3));
    for (const PortEngine engine : kEngines)
      for (const PortForm form : kForms) {
        SCOPED_TRACE(trace(form, engine, kMiB));
        PortJob job = end.job(scaled(kMiB, 48 << 10), scaled(50, 5), engine);
        job.slots = blocks;
        if (index == 0)
          end.run(PortBody::kFlushAtOnce, form, job, blocks);
        else
          end.run(PortBody::kLookAtSlices, form, job);
        line.meet();
      }
  }));
}

// F5: who waits for a peer that was killed is told, within seconds.
TEST(PortPeerLost, WaitsEnd) {
  PEERLANE_NEEDS(Sides::kOneProcess);
  EXPECT_TRUE(runWithVictims(
      [](const Victims& victims) {
        const Victim victim = victims.next();
        const Line line = victim.line();
        // Its destructor would meet the victim.
        auto* const end = new PortEnd(0, line, {.semaphores = 6});
        std::vector<cudaStream_t> streams;
        for (size_t i = 0; i < 6; ++i) {
          streams.push_back(makeStream());
          PortJob job = end->job(4096, 1, PortEngine::kAuto, i);
          if (i >= 3) job.bound = 60'000'000'000;
          end->launch(PortBody::kWait, kForms[i % 3], job, 1, streams[i]);
        }
        std::this_thread::sleep_for(100ms);
        for (const cudaStream_t stream : streams) EXPECT_FALSE(end->joinWithin(0ms, stream));
        victim.kill();
        for (const cudaStream_t stream : streams) EXPECT_TRUE(end->joinWithin(10s, stream));
        for (size_t i = 0; i < 6; ++i) {
          EXPECT_EQ(end->notes(i).outcome, static_cast<uint64_t>(PortOutcome::kEnded));
          EXPECT_EQ(end->put(i).status().code(), Code::kPeerLost)
              << end->put(i).status().toString();
        }
        // The device works, and the service can still be asked.
        clear(end->in.data(), 4096, 1);
        EXPECT_TRUE(end->service->status().isOk());
        end->abandon();
        delete end;
      },
      [](const Line& line) {
        const PortEnd end(1, line, {.semaphores = 6});
        for (;;) pause();
      }));
}

// Until the first word that arrives here has changed twice. The peer makes the second change only
// after this side has ended its first round.
void waitForTraffic(const PortEnd& end, cudaStream_t stream) {
  const auto look = [&] {
    uint32_t word = 0;
    mustCuda(cudaMemcpyAsync(&word, end.in.data(), sizeof(word), cudaMemcpyDefault, stream),
             "copy");
    mustSync(stream);
    return word;
  };
  uint32_t before = look();
  const auto giveUp = Clock::now() + kPatience;
  for (int changes = 0; changes < 2 && Clock::now() < giveUp;) {
    const uint32_t word = look();
    if (word != before) ++changes;
    before = word;
  }
}

// F5: the same in the middle of traffic.
TEST(PortPeerLost, TrafficEnds) {
  PEERLANE_NEEDS(Sides::kTwoProcesses);
  constexpr uint64_t kForever = uint64_t{1} << 40;
  for (const PortEngine engine : {PortEngine::kInline, PortEngine::kCe})
    EXPECT_TRUE(runWithVictims(
        [engine](const Victims& victims) {
          const Victim victim = victims.next();
          const Line line = victim.line();
          auto* const end = new PortEnd(0, line);
          const cudaStream_t other = makeStream();
          end->launch(PortBody::kExchange, PortForm::kBlock, end->job(4096, kForever, engine));
          waitForTraffic(*end, other);
          victim.kill();
          EXPECT_TRUE(end->joinWithin(10s));
          EXPECT_EQ(end->notes().outcome, static_cast<uint64_t>(PortOutcome::kEnded));
          EXPECT_EQ(end->notes().wrong, 0u);
          EXPECT_GT(end->notes().count[0], 0u);
          EXPECT_EQ(end->put().status().code(), Code::kPeerLost);
          clear(end->in.data(), 4096, 1);
          end->abandon();
          delete end;
        },
        [engine](const Line& line) {
          const PortEnd end(1, line);
          end.launch(PortBody::kExchange, PortForm::kBlock, end.job(4096, kForever, engine));
          for (;;) pause();
        }));
}

// F6: semaphores and memory come and go while a kernel uses others.
TEST_P(PortDevice, ComingAndGoingBesideAKernel) {
  PEERLANE_NEEDS(GetParam());
  EXPECT_TRUE(both([](int index, const Line& line) {
    const PortEnd end(index, line, {.bytes = kMiB});
    end.launch(PortBody::kExchange, PortForm::kWarp,
               end.job(16 << 10, scaled(20000, 200), PortEngine::kCe));
    for (uint32_t i = 0; i < scaled(30, 4); ++i) {
      const MemoryId memory = must(end.service->addMemory(end.in), "addMemory");
      const PortSemaphore semaphore =
          must(end.service->addSemaphore(end.connection, 100 + i), "addSemaphore");
      line.meet();
      must(end.service->removeSemaphore(semaphore), "removeSemaphore");
      must(end.service->removeMemory(memory), "removeMemory");
      EXPECT_EQ(semaphore.status().code(), Code::kClosed);
    }
    end.join();
    end.expectGood();
  }));
}

struct Kinds {
  Memory out, in;
};

class PortMemoryKinds : public ::testing::TestWithParam<Kinds> {};

INSTANTIATE_TEST_SUITE_P(
    Kinds, PortMemoryKinds,
    ::testing::Values(Kinds{Memory::kMalloc, Memory::kMalloc},
                      Kinds{Memory::kOddOffset, Memory::kOddOffset},
                      Kinds{Memory::kPinned, Memory::kVmm}, Kinds{Memory::kShared, Memory::kVmm},
                      Kinds{Memory::kHeap, Memory::kMalloc}, Kinds{Memory::kVmm, Memory::kShared},
                      Kinds{Memory::kMemfd, Memory::kMemfd}),
    [](const auto& tested) {
      return gputest::nameOf(tested.param.out) + "To" + gputest::nameOf(tested.param.in);
    });

TEST_P(PortMemoryKinds, AreCarriedByEverybody) {
  const Sides sides = gpuCount() < 2 ? Sides::kOneProcess : Sides::kTwoProcesses;
  PEERLANE_NEEDS(sides);
  EXPECT_TRUE(runSides(sides, [](int index, const Line& line) {
    const PortEnd end(index, line, {.bytes = kMiB, .out = GetParam().out, .in = GetParam().in});
    EXPECT_TRUE(end.put().isMapped()) << end.put().explain();
    for (const uint64_t bytes : {uint64_t{60}, uint64_t{20000}, scaled(kMiB, 64 << 10)})
      for (const PortEngine engine : kEngines)
        for (const PortForm form : kForms) {
          SCOPED_TRACE(trace(form, engine, bytes));
          end.run(PortBody::kPingPong, form,
                  end.job(bytes, roundsFor(scaled(100, 4), bytes, form, engine), engine));
        }
  }));
}

}  // namespace
}  // namespace peerlane::gputest
