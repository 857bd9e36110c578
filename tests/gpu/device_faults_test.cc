// SPDX-License-Identifier: Apache-2.0
//
// Peers that are killed, one after the other, at random moments of whatever goes on between them
// and one survivor: everything that was pending says so soon, the survivor's stream and memory are
// as good as before, nothing is left over, and the next one is welcome.
//
// DEVICE_KILLS: how many (30 in software, else 100); DEVICE_KILL_SEED: those of an earlier run
// again.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <random>

#include "tests/gpu/holdings.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

const size_t kBytes = size_t{inSoftware() ? 4u : 64u} << 20;
constexpr uint32_t kArrived = 1, kNever = 4;  // signals

enum class Doing { kCopies, kWaits, kImports, kMessages };
constexpr int kDoings = 4;

uint64_t numberFrom(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::unique_ptr<Communicator> ranksOf(const Meeting& side) {
  std::vector<Peer> peers(2);
  peers[static_cast<size_t>(1 - side.index)] = side.peer;
  return must(Communicator::create(*side.context, peers, static_cast<Rank>(side.index)),
              "communicator");
}

// --- The victim: busy until it is killed ---

[[noreturn]] void copyForever(const Side& side) {
  const Block block = side.block(0, kBytes / 2);
  const Engine engines[] = {Engine::kCe, Engine::kSm};
  for (int i = 0;; ++i) {
    const PostOptions options{.notify = {.signal = kArrived},
                              .deviceStream = side.deviceStream(),
                              .engine = engines[i % 2]};
    must(must(put(side.peer, {&block, 1}, options), "put").wait(kPatience), "wait");
  }
}

[[noreturn]] void waitForever(const Side& side) {
  const Signal never = must(Signal::create(side.peer, kNever), "signal");
  (void)must(never.waitOn(side.deviceStream(), 1), "waitOn");
  for (;;) must(addSignal(side.peer, kArrived), "addSignal");
}

[[noreturn]] void importForever(const Side& side) {
  const auto reference = side.remote.reference().encode();
  for (;;) {
    const RemoteRegion again = must(side.peer.importRegion(reference), "importRegion");
    must(again.prepare(kPatience), "prepare");
  }
}

constexpr size_t kSizes[] = {64, 100000, 2048, 1000};

// Behind some of the messages, lest all of them be more than a hardware queue holds; short ones by
// one launch, long ones by two.
bool hasList(size_t message) {
  return message % 4 == 0;
}
std::vector<MessageBlock> listAt(const Region& region, size_t at, size_t message) {
  std::vector<MessageBlock> pieces;
  for (size_t i = 0; i < 60; ++i, at += 6000)
    pieces.push_back({&region, at, 1 + (i * 97 + message) % (message % 8 == 0 ? 500 : 6000)});
  return pieces;
}

[[noreturn]] void answerForever(const Side& side) {
  const auto ranks = ranksOf(side);
  MessageOptions options;
  options.deviceStream = side.deviceStream();
  for (size_t i = 0;; ++i) {
    const size_t bytes = kSizes[i % std::size(kSizes)];
    must(ranks->recv(0, side.region, 0, bytes, options), "recv");
    must(must(ranks->send(0, side.region, kBytes / 2, bytes, options), "send").wait(kPatience),
         "wait");
    if (!hasList(i)) continue;
    must(ranks->recvList(0, listAt(side.region, 0, i), options), "recvList");
    must(must(ranks->sendList(0, listAt(side.region, kBytes / 2, i), options), "sendList")
             .wait(kPatience),
         "wait for a list");
  }
}

void beBusy(const Line& line) {
  const Side side(1, line, kBytes);
  switch (static_cast<Doing>(std::stoi(line.receive()))) {
    case Doing::kCopies: copyForever(side);
    case Doing::kWaits: waitForever(side);
    case Doing::kImports: importForever(side);
    case Doing::kMessages: answerForever(side);
  }
}

// --- The survivor ---

class Survivor {
 public:
  explicit Survivor(const Victims& victims)
      : victims_(victims), coming_(victims.next()), region_(allocate()) {}
  ~Survivor() { coming_.kill(); }
  Survivor(const Survivor&) = delete;
  Survivor& operator=(const Survivor&) = delete;

  // The next victim comes, and is killed `later` after everything was posted.
  void round(Doing doing, std::chrono::microseconds later) {
    // The one after this one starts meanwhile.
    const Victim victim = std::exchange(coming_, victims_.next());
    const Line line = victim.line();
    {
      const Peer peer = meetPeer(*context_, line, false);
      const RemoteRegion remote = exchange(peer, region_, line);
      line.send(std::to_string(static_cast<int>(doing)));
      std::vector<Transfer> pending;
      std::unique_ptr<Communicator> ranks;
      switch (doing) {
        case Doing::kCopies: copies(peer, remote, pending); break;
        case Doing::kWaits: waits(peer, pending); break;
        case Doing::kImports: imports(peer, remote, pending); break;
        case Doing::kMessages: ranks = messages(peer, pending); break;
      }
      const Signal never = must(Signal::create(peer, kNever), "signal");
      pending.push_back(must(never.waitOn(deviceStream(), 1), "waitOn"));
      const auto moment = Clock::now() + later;
      while (Clock::now() < moment) std::this_thread::yield();
      expectLost(victim, peer, remote, pending);
    }
    expectUsable();
  }

  // What the survivor holds while there is no victim, whose memory would be counted as well.
  Holdings alone() {
    endComing();
    const Device theirs = gpu(1), mine = gpu(0);
    Holdings held = Holdings::on(theirs == mine ? std::vector{mine.index}
                                                : std::vector{mine.index, theirs.index});
    coming_ = victims_.next();
    return held;
  }
  void expectNoMoreThan(const Holdings& before) {
    endComing();
    gputest::expectNoMoreThan(before);
  }

 private:
  void endComing() const {
    coming_.kill();
    const auto end = Clock::now() + kPatience;
    while (::kill(coming_.pid, 0) == 0 && Clock::now() < end) usleep(1000);
  }
  DeviceStream deviceStream() const { return DeviceStream::cuda(stream_); }
  Region allocate() { return must(context_->allocate(kBytes, {.device = device_}), "allocate"); }
  Block block(const RemoteRegion& remote, size_t bytes) const {
    return {&region_, 0, &remote, 0, bytes};
  }

  void copies(const Peer& peer, const RemoteRegion& remote, std::vector<Transfer>& pending) {
    must(remote.prepare(kPatience), "prepare");
    const Block all = block(remote, kBytes);
    for (int i = 0; i < 40; ++i) {
      const PostOptions options{.notify = {.signal = kArrived},
                                .deviceStream = i % 3 == 0 ? DeviceStream() : deviceStream(),
                                .engine = i % 2 == 0 ? Engine::kCe : Engine::kSm};
      pending.push_back(i % 5 == 4
                            ? must(get(peer, {&all, 1}, {.deviceStream = deviceStream()}), "get")
                            : must(put(peer, {&all, 1}, options), "put"));
    }
  }

  void waits(const Peer& peer, std::vector<Transfer>& pending) {
    const Signal arrived = must(Signal::create(peer, kArrived), "signal");
    for (uint64_t i = 1; i <= 200; ++i)
      pending.push_back(must(arrived.waitOn(deviceStream(), i * i), "waitOn"));
  }

  // Late posts: the import is under way while the peer dies.
  void imports(const Peer& peer, const RemoteRegion& remote, std::vector<Transfer>& pending) {
    const Block little = block(remote, 4096);
    pending.push_back(must(put(peer, {&little, 1}, {.deviceStream = deviceStream()}), "late put"));
    // By each of the streams on which such puts are carried out.
    for (int i = 0; i < 2; ++i) pending.push_back(must(put(peer, {&little, 1}, {}), "put"));
    pending.push_back(must(get(peer, {&little, 1}, {.deviceStream = deviceStream()}), "late get"));
  }

  std::unique_ptr<Communicator> messages(const Peer& peer, std::vector<Transfer>& pending) {
    std::vector<Peer> peers(2);
    peers[1] = peer;
    auto ranks = must(Communicator::create(*context_, peers, 0), "communicator");
    MessageOptions options;
    options.deviceStream = deviceStream();
    for (size_t i = 0; i < 200; ++i) {
      const size_t bytes = kSizes[i % std::size(kSizes)];
      pending.push_back(must(ranks->send(1, region_, 0, bytes, options), "send"));
      pending.push_back(must(ranks->recv(1, region_, kBytes / 2, bytes, options), "recv"));
      if (!hasList(i)) continue;
      pending.push_back(must(ranks->sendList(1, listAt(region_, 0, i), options), "sendList"));
      pending.push_back(
          must(ranks->recvList(1, listAt(region_, kBytes / 2, i), options), "recvList"));
    }
    return ranks;
  }

  void expectLost(const Victim& victim, const Peer& peer, const RemoteRegion& remote,
                  const std::vector<Transfer>& pending) {
    victim.kill();
    for (const Transfer& transfer : pending) {
      const Status status = transfer.wait(kPatience);
      EXPECT_TRUE(status.isOk() || status.code() == Code::kPeerLost) << status.toString();
    }
    EXPECT_EQ(pending.back().status().code(), Code::kPeerLost);
    const Block little = block(remote, 4096);
    EXPECT_EQ(put(peer, {&little, 1}).status().code(), Code::kPeerLost);
  }

  void expectUsable() {
    mustSync(stream_);
    fill(region_.data(), 4096, 5);
    mustCuda(
        cudaMemcpyAsync(region_.data() + 4096, region_.data(), 4096, cudaMemcpyDefault, stream_),
        "copy");
    mustSync(stream_);
    EXPECT_EQ(wrongWords(region_.data() + 4096, 4096, 5), 0u);
    // What a victim had imported is free at once.
    must(context_->unregister(region_, kPatience), "unregister");
    region_ = allocate();
  }

  const Victims victims_;
  Victim coming_;
  const Device device_ = gpu(0);
  const std::unique_ptr<Context> context_ = makeContext({device_});
  const cudaStream_t stream_ = makeStream();
  Region region_;
};

TEST(DeviceFaults, KilledPeersAtRandomMoments) {
  PEERLANE_NEEDS_GPUS(1);
  const uint64_t kills = numberFrom("DEVICE_KILLS", inSoftware() ? 30 : 100);
  const uint64_t seed = numberFrom("DEVICE_KILL_SEED", std::random_device()());
  SCOPED_TRACE("DEVICE_KILL_SEED=" + std::to_string(seed));
  const auto survive = [=](const Victims& victims) {
    Survivor survivor(victims);
    std::mt19937_64 random(seed);
    const auto begin = Clock::now();
    Holdings before;
    for (uint64_t i = 0; i < kills; ++i) {
      // Each kind once, and whole, before anything is counted: what is made once is made now.
      const bool isFirst = i < kDoings;
      const auto doing = static_cast<Doing>(isFirst ? i : random() % kDoings);
      const auto later = std::chrono::microseconds(isFirst ? 100000 : random() % 4000);
      SCOPED_TRACE("kill " + std::to_string(i) + ", " + std::to_string(later.count()) +
                   " us into doing " + std::to_string(static_cast<int>(doing)));
      survivor.round(doing, later);
      if (i + 1 == kDoings) before = survivor.alone();
    }
    const std::chrono::duration<double> took = Clock::now() - begin;
    if (kills > kDoings) survivor.expectNoMoreThan(before);
    std::printf("[ survivor ] %llu kills in %.1f s, DEVICE_KILL_SEED=%llu\n",
                static_cast<unsigned long long>(kills), took.count(),
                static_cast<unsigned long long>(seed));
  };
  EXPECT_TRUE(runWithVictims(survive, beBusy, static_cast<int>(60 + 4 * kills)));
}

}  // namespace
}  // namespace peerlane::gputest
