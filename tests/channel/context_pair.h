// SPDX-License-Identifier: Apache-2.0
//
// ContextPair: two connected contexts of one process, over the route a test asks for; memory whose
// every byte is accounted for; and what tests of all routes begin with. External synchronization
// required.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/peerlane.h"
#include "tests/core/expect_ok.h"
#include "tests/core/soon.h"

namespace peerlane {

// A link with one of its engines.
struct RouteCase {
  const char* name;
  const char* link;
  ShmEngine shmEngine;
  bool shared;         // test memory is of the kind that peers can map
  const char* engine;  // who copies then
};
inline std::ostream& operator<<(std::ostream& out, const RouteCase& route) {
  return out << route.name;
}
inline std::string routeName(const testing::TestParamInfo<RouteCase>& info) {
  return info.param.name;
}
inline constexpr RouteCase kSelf{"self", "self", ShmEngine::kAuto, false, "mapped"};
inline constexpr RouteCase kMapped{"mapped", "shm", ShmEngine::kMapped, true, "mapped"};
inline constexpr RouteCase kCma{"cma", "shm", ShmEngine::kCma, false, "cma"};
inline constexpr RouteCase kRing{"ring", "shm", ShmEngine::kRing, false, "ring"};
inline constexpr RouteCase kTcp{"tcp", "tcp", ShmEngine::kAuto, false, "socket"};
inline constexpr RouteCase kVerbs{"verbs", "verbs", ShmEngine::kAuto, false, "nic"};
inline auto everyRoute() {
  return testing::Values(kSelf, kMapped, kCma, kRing, kTcp);
}
// For programs whose environment names a libibverbs that has a device.
inline auto everyRouteAndVerbs() {
  return testing::Values(kSelf, kMapped, kCma, kRing, kTcp, kVerbs);
}

inline Config configFor(const RouteCase& route) {
  Config config;
  config.links = {route.link};
  config.shmEngine = route.shmEngine;
  if (const char* library = std::getenv("PEERLANE_IBV_SO")) config.ibvLibrary = library;
  return config;
}

struct ContextPair {
  explicit ContextPair(const Config& config) : ContextPair(config, config) {}
  ContextPair(const Config& forA, const Config& forB) {
    a = MUST(Context::create({forA, {}, ""}));
    b = MUST(Context::create({forB, {}, ""}));
    toB = MUST(a->connect(b->ticket(), kSoon));
    toA = MUST(b->accept(kSoon));
  }
  std::unique_ptr<Context> a;
  std::unique_ptr<Context> b;
  Peer toB;  // a's handle
  Peer toA;  // b's handle
};

// The first byte that differs, or `bytes`. Not instrumented: with both ends in one process, the
// thread sanitizer does not see that an answer over a ring or socket, or a word in another mapping
// of the same page, came after the bytes. That it did is what the tests look at.
__attribute__((noinline, no_sanitize("thread"))) inline size_t firstDifference(const std::byte* a,
                                                                               const std::byte* b,
                                                                               size_t bytes) {
  for (size_t i = 0; i < bytes; ++i)
    if (a[i] != b[i]) return i;
  return bytes;
}

// How many bytes are `value`. Not instrumented either: where nothing orders the bytes for the
// thread sanitizer, it makes a report of each, and takes minutes for a few MiB even if they are
// excused.
__attribute__((noinline, no_sanitize("thread"))) inline size_t countOf(const std::byte* at,
                                                                       size_t bytes,
                                                                       std::byte value) {
  size_t count = 0;
  for (size_t i = 0; i < bytes; ++i) count += at[i] == value;
  return count;
}

// Registered memory between guard bytes, filled with a pattern of its own, and a shadow of what
// should be in it. Its registration ends before its memory does.
class TestMemory {
 public:
  static constexpr size_t kGuardBytes = 256;

  TestMemory(Context& context, size_t bytes, bool shared, Access access = Access::kRemoteReadWrite,
             uint64_t seed = 1)
      : context_(context) {
    const size_t all = bytes + 2 * kGuardBytes;
    if (shared) {
      holder_ = MUST(context.allocate(all));
      base_ = holder_.data();
    } else {
      heap_.resize(all);
      base_ = heap_.data();
    }
    shadow_.resize(all);
    for (size_t i = 0; i < all; ++i)
      shadow_[i] = static_cast<std::byte>((i * 31 + i / 253 + seed * 77) & 0xff);
    std::memcpy(base_, shadow_.data(), all);
    region_ = MUST(context.registerRegion(data(), bytes, access));
  }
  ~TestMemory() {
    for (const Region& each : {region_, holder_}) {
      if (!each) continue;
      const Status freed = context_.unregister(each, kSoon);
      EXPECT_TRUE(freed.isOk()) << freed.toString();
    }
  }
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;

  std::byte* data() const { return base_ + kGuardBytes; }
  size_t bytes() const { return region_.bytes(); }
  Region& region() { return region_; }
  // As seen by `owner`'s peer.
  RemoteRegion importedBy(const Peer& peer) const {
    return MUST(peer.importRegion(region_.share()));
  }
  std::byte* shadow() { return shadow_.data() + kGuardBytes; }
  // The registration is the test's own business from now on.
  Region releaseRegion() { return std::exchange(region_, Region()); }
  // The context goes, and takes its registrations with it.
  void abandon() { region_ = holder_ = Region(); }

  // Every byte, guards included, is what the shadow says.
  testing::AssertionResult isAsExpected() const {
    const size_t i = firstDifference(base_, shadow_.data(), shadow_.size());
    if (i == shadow_.size()) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << "byte " << static_cast<int64_t>(i) - static_cast<int64_t>(kGuardBytes)
           << " is not what it should be (" << static_cast<int>(shadow_[i]) << ")";
  }

 private:
  Context& context_;
  std::vector<std::byte> heap_;
  Region holder_;
  std::byte* base_ = nullptr;
  std::vector<std::byte> shadow_;
  Region region_;
};

// A test that is run over every route.
class RouteTest : public testing::TestWithParam<RouteCase> {
 protected:
  RouteTest() : pair_(configFor(GetParam())) {}
  std::unique_ptr<TestMemory> memory(Context& context, size_t bytes, uint64_t seed,
                                     Access access = Access::kRemoteReadWrite) {
    return std::make_unique<TestMemory>(context, bytes, GetParam().shared, access, seed);
  }
  ContextPair pair_;
};

// With memory at a, as much at b, and b's as a reaches it (not imported yet).
class NearAndFarTest : public RouteTest {
 protected:
  explicit NearAndFarTest(size_t bytes)
      : near_(memory(*pair_.a, bytes, 1)),
        far_(memory(*pair_.b, bytes, 2)),
        remote_(far_->importedBy(pair_.toB)) {}
  std::unique_ptr<TestMemory> near_;
  std::unique_ptr<TestMemory> far_;
  RemoteRegion remote_;
};

}  // namespace peerlane
