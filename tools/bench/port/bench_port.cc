// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/port/bench_port.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <ostream>
#include <thread>

#include "peerlane/core/text.h"
#include "tools/bench/gpu/bench_gpu_pair.h"
#include "tools/bench/port/bench_port_side.h"
#include "tools/measure/byte_units.h"

namespace peerlane::bench {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kKind = 9;
constexpr uint64_t kReplays = 20;  // of a graph, in a sample

// What all rows of both processes have; the parent's are printed. One thread of the process.
class PortRows {
 public:
  PortRows(PortSide& side, GpuReport& report) : side_(side), report_(report) {}

 protected:
  void* stream() const { return side_.stream().handle(); }

  GpuRow row(const std::string& name, const std::string& operation, const std::string& engine,
             uint64_t bytes, bool isLatency, const std::string& ceilingBy) const {
    GpuRow row;
    row.name = name;
    row.row.operation = operation;
    row.row.memory = "vmm";
    row.row.link = side_.route();
    row.row.engine = engine;
    row.row.bytes = bytes;
    row.row.isLatency = isLatency;
    row.row.ceilingBy = ceilingBy;
    return row;
  }
  void add(GpuRow row) {
    if (side_.isParent()) report_.add(std::move(row));
  }

  PortSide& side_;
  GpuReport& report_;
};

// Exchanges, 20 in a graph; copies both ways; signals. One thread of the process.
class PortExchanges : private PortRows {
 public:
  using PortRows::PortRows;

  Status run() {
    PEERLANE_RETURN_IF_ERROR(exchangeByWarp(kKiB));
    PEERLANE_RETURN_IF_ERROR(exchangeByPackets(kKiB));
    for (const uint64_t bytes : {64 * kKiB, kMiB})
      PEERLANE_RETURN_IF_ERROR(exchangeByBlocks(bytes));
    for (const uint64_t bytes : {64 * kKiB, kMiB})
      PEERLANE_RETURN_IF_ERROR(exchangeByResident(bytes));
    for (const uint64_t bytes : {kKiB, 64 * kKiB, kMiB, 16 * kMiB, 128 * kMiB})
      PEERLANE_RETURN_IF_ERROR(exchangeByProxy(bytes));
    for (const uint64_t bytes : {16 * kMiB, 128 * kMiB}) PEERLANE_RETURN_IF_ERROR(copies(bytes));
    return signals();
  }

 private:
  PortGame replays(const GpuGraph& graph, uint64_t times) {
    return {.run = [this, &graph, times] {
      for (uint64_t i = 0; i < times; ++i) PEERLANE_RETURN_IF_ERROR(graph.launch(side_.stream()));
      return side_.stream().wait();
    }};
  }
  Result<PortExchange> exchange(uint64_t bytes, PortEngine engine) {
    PEERLANE_ASSIGN(const PortChannel ready, side_.freshChannel());
    PEERLANE_ASSIGN(const PortChannel data, side_.freshChannel());
    return PortExchange{.ready = ready.deviceHandle(engine),
                        .data = data.deviceHandle(engine),
                        .bytes = bytes,
                        .counters = side_.counters(),
                        .wrong = side_.wrong()};
  }
  RawExchange rawExchange(uint64_t bytes) const {
    return {.mine = side_.words(),
            .theirs = side_.otherWords(),
            .from = side_.source(),
            .to = side_.otherDestination(),
            .bytes = bytes,
            .counters = side_.rawCounters(),
            .wrong = side_.wrong()};
  }

  Status exchangeByWarp(uint64_t bytes) {
    PEERLANE_RETURN_IF_ERROR(side_.freshWords());
    PEERLANE_ASSIGN(const PortExchange what, exchange(bytes, PortEngine::kInline));
    return againstRawWarp(bytes, "one warp", "port_exchange",
                          [&] { return portExchangeByWarp(stream(), what); });
  }

  // One way over the link, against the raw pattern with a handshake and a flag after the bytes.
  Status exchangeByPackets(uint64_t bytes) {
    PEERLANE_RETURN_IF_ERROR(side_.freshWords());
    PEERLANE_ASSIGN(const PortChannel channel, side_.packetChannel());
    const PacketExchange what{.channel = channel.deviceHandle(),
                              .packets = reinterpret_cast<const std::byte*>(side_.words()),
                              .into = side_.destination(),
                              .bytes = bytes,
                              .counter = side_.counters(),
                              .wrong = side_.wrong()};
    return againstRawWarp(bytes, "one warp, by packets", "port_exchange_packets",
                          [&] { return portExchangeByPackets(stream(), what); });
  }

