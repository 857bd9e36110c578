// SPDX-License-Identifier: Apache-2.0
//
// Two services of the host, on two contexts that are connected, with one channel between them:
// what most tests of port channels begin with. For tests.
#pragma once

#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "peerlane/channel/port/port_channel.h"
#include "tests/channel/context_pair.h"
#include "tests/core/expect_ok.h"

namespace peerlane {

inline constexpr port::ThisThread kThread;
inline constexpr uint64_t kSoonNs = std::chrono::nanoseconds(kSoon).count();

// Numbers that say where they belong, and whether they are there. Not instrumented, for the reason
// of firstDifference().
__attribute__((noinline, no_sanitize("thread"))) inline void fillWords(std::byte* at,
                                                                       uint64_t words,
                                                                       uint32_t first) {
  auto* const word = reinterpret_cast<volatile uint32_t*>(at);
  for (uint64_t i = 0; i < words; ++i) word[i] = first + static_cast<uint32_t>(i) * 7;
}
// The first one that is wrong, or `words`.
__attribute__((noinline, no_sanitize("thread"))) inline uint64_t firstWrongWord(const std::byte* at,
                                                                                uint64_t words,
                                                                                uint32_t first) {
  const auto* const word = reinterpret_cast<const volatile uint32_t*>(at);
  for (uint64_t i = 0; i < words; ++i)
    if (word[i] != first + static_cast<uint32_t>(i) * 7) return i;
  return words;
}

// One side: its service, its memory, and its channel to the other side.
struct PortSide {
  Context* context = nullptr;
  Peer peer;
  std::vector<std::byte> heap;  // of memory that no peer can map
  Region region;
  RemoteRegion theirs;
  std::unique_ptr<ProxyService> service;
  PortConnection connection;
  PortSemaphore semaphore;
  MemoryId local = 0;
  MemoryId remote = 0;
  PortChannel channel;

  std::byte* data() const { return region.data(); }
  PortChannelHandle handle(PortEngine engine = PortEngine::kAuto) const {
    return channel.deviceHandle(engine);
  }

  Status open(uint64_t bytes, const ProxyServiceOptions& options, bool isShared) {
    PEERLANE_ASSIGN(service, ProxyService::create(*context, options));
    if (isShared) {
      PEERLANE_ASSIGN(region, context->allocate(bytes, {.device = options.device}));
      return Status::ok();
    }
    heap.resize(bytes);
    PEERLANE_ASSIGN(region, context->registerRegion(heap.data(), bytes, Access::kRemoteReadWrite));
    return Status::ok();
  }
  // Both sides at once: it waits for the other one.
  Status join(const RegionReference::Encoded& share, uint32_t tag) {
    PEERLANE_ASSIGN(theirs, peer.importRegion(share));
    PEERLANE_ASSIGN(local, service->addMemory(region));
    PEERLANE_ASSIGN(remote, service->addMemory(theirs));
    PEERLANE_ASSIGN(connection, service->connect(peer));
    PEERLANE_ASSIGN(channel, link(connection, tag));
    semaphore = channel.semaphore();
    return Status::ok();
  }
  // One more channel with the same two memories. Both sides at once.
  Result<PortChannel> link(const PortConnection& by, uint32_t tag,
                           std::chrono::nanoseconds timeout = kSoon) const {
    PEERLANE_ASSIGN(const PortSemaphore added, service->addSemaphore(by, tag, timeout));
    return service->channel(added, remote, local);
  }
};

struct PortPair {
  PortSide a;
  PortSide b;

  PortPair() = default;
  PortPair(const PortPair&) = delete;
  PortPair& operator=(const PortPair&) = delete;
  ~PortPair() { close(); }
  // Services first: they use the memory of both sides.
  void close() {
    a.service.reset();
    b.service.reset();
    for (PortSide* side : {&a, &b}) {
      if (!side->region) continue;
      EXPECT_OK(side->context->unregister(side->region, kSoon));
      side->region = Region();
    }
  }

  // `isShared`: memory that peers can map. `starts`: the proxies run.
  Status open(ContextPair& contexts, uint64_t bytes, const ProxyServiceOptions& options = {},
              bool isShared = true, bool starts = true) {
    a.context = contexts.a.get();
    b.context = contexts.b.get();
    a.peer = contexts.toB;
    b.peer = contexts.toA;
    PEERLANE_RETURN_IF_ERROR(a.open(bytes, options, isShared));
    PEERLANE_RETURN_IF_ERROR(b.open(bytes, options, isShared));
    Status there;
    std::thread other([&] { there = b.join(a.region.share(), 7); });
    const Status here = a.join(b.region.share(), 7);
    other.join();
    PEERLANE_RETURN_IF_ERROR(here);
    PEERLANE_RETURN_IF_ERROR(there);
    if (!starts) return Status::ok();
    PEERLANE_RETURN_IF_ERROR(a.service->start());
    return b.service->start();
  }
  // One more channel, a's end and b's, by a connection of its own where asked for.
  std::pair<PortChannel, PortChannel> link(uint32_t tag, bool hasOwnConnection = false) {
    const auto by = [&](const PortSide& side) {
      return hasOwnConnection ? MUST(side.service->connect(side.peer)) : side.connection;
    };
    PortChannel there;
    std::thread other([&] { there = MUST(b.link(by(b), tag)); });
    PortChannel here = MUST(a.link(by(a), tag));
    other.join();
    return {here, there};
  }
};

// Over every route, with memory of the kind that the route is about.
class PortRouteTest : public RouteTest {
 protected:
  Status open(uint64_t bytes, const ProxyServiceOptions& options = {}, bool starts = true) {
    return ports_.open(pair_, bytes, options, GetParam().shared, starts);
  }
  PortSide& a() { return ports_.a; }
  PortSide& b() { return ports_.b; }
  PortPair ports_;
};

// Between two contexts that map each other's memory.
class PortTest : public testing::Test {
 protected:
  PortTest() : pair_(configFor(kMapped)) {}
  Status open(uint64_t bytes, const ProxyServiceOptions& options = {}, bool starts = true) {
    return ports_.open(pair_, bytes, options, true, starts);
  }
  PortSide& a() { return ports_.a; }
  PortSide& b() { return ports_.b; }
  ContextPair pair_;
  PortPair ports_;
};

}  // namespace peerlane