  Status againstRawWarp(uint64_t bytes, const std::string& how, const std::string& operation,
                        const std::function<Status()>& enqueue) {
    const RawExchange raw = rawExchange(bytes);
    PEERLANE_ASSIGN(const auto ours, side_.graphOf(enqueue));
    PEERLANE_ASSIGN(const auto naive,
                    side_.graphOf([&] { return rawExchangeByWarp(stream(), raw); }));
    GpuRow row = this->row("exchange " + formatByteSize(bytes) + ", " + how, operation, "inline",
                           bytes, true, "raw warp");
    PEERLANE_ASSIGN(row.row.outcome,
                    side_.contest(replays(*ours, kReplays), replays(*naive, kReplays),
                                  kReplays * PortSide::kPerGraph, bytes));
    add(std::move(row));
    return Status::ok();
  }

  // One count of blocks, against the same by raw words.
  Result<Outcome> blocksOf(uint64_t bytes, uint32_t blocks, uint64_t samples) {
    PEERLANE_RETURN_IF_ERROR(side_.freshWords());
    PEERLANE_ASSIGN(const PortExchange what, exchange(bytes, PortEngine::kInline));
    const RawExchange raw = rawExchange(bytes);
    PEERLANE_ASSIGN(const auto ours,
                    side_.graphOf([&] { return portExchangeByBlocks(stream(), what, blocks); }));
    PEERLANE_ASSIGN(const auto naive,
                    side_.graphOf([&] { return rawExchangeByBlocks(stream(), raw, blocks); }));
    return side_.contest(replays(*ours, kReplays), replays(*naive, kReplays),
                         kReplays * PortSide::kPerGraph, bytes, samples);
  }
  // The prototype: a resident kernel that copies, asked by a small one.
  Result<Outcome> resident(uint64_t bytes) {
    constexpr uint32_t kBlocks = 8;
    PEERLANE_RETURN_IF_ERROR(side_.freshWords());
    const RawExchange raw = rawExchange(bytes);
    uint64_t* const request = side_.words() + RawExchange::kWords;
    PEERLANE_ASSIGN(const auto graph,
                    side_.graphOf([&] { return rawExchangeByResident(stream(), raw, request); }));
    PortGame game = replays(*graph, kReplays);
    uint64_t before = 0;
    game.begin = [&] {
      const uint64_t exchanges = kReplays * PortSide::kPerGraph;
      PEERLANE_RETURN_IF_ERROR(
          rawResident(side_.otherStream().handle(), raw, request, kBlocks, before, exchanges));
      before += exchanges;
      return Status::ok();
    };
    game.run = [&, play = game.run] {
      PEERLANE_RETURN_IF_ERROR(play());
      return side_.otherStream().wait();
    };
    return side_.contest({}, game, kReplays * PortSide::kPerGraph, bytes);
  }

  Status exchangeByBlocks(uint64_t bytes) {
    uint32_t best = 0;
    double least = 0;
    std::map<std::string, double> swept;
    for (const uint32_t blocks : {8u, 16u, 32u}) {
      PEERLANE_ASSIGN(const Outcome tried, blocksOf(bytes, blocks, 5));
      // One process chooses for both.
      double took = tried.ours.median(), theirs = 0;
      PEERLANE_RETURN_IF_ERROR(side_.line().send(&took, sizeof took));
      PEERLANE_RETURN_IF_ERROR(side_.line().receive(&theirs, sizeof theirs));
      if (!side_.isParent()) took = theirs;
      swept[fmt::format("blocks_{}_us", blocks)] = took;
      swept[fmt::format("raw_blocks_{}_us", blocks)] = tried.ceiling.median();
      if (best == 0 || took < least) {
        best = blocks;
        least = took;
      }
    }
    PEERLANE_ASSIGN(Outcome ours, blocksOf(bytes, best, 15));
    const double sameRaw = ours.ceiling.median();
    GpuRow same = row(fmt::format("exchange {}, {} blocks", formatByteSize(bytes), best),
                      "port_exchange", "inline", bytes, true, "the same raw");
    same.row.blocks = best;
    same.row.outcome = ours;
    same.row.extras = swept;
    PEERLANE_ASSIGN(const Outcome prototype, resident(bytes));
    GpuRow other =
        row(fmt::format("exchange {}, against a resident kernel", formatByteSize(bytes)),
            "port_exchange_resident", "inline", bytes, true, "raw resident kernel of 8 blocks");
    other.row.blocks = best;
    other.row.outcome = ours;
    other.row.outcome.ceiling = prototype.ceiling;
    other.row.outcome.wrong += prototype.wrong;
    other.row.extras["raw_blocks_us"] = sameRaw;
    add(std::move(same));
    add(std::move(other));
    return Status::ok();
  }

  // By the resident port, asked by a warp.
  Status exchangeByResident(uint64_t bytes) {
    PEERLANE_RETURN_IF_ERROR(side_.freshWords());
    PEERLANE_ASSIGN(const PortExchange what, exchange(bytes, PortEngine::kSm));
    PEERLANE_ASSIGN(const auto ours,
                    side_.graphOf([&] { return portExchangeByWarp(stream(), what); }));
    GpuRow row =
        this->row(fmt::format("exchange {}, by the resident port", formatByteSize(bytes)),
                  "port_exchange_sm", "sm", bytes, true, "raw resident kernel of 8 blocks");
    row.row.blocks = PortSide::kResidentBlocks;
    PEERLANE_ASSIGN(row.row.outcome, side_.contest(replays(*ours, kReplays), {},
                                                   kReplays * PortSide::kPerGraph, bytes));
    PEERLANE_ASSIGN(const Outcome prototype, resident(bytes));
    row.row.outcome.ceiling = prototype.ceiling;
    row.row.outcome.wrong += prototype.wrong;
    add(std::move(row));
    return Status::ok();
  }

  // Copies alone: nobody asks for them, or says that they have come.
  PortGame rawCopies(uint64_t bytes, uint64_t times) {
    return {.run = [this, bytes, times] {
      for (uint64_t i = 0; i < times; ++i)
        PEERLANE_RETURN_IF_ERROR(
            rawCopy(stream(), side_.otherDestination(), side_.source(), bytes));
      return side_.stream().wait();
    }};
  }

  // The same exchange by the copy engine and a proxy; large ones against copies alone.
  Status exchangeByProxy(uint64_t bytes) {
    const bool isLarge = bytes >= 16 * kMiB;
    const uint64_t replayed = isLarge ? 2 : kReplays / 2;
    PEERLANE_RETURN_IF_ERROR(side_.freshWords());
    PEERLANE_ASSIGN(const PortExchange what, exchange(bytes, PortEngine::kCe));
    PEERLANE_ASSIGN(const auto ours,
                    side_.graphOf([&] { return portExchangeByWarp(stream(), what); }));
    GpuRow row = this->row("exchange " + formatByteSize(bytes) + ", by the proxy", "port_exchange",
                           "ce", bytes, true, isLarge ? "copy engine both ways" : "");
    const uint64_t times = replayed * PortSide::kPerGraph;
    PortGame game = replays(*ours, replayed);
    game.run = [&, play = game.run] {
      side_.service().wake();
      return play();
    };
    PEERLANE_ASSIGN(
        row.row.outcome,
        side_.contest(game, isLarge ? rawCopies(bytes, times) : PortGame{}, times, bytes));
    add(std::move(row));
    return Status::ok();
  }

  // --- Both ways by the copy engine ---

  // The proxy is woken as the kernel is launched; first requests have rows of their own.
  Status copies(uint64_t bytes) {
    const uint64_t times = bytes < 64 * kMiB ? 128 : 32;
    for (const bool byTurns : {false, true}) {
      PEERLANE_RETURN_IF_ERROR(side_.freshWords());
      PEERLANE_ASSIGN(const PortChannel channel, side_.freshChannel());
      const PortChannelHandle handle = channel.deviceHandle(PortEngine::kCe);
      const PortGame ours{.run = [&] {
        side_.service().wake();
        PEERLANE_RETURN_IF_ERROR(portPuts(stream(), handle, bytes, times, byTurns, side_.wrong()));
        return side_.stream().wait();
      }};
      const PortGame raw = rawCopies(bytes, times);
      GpuRow row = this->row(fmt::format("put {} both ways{}", formatByteSize(bytes),
                                         byTurns ? ", one at a time" : ""),
                             byTurns ? "port_put_by_turns" : "port_put", "ce", bytes, false,
                             "copy engine both ways");
      PEERLANE_ASSIGN(row.row.outcome, side_.contest(ours, raw, times, bytes, 9));
      add(std::move(row));
    }
    return Status::ok();
  }

  // --- Signals ---

  Status signals() {
    const uint64_t rounds = kReplays * 100;
    PEERLANE_RETURN_IF_ERROR(side_.freshWords());
    PEERLANE_ASSIGN(const PortChannel channel, side_.freshChannel());
    const PortSemaphoreHandle semaphore = channel.semaphore().deviceHandle();
    if (semaphore.outbound == nullptr)
      return Status(Code::kNotSupported, "the peer's semaphore is not mapped");
    const PortGame ours{.run = [&] {
      PEERLANE_RETURN_IF_ERROR(
          portSignals(stream(), semaphore, side_.isParent(), rounds, side_.wrong()));
      return side_.stream().wait();
    }};
    uint64_t before = 0;
    const PortGame raw{.run = [&] {
      PEERLANE_RETURN_IF_ERROR(rawSignals(stream(), side_.words(), side_.otherWords(),
                                          side_.isParent(), before, rounds, side_.wrong()));
      before += rounds;
      return side_.stream().wait();
    }};
    GpuRow row = this->row("signal, one way", "port_signal", "inline", 8, true, "raw flag");
    PEERLANE_ASSIGN(row.row.outcome, side_.contest(ours, raw, rounds * 2, 0));
    add(std::move(row));
    return Status::ok();
  }
};

// Requests, what the proxy costs, and what it takes from other work. One thread of the process.
class PortRequests : private PortRows {
 public:
  using PortRows::PortRows;

  Status run() {
    for (const auto& [blocks, threads] : {std::pair(1u, 1u), {1u, 32u}, {32u, 128u}})
      PEERLANE_RETURN_IF_ERROR(requests(blocks, threads));
    PEERLANE_RETURN_IF_ERROR(firstRequests());
    PEERLANE_RETURN_IF_ERROR(idleProxy());
    for (const bool byTensorCores : {true, false}) PEERLANE_RETURN_IF_ERROR(besides(byTensorCores));
    return side_.service().status();
  }

 private:
  // The host's end of a raw ring.
  struct Ring {
    RawRing device;
    uint64_t next = 0;
    bool pop() {
      constexpr uint64_t kLap = uint64_t{1} << 63;
      uint64_t* const slot = device.slots + next % RawRing::kSlots * 2;
      const uint64_t mark = (next / RawRing::kSlots & 1) != 0 ? 0 : kLap;
      const uint64_t first = std::atomic_ref(slot[0]).load(std::memory_order_acquire);
      const uint64_t second = std::atomic_ref(slot[1]).load(std::memory_order_acquire);
      if ((first & kLap) != mark || (second & kLap) != mark) return false;
      std::atomic_ref(*device.tail).store(++next, std::memory_order_release);
      return true;
    }
  };

  Status requests(uint32_t blocks, uint32_t threads) {
    const uint64_t each = std::max<uint64_t>(100000 / (uint64_t{blocks} * threads), 1);
    const uint64_t all = each * blocks * threads;
    PEERLANE_RETURN_IF_ERROR(side_.freshWords());
    PEERLANE_ASSIGN(const PortChannel channel, side_.freshChannel());
    const PortChannelHandle handle = channel.deviceHandle();
    std::atomic<uint64_t> handled{0};  // by the proxy
    PEERLANE_RETURN_IF_ERROR(side_.service().onRequest(kKind, [&handled](const port::PortRequest&) {
      handled.fetch_add(1, std::memory_order_release);
      return Status::ok();
    }));
    // Slots and tail on the host, the rest in the words of this GPU.
    constexpr size_t kHostBytes = size_t{4} * 4096;
    const std::unique_ptr<std::byte, void (*)(void*)> hostPages(
        static_cast<std::byte*>(std::aligned_alloc(4096, kHostBytes)), std::free);
    std::fill_n(hostPages.get(), kHostBytes, std::byte{0});
    PEERLANE_ASSIGN(const auto pinned, PinnedPages::create(hostPages.get(), kHostBytes));
    auto* const host = reinterpret_cast<uint64_t*>(hostPages.get());
    RawRing raw{.slots = static_cast<uint64_t*>(pinned->onGpu(host)),
                .tail = static_cast<uint64_t*>(pinned->onGpu(host + RawRing::kSlots * 2)),
                .head = side_.words(),
                .tailSeen = side_.words() + 32};
    Ring ring{.device = raw};
    ring.device.slots = host;
    ring.device.tail = host + RawRing::kSlots * 2;

    // The other process has nothing to do.
    uint64_t expected = 0;
    const PortGame ours{.run = [&] {
      if (!side_.isParent()) return Status::ok();
      expected += all;
      PEERLANE_RETURN_IF_ERROR(
          portRequests(stream(), handle, kKind, blocks, threads, each, side_.wrong()));
      PEERLANE_RETURN_IF_ERROR(
          spinUntil([&] { return handled.load(std::memory_order_acquire) >= expected; },
                    [] { return false; }, "requests"));
      return side_.stream().wait();
    }};
    const PortGame naive{.run = [&] {
      if (!side_.isParent()) return Status::ok();
      PEERLANE_RETURN_IF_ERROR(rawRequests(stream(), raw, blocks, threads, each, side_.wrong()));
      const uint64_t end = ring.next + all;
      PEERLANE_RETURN_IF_ERROR(spinUntil(
          [&] {
            while (ring.next < end && ring.pop()) {
            }
            return ring.next == end;
          },
          [] { return false; }, "raw requests"));
      return side_.stream().wait();
    }};
    GpuRow row = this->row(fmt::format("request, pushed by {} x {} threads", blocks, threads),
                           "port_request", "proxy", 16, true, "raw ring");
    row.row.blocks = blocks;
    PEERLANE_ASSIGN(row.row.outcome, side_.contest(ours, naive, all, 0, 9));
    PEERLANE_RETURN_IF_ERROR(side_.service().onRequest(kKind, nullptr));
    add(std::move(row));
    return Status::ok();
  }

  // How long a thread that sleeps in poll() takes to see that it was woken, after 20 ms.
  static Result<Samples> threadWakes(uint64_t samples) {
    const int bell = ::eventfd(0, EFD_CLOEXEC);
    if (bell < 0) return Status::system(errno, "eventfd");
    std::atomic<double> seen{0};
    std::atomic<bool> ends{false};
    std::thread sleeper([&] {
      while (!ends.load()) {
        pollfd look{.fd = bell, .events = POLLIN, .revents = 0};
        (void)::poll(&look, 1, -1);
        seen.store(gpuBenchNow());
        eventfd_t count = 0;
        (void)::eventfd_read(bell, &count);
      }
    });
    Samples took;
    for (uint64_t i = 0; i <= samples; ++i) {
      std::this_thread::sleep_for(20ms);
      const double start = gpuBenchNow();
      ends.store(i == samples);
      (void)::eventfd_write(bell, 1);
      while (seen.load() < start) {
      }
      if (i < samples) took.add(seen.load() - start);
    }
    sleeper.join();
    ::close(bell);
    return took;
  }

  // From the launch until the handler has it, after 20 ms of idleness; the limit: until the host
  // sees a word that a kernel has stored.
  Status firstRequests() {
    constexpr uint64_t kSamples = 200;
    PEERLANE_RETURN_IF_ERROR(side_.freshWords());
    PEERLANE_ASSIGN(const PortChannel channel, side_.freshChannel());
    if (!side_.isParent()) return side_.line().meet();
    const PortChannelHandle handle = channel.deviceHandle();
    std::atomic<uint64_t> handled{0};  // by the proxy, as the next one
    std::atomic<double> at{0};
    PEERLANE_RETURN_IF_ERROR(side_.service().onRequest(kKind, [&](const port::PortRequest&) {
      at.store(gpuBenchNow(), std::memory_order_relaxed);
      handled.fetch_add(1, std::memory_order_release);
      return Status::ok();
    }));
    alignas(4096) static std::byte hostPage[4096];
    PEERLANE_ASSIGN(const auto pinned, PinnedPages::create(hostPage, sizeof hostPage));
    auto& word = *reinterpret_cast<uint64_t*>(hostPage);
    auto* const onGpu = static_cast<uint64_t*>(pinned->onGpu(hostPage));
    const DeviceStream deviceStream = DeviceStream::cuda(stream());
    Samples unaided, woken, raw;
    uint64_t expected = 0;
    for (uint64_t i = 0; i < kSamples; ++i) {
      for (const bool wakes : {false, true}) {
        std::this_thread::sleep_for(20ms);
        ++expected;
        const double start = gpuBenchNow();
        if (wakes) PEERLANE_RETURN_IF_ERROR(side_.service().wakeOn(deviceStream));
        PEERLANE_RETURN_IF_ERROR(portRequests(stream(), handle, kKind, 1, 1, 1, side_.wrong()));
        PEERLANE_RETURN_IF_ERROR(
            spinUntil([&] { return handled.load(std::memory_order_acquire) >= expected; },
                      [] { return false; }, "a first request"));
        (wakes ? woken : unaided).add(at.load(std::memory_order_relaxed) - start);
        PEERLANE_RETURN_IF_ERROR(side_.stream().wait());
      }
      std::this_thread::sleep_for(20ms);
      const double start = gpuBenchNow();
      PEERLANE_RETURN_IF_ERROR(raiseWord(stream(), onGpu, i + 1));
      PEERLANE_RETURN_IF_ERROR(
          spinUntil([&] { return std::atomic_ref(word).load(std::memory_order_acquire) >= i + 1; },
                    [] { return false; }, "a raw word"));
      raw.add(gpuBenchNow() - start);
      PEERLANE_RETURN_IF_ERROR(side_.stream().wait());
    }
    PEERLANE_RETURN_IF_ERROR(side_.service().onRequest(kKind, nullptr));
    PEERLANE_ASSIGN(const Samples thread, threadWakes(kSamples));
    for (const bool wakes : {false, true}) {
      GpuRow row = this->row(wakes ? "first request after wakeOn" : "first request after 20 ms",
                             wakes ? "port_first_request_woken" : "port_first_request", "proxy", 16,
                             true, "launch and a word of the host");
      row.row.outcome.ours = wakes ? woken : unaided;
      row.row.outcome.ceiling = raw;
      row.row.extras["thread_wake_p50_us"] = thread.median();
      row.row.extras["thread_wake_p99_us"] = thread.percentile(99);
      row.note =
          fmt::format("p99 {:.1f} us, limit's {:.1f} us; a thread wakes in {:.1f} us, p99 {:.1f}",
                      row.row.p99(), raw.percentile(99), thread.median(), thread.percentile(99));
      add(std::move(row));
    }
    return side_.line().meet();
  }

  static double cpuSeconds() {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }
  static double idleShare(std::chrono::seconds time) {
    std::this_thread::sleep_for(100ms);
    const double before = cpuSeconds();
    std::this_thread::sleep_for(time);
    return (cpuSeconds() - before) / static_cast<double>(time.count()) * 100;
  }
  // Of one core, with the proxy and without it.
  Status idleProxy() {
    constexpr auto kTime = 3s;
    if (!side_.isParent()) {
      // It may be of the same process.
      side_.service().stop();
      PEERLANE_RETURN_IF_ERROR(side_.line().meet());
      PEERLANE_RETURN_IF_ERROR(side_.line().meet());
      return side_.service().start();
    }
    PEERLANE_RETURN_IF_ERROR(side_.line().meet());
    const uint64_t naps = side_.service().naps();
    const double with = idleShare(kTime);
    const uint64_t slept = side_.service().naps() - naps;
    side_.service().stop();
    const double without = idleShare(kTime);
    PEERLANE_RETURN_IF_ERROR(side_.service().start());
    GpuRow row = this->row("idle proxy", "port_idle", "proxy", 0, true, "");
    row.unit = "% CPU";
    row.value = with - without;
    row.row.extras["with_percent"] = with;
    row.row.extras["without_percent"] = without;
    row.row.extras["naps_per_second"] = static_cast<double>(slept) / (kTime.count() + 0.1);
    add(std::move(row));
    return side_.line().meet();
  }

  // --- The cost of a copy by the proxy to other work ---

  struct Besides {
    double copyGbps = 0;
    double teraflops = 0;  // of the product
    Samples alone, ours, raw;
  };
  void addBesides(bool byTensorCores, uint64_t bytes, const Besides& took) {
    const auto slowdown = [&](const Samples& with) {
      return (with.median() / took.alone.median() - 1) * 100;
    };
    GpuRow row = this->row(byTensorCores ? "bf16 product beside a put of 128 MiB"
                                         : "copy kernel beside a put of 128 MiB",
                           byTensorCores ? "port_beside_product" : "port_beside_memory", "ce",
                           bytes, true, "beside raw copies");
    row.row.outcome.ours = took.ours;
    row.row.outcome.ceiling = took.raw;
    row.row.extras["copy_gbps"] = took.copyGbps;
    row.row.extras["alone_us"] = took.alone.median();
    row.row.extras["slowdown_percent"] = slowdown(took.ours);
    row.row.extras["raw_slowdown_percent"] = slowdown(took.raw);
    if (byTensorCores) row.row.extras["tflops"] = took.teraflops;
    row.note = fmt::format("{:.2f} % slower, beside raw copies {:.2f} %{}", slowdown(took.ours),
                           slowdown(took.raw), side_.isOneGpu() ? "; to the host" : "");
    add(std::move(row));
  }

  Status besides(bool byTensorCores) {
    constexpr uint64_t kBytes = 128 * kMiB;
    constexpr uint32_t kSize = 8192;
    PEERLANE_RETURN_IF_ERROR(side_.freshWords());
    PEERLANE_ASSIGN(const PortChannel channel, side_.leavingChannel());
    if (!side_.isParent()) return side_.line().meet();
    const PortChannelHandle handle = channel.deviceHandle(PortEngine::kCe);
    std::byte* const destination = handle.remoteEntry.address;
    constexpr uint64_t kMatrix = uint64_t{kSize} * kSize;
    PEERLANE_ASSIGN(const auto inputs, GpuBuffer::create(kMatrix * 4));
    PEERLANE_ASSIGN(const auto results, GpuBuffer::create(kMatrix * 4));
    const auto work = [&]() -> Status {
      if (byTensorCores)
        return multiplyMatrices(stream(), inputs->data(), inputs->data() + kMatrix * 2,
                                reinterpret_cast<float*>(results->data()), kSize);
      for (int i = 0; i < 40; ++i)
        PEERLANE_RETURN_IF_ERROR(
            streamMemory(stream(), inputs->data(), results->data(), kMatrix * 4));
      return Status::ok();
    };
    constexpr uint64_t kTimed = 8;
    PEERLANE_ASSIGN(const double copying, timeOnGpu(side_.otherStream().handle(), [&] {
                      for (uint64_t i = 0; i < kTimed; ++i)
                        PEERLANE_RETURN_IF_ERROR(rawCopy(side_.otherStream().handle(), destination,
                                                         side_.source(), kBytes));
                      return Status::ok();
                    }));
    Samples alone, ours, raw;
    for (uint64_t sample = 0; sample < 8; ++sample) {
      PEERLANE_ASSIGN(const double first, timeOnGpu(stream(), work));
      // Copies for longer than the work and everything before it take.
      const auto copies = static_cast<uint64_t>((first * 1.5 + 5000) / (copying / kTimed)) + 4;
      PEERLANE_RETURN_IF_ERROR(
          portPush(side_.otherStream().handle(), handle, kBytes, copies, side_.wrong()));
      PEERLANE_RETURN_IF_ERROR(side_.otherStream().wait());
      std::this_thread::sleep_for(1ms);
      PEERLANE_ASSIGN(const double second, timeOnGpu(stream(), work));
      PEERLANE_RETURN_IF_ERROR(channel.flush());
      for (uint64_t i = 0; i < copies; ++i)
        PEERLANE_RETURN_IF_ERROR(
            rawCopy(side_.otherStream().handle(), destination, side_.source(), kBytes));
      std::this_thread::sleep_for(1ms);
      PEERLANE_ASSIGN(const double third, timeOnGpu(stream(), work));
      PEERLANE_RETURN_IF_ERROR(side_.otherStream().wait());
      if (sample < 2) continue;
      alone.add(first);
      ours.add(second);
      raw.add(third);
    }
    Besides row{
        .copyGbps = kTimed * kBytes / copying * 1e-3, .alone = alone, .ours = ours, .raw = raw};
    if (byTensorCores) row.teraflops = 2.0 * kSize * kSize * kSize / alone.median() * 1e-6;
    addBesides(byTensorCores, kBytes, row);
    return side_.line().meet();
  }
};

Status runSide(bool isParent, const std::vector<int>& gpus, int fd, GpuReport& report) {
  PortLine line(fd);
  const bool isOneGpu = gpus[0] == gpus[1];
  PEERLANE_ASSIGN(const auto side,
                  PortSide::create(isParent, gpus[isParent ? 0 : 1], isOneGpu, line));
  if (isParent) {
    GpuReportHead head;
    for (const int gpu : gpus)
      head.gpus.push_back("cuda:" + std::to_string(gpu) + " " + nameOfGpu(gpu));
    head.versions = gpuVersions();
    head.route = side->route();
    report.begin(head);
    if (isOneGpu)
      report.say("# both sides on one GPU, in one process: bytes go through its own memory");
  }
  PEERLANE_RETURN_IF_ERROR(PortExchanges(*side, report).run());
  return PortRequests(*side, report).run();
}

Status makeLine(int fds[2]) {
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0) return Status::ok();
  return Status::system(errno, "socketpair");
}

// Kernels of two processes do not run at once on one GPU.
Status runBothSides(const std::vector<int>& gpus, GpuReport& report) {
  int fds[2];
  PEERLANE_RETURN_IF_ERROR(makeLine(fds));
  Status theirs;
  std::thread other([&] { theirs = runSide(false, gpus, fds[1], report); });
  const Status mine = runSide(true, gpus, fds[0], report);
  other.join();
  return mine.isOk() || (mine.code() == Code::kPeerLost && !theirs.isOk()) ? theirs : mine;
}

}  // namespace

Status runPortBench(const BenchOptions& options, std::ostream& out) {
  BenchOptions asked = options;
  if (!asked.isForGpus()) asked.device = "cuda";
  PEERLANE_ASSIGN(const std::vector<int> wanted, gpusOf(asked));
  int fds[2];
  PEERLANE_RETURN_IF_ERROR(makeLine(fds));
  out.flush();
  GpuReport report(out);
  // CUDA does not survive a fork: each asks for itself.
  const pid_t child = ::fork();
  if (child < 0) return Status::system(errno, "fork");
  const bool isParent = child != 0;
  if (!isParent) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::close(fds[isParent ? 1 : 0]);
  // Whole graphs of kernels that wait stand in a queue; none of the proxy's work may come after
  // them.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const auto run = [&]() -> Status {
    const auto gpus = chooseGpus(wanted);
    if (!gpus.isOk()) {
      ::close(fds[isParent ? 0 : 1]);
      return gpus.status();
    }
    if ((*gpus)[0] != (*gpus)[1]) return runSide(isParent, *gpus, fds[isParent ? 0 : 1], report);
    ::close(fds[isParent ? 0 : 1]);
    return isParent ? runBothSides(*gpus, report) : Status::ok();
  };
  Status status = run();
  if (!isParent) {
    // A side that lost the other one has nothing to add to the other's message.
    if (!status.isOk() && status.code() != Code::kPeerLost) {
      const std::string text = "peerlane: the other process: " + status.toString() + "\n";
      (void)!::write(STDERR_FILENO, text.data(), text.size());
    }
    ::_exit(status.isOk() ? 0 : 1);
  }
  int ended = 0;
  ::waitpid(child, &ended, 0);
  if (status.isOk() && ended != 0) status = Status(Code::kPeerLost, "the other process has failed");
  if (!options.jsonFile.empty())
    PEERLANE_RETURN_IF_ERROR(report.writeJson(options.jsonFile, options.appendJson));
  PEERLANE_RETURN_IF_ERROR(status);
  return report.verdict();
}

}  // namespace peerlane::bench
