// SPDX-License-Identifier: Apache-2.0
//
// Regions whose memory its provider takes back while a peer uses it: what is under way ends
// Revoked, other regions go on, and the region stays, as Revoked, until its user unregisters it.
#include <sys/mman.h>

#include <atomic>
#include <optional>
#include <span>
#include <thread>

#include "peerlane/core/limits.h"
#include "peerlane/memory/region_table.h"
#include "tests/channel/context_pair.h"
#include "tests/core/soon.h"
#include "tests/fake/fake_provider.h"

namespace peerlane {
namespace {

using std::chrono::milliseconds;
constexpr size_t kRegionBytes = 64 << 10;
// Notifications that the peer's inbox holds before its program asks for them.
constexpr int kInbox = limits::kNotificationSlots;

class RevokedRegion : public testing::TestWithParam<RouteCase> {
 protected:
  RevokedRegion() : pair(configFor(GetParam())) {
    provider = std::make_shared<FakeProvider>("arena");
    id = MUST(pair.a->addProvider(provider));
    arena = MUST(SharedSegment::create(4 * kRegionBytes, {}));
    provider->own(arena->data(), arena->bytes(), GetParam().shared ? arena.get() : nullptr);
    other.emplace(*pair.a, kRegionBytes, GetParam().shared);
    source.emplace(*pair.b, kRegionBytes, GetParam().shared);
    region = MUST(pair.a->registerRegion(arena->data(), kRegionBytes, Access::kRemoteReadWrite));
    ticket = provider->tickets().at(0);
  }

  Result<Transfer> postInto(const RemoteRegion& remote, const Notify& notify = {}) {
    const Block block{&source->region(), 0, &remote, 0, kRegionBytes};
    return put(pair.toA, {&block, 1}, {.notify = notify});
  }
  Status putInto(const RemoteRegion& remote, const Notify& notify = {}) {
    auto transfer = postInto(remote, notify);
    return transfer.isOk() ? transfer->wait(kSoon) : transfer.status();
  }
  // The next put with a notification stays under way.
  void fillInbox(const RemoteRegion& remote) {
    for (int i = 0; i < kInbox; ++i) EXPECT_OK(putInto(remote, letter(i)));
  }
  static Notify letter(int tag) {
    return {.message = std::span<const std::byte>(), .tag = static_cast<uint32_t>(tag)};
  }

  ContextPair pair;
  std::shared_ptr<FakeProvider> provider;
  uint64_t id = 0;
  std::unique_ptr<SharedSegment> arena;
  std::optional<TestMemory> other, source;
  Region region;
  uint64_t ticket = 0;
};

INSTANTIATE_TEST_SUITE_P(Routes, RevokedRegion, everyRoute(), routeName);

TEST_P(RevokedRegion, APutUnderWayEndsRevokedAndAnotherRegionGoesOn) {
  RemoteRegion remote = MUST(pair.toA.importRegion(region.share()));
  const RemoteRegion goesOn = other->importedBy(pair.toA);
  EXPECT_OK(putInto(remote));
  fillInbox(goesOn);
  Transfer underWay = MUST(postInto(remote, letter(100)));
  EXPECT_EQ(underWay.wait(milliseconds(1)).code(), Code::kTimeout);

  EXPECT_OK(invalidateMemory(ticket, kSoon));
  EXPECT_EQ(underWay.wait(kSoon).code(), Code::kRevoked) << underWay.status().toString();

  // Nothing new begins with it, at either side, and the answer is not "unknown".
  EXPECT_EQ(putInto(remote).code(), Code::kRevoked);
  const auto importedAnew = [&] {
    return MUST(pair.toA.importRegion(region.share())).prepare(kSoon);
  };
  EXPECT_EQ(importedAnew().code(), Code::kRevoked) << "by a peer that has it still imported";
  remote = RemoteRegion();
  underWay = Transfer();
  EXPECT_EQ(importedAnew().code(), Code::kRevoked) << "by one that asks the owner";
  EXPECT_EQ(region.status().code(), Code::kRevoked);
  const RemoteRegion atB = source->importedBy(pair.toB);
  const Block local{&region, 0, &atB, 0, kRegionBytes};
  const auto refused = put(pair.toB, {&local, 1});
  EXPECT_EQ(refused.status().code(), Code::kRevoked) << refused.status().toString();
  EXPECT_NE(pair.a->dump().find("bytes revoked"), std::string::npos) << pair.a->dump();

  // The inbox goes on behind the notification that was given up.
  for (int i = 0; i < kInbox; ++i)
    EXPECT_EQ(MUST(waitNotification(pair.toB, kSoon)).tag, static_cast<uint32_t>(i));
  EXPECT_OK(putInto(goesOn, letter(200)));
  EXPECT_EQ(MUST(waitNotification(pair.toB, kSoon)).tag, 200u);
  EXPECT_EQ(firstDifference(other->data(), source->data(), kRegionBytes), kRegionBytes);
  std::memcpy(other->shadow(), source->data(), kRegionBytes);

  // Until its user lets go of it.
  EXPECT_EQ(provider->tickets().size(), 1u);
  EXPECT_OK(invalidateMemory(ticket, kSoon));
  EXPECT_OK(pair.a->unregister(region, kSoon));
  EXPECT_TRUE(provider->tickets().empty());
  EXPECT_EQ(pair.a->dump().find("revoked"), std::string::npos) << pair.a->dump();
  EXPECT_EQ(importedAnew().code(), Code::kInvalidArgument);
  EXPECT_OK(invalidateMemory(ticket, kSoon));
  EXPECT_OK(pair.a->unregister(region, kSoon));
}

// After the return nothing writes there: the provider may give the pages to others.
TEST_P(RevokedRegion, NothingReachesTheMemoryAfterwards) {
  EXPECT_OK(pair.a->unregister(region, kSoon));
  for (int round = 0; round < 20; ++round) {
    region = MUST(pair.a->registerRegion(arena->data(), kRegionBytes, Access::kRemoteReadWrite));
    const RemoteRegion remote = MUST(pair.toA.importRegion(region.share()));
    std::atomic<bool> isOver{false};
    std::atomic<int> puts{0};
    std::thread writer([&] {
      while (!isOver) {
        const Status ended = putInto(remote);
        ++puts;
        puts.notify_all();
        if (ended.code() == Code::kRevoked) return;
        EXPECT_OK(ended);
      }
    });
    for (int seen = 0; seen <= round % 3; seen = puts) puts.wait(seen);
    EXPECT_OK(invalidateMemory(provider->tickets().at(0), kSoon));
    std::memset(arena->data(), round, kRegionBytes);
    writer.join();
    for (size_t i = 0; i < kRegionBytes; i += 509)
      ASSERT_EQ(arena->data()[i], static_cast<std::byte>(round)) << "byte " << i;
    EXPECT_OK(pair.a->unregister(region, kSoon));
  }
}

// What a peer imported and what its user does meanwhile, at the same time.
TEST_P(RevokedRegion, UnregisteredAndInvalidatedAtOnce) {
  EXPECT_OK(pair.a->unregister(region, kSoon));
  for (int round = 0; round < 50; ++round) {
    const Region each =
        MUST(pair.a->registerRegion(arena->data(), kRegionBytes, Access::kRemoteWrite));
    const uint64_t number = provider->tickets().at(0);
    const RemoteRegion remote = MUST(pair.toA.importRegion(each.share()));
    EXPECT_OK(putInto(remote));
    std::thread one([&] { EXPECT_OK(invalidateMemory(number, kSoon)); });
    std::thread two([&] { EXPECT_OK(invalidateMemory(number, kSoon)); });
    EXPECT_OK(pair.a->unregister(each, kSoon));
    one.join();
    two.join();
    EXPECT_TRUE(provider->tickets().empty());
  }
}

// --- One side is enough ---

struct Owner : testing::Test {
  void SetUp() override {
    context = MUST(Context::create());
    id = MUST(context->addProvider(provider));
    arena = MUST(SharedSegment::create(4 * kRegionBytes, {}));
    provider->own(*arena);
  }
  Result<Region> add(size_t offset = 0, size_t bytes = kRegionBytes) {
    return context->registerRegion(arena->data() + offset, bytes, Access::kRemoteReadWrite);
  }
  std::shared_ptr<FakeProvider> provider = std::make_shared<FakeProvider>("arena");
  std::unique_ptr<Context> context;
  std::unique_ptr<SharedSegment> arena;
  uint64_t id = 0;
};

TEST_F(Owner, TakenBackWhileItIsRegisteredItIsNot) {
  for (auto* const hook : {&provider->hooks.acquiring, &provider->hooks.describing}) {
    *hook = [](uint64_t ticket) { EXPECT_OK(invalidateMemory(ticket)); };
    EXPECT_EQ(add().status().code(), Code::kRevoked);
    *hook = nullptr;
  }
  // The progress thread takes it out of the table.
  const auto isGone = [&] { return provider->tickets().empty(); };
  EXPECT_TRUE(soon([&] { return isGone(); }));
  EXPECT_EQ(context->dump().find("  region "), std::string::npos) << context->dump();
}

TEST_F(Owner, ARangeThatStraddlesIsRefused) {
  const Status refused = add(3 * kRegionBytes, 2 * kRegionBytes).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("is of provider \"arena\""), std::string_view::npos)
      << refused.toString();
  EXPECT_TRUE(provider->tickets().empty());
}

// A link's registration with a device, of which the provider says when it ends.
struct Registration final : RegionExport {
  explicit Registration(std::function<Status()> revoking) : onRevoke(std::move(revoking)) {}
  Status revoke(std::chrono::nanoseconds) override { return onRevoke(); }
  std::function<Status()> onRevoke;
};

TEST_F(Owner, LinksLetGoAndMayReleaseTheMemoryFromThere) {
  const Region region = MUST(add());
  RegionRecord& record = *region.record();
  const Importer card{.forms = {ExportForm::kDmaBuf, ExportForm::kFile},
                      .kind = ImporterKind::kRevocable};
  const ExportedRange range = MUST(record.exportFor(card, 100, 200));
  EXPECT_EQ(range.form, ExportForm::kFile);
  EXPECT_EQ(range.address, arena->data() + 100);
  EXPECT_EQ(range.offset, arena->offset() + 100);
  EXPECT_TRUE(range.mayBeInvalidated);
  int revoked = 0;
  const auto make = [&]() -> Result<RegionExports::Made> {
    return RegionExports::Made(std::make_shared<Registration>([&] {
      ++revoked;
      // From inside: the same ticket again, and the end of the registration.
      EXPECT_OK(invalidateMemory(provider->tickets().at(0)));
      EXPECT_EQ(record.exportFor(card, 0, 1).status().code(), Code::kRevoked);
      return Status::ok();
    }));
  };
  EXPECT_OK(record.exports.of(this, make).status());
  EXPECT_OK(invalidateMemory(provider->tickets().at(0), kSoon));
  EXPECT_EQ(revoked, 1);
  EXPECT_EQ(record.exports.of(this, make).status().code(), Code::kRevoked);
  EXPECT_EQ(record.facts().status().code(), Code::kRevoked);
  EXPECT_OK(context->unregister(region, kSoon));
  EXPECT_EQ(revoked, 1);
}

TEST_F(Owner, WhatIsPinnedForLifeHoldsTheProviderUp) {
  const Region region = MUST(add());
  const auto pinned = [] {
    return RegionExports::Made(std::make_shared<Registration>(
        [] { return Status(Code::kUnavailable, "pinned for life"); }));
  };
  EXPECT_OK(region.record()->exports.of(this, pinned).status());
  const uint64_t ticket = provider->tickets().at(0);
  EXPECT_EQ(invalidateMemory(ticket, kSoon).code(), Code::kUnavailable);
  EXPECT_OK(context->unregister(region, kSoon));
  EXPECT_OK(invalidateMemory(ticket, kSoon));
}

TEST_F(Owner, ARemovedProviderLeavesRevokedRegions) {
  const Region first = MUST(add()), second = MUST(add(kRegionBytes));
  EXPECT_OK(context->unregister(second, kSoon));
  EXPECT_OK(context->removeProvider(id, kSoon));
  EXPECT_EQ(first.status().code(), Code::kRevoked);
  EXPECT_EQ(second.status().code(), Code::kClosed);
  const Region third = MUST(add());  // the program has it mapped, after all
  EXPECT_NE(third.description(), first.description());
  EXPECT_OK(context->unregister(first, kSoon));
  EXPECT_OK(context->unregister(third, kSoon));
  EXPECT_TRUE(provider->tickets().empty());
  EXPECT_EQ(context->removeProvider(id, kSoon).code(), Code::kInvalidArgument);
}

TEST_F(Owner, AProviderThatIsNeverAskedIsRefused) {
  EXPECT_EQ(context->addProvider(provider, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(context->addProvider(nullptr).status().code(), Code::kInvalidArgument);
}

TEST_F(Owner, WhatTheLibraryRegisteredByItselfIsRegisteredAnew) {
  const Region first = MUST(context->regionOf(arena->data(), 100, Access::kLocal));
  EXPECT_EQ(MUST(context->regionOf(arena->data(), 100, Access::kLocal)).record(), first.record());
  EXPECT_OK(invalidateMemory(provider->tickets().at(0), kSoon));
  EXPECT_EQ(first.status().code(), Code::kRevoked);
  const Region second = MUST(context->regionOf(arena->data(), 100, Access::kLocal));
  EXPECT_NE(second.record(), first.record());
  EXPECT_OK(second.status());
}

// Nobody tells the library of that, and it does not ask again; the place is the program's.
TEST_F(Owner, WhatTheProgramUnmapsIsStillFoundForItsOwnTransfers) {
  constexpr size_t kBytes = 1 << 20;
  void* const at =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  const Region found = MUST(context->regionOf(at, kBytes, Access::kLocal));
  ASSERT_EQ(munmap(at, kBytes), 0);
  EXPECT_EQ(MUST(context->regionOf(at, kBytes, Access::kLocal)).record(), found.record());
  EXPECT_OK(found.status());
  ASSERT_EQ(mmap(at, kBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0),
            at);
  EXPECT_EQ(MUST(context->regionOf(at, kBytes, Access::kLocal)).record(), found.record());
  EXPECT_EQ(munmap(at, kBytes), 0);
}

TEST_F(Owner, OnTheProgressThreadItWouldWaitForItself) {
  const Region region = MUST(add());
  const uint64_t ticket = provider->tickets().at(0);
  const auto other = MUST(Context::create());
  std::atomic<int> code{-1};
  context->onPeer([&](const Peer&) {
    code = static_cast<int>(invalidateMemory(ticket, kSoon).code());
    code.notify_all();
  });
  const Peer peer = MUST(other->connect(context->ticket(), kSoon));
  code.wait(-1);
  EXPECT_EQ(static_cast<Code>(code.load()), Code::kInvalidArgument);
  EXPECT_OK(region.status());
  EXPECT_OK(invalidateMemory(ticket, kSoon));
  EXPECT_OK(context->unregister(region, kSoon));
}

TEST_F(Owner, ATicketOutlivesItsContextHarmlessly) {
  (void)MUST(add());
  const uint64_t ticket = provider->tickets().at(0);
  context.reset();
  EXPECT_TRUE(provider->tickets().empty());
  EXPECT_OK(invalidateMemory(ticket));
}

// Providers, users and the registry at the same time.
TEST_F(Owner, RacesOfEverything) {
  std::atomic<bool> isOver{false};
  std::thread taking([&] {
    while (!isOver)
      for (const uint64_t ticket : provider->tickets()) EXPECT_OK(invalidateMemory(ticket, kSoon));
  });
  std::thread adding([&] {
    while (!isOver) {
      const auto extra = std::make_shared<FakeProvider>("extra");
      extra->own(arena->data() + 2 * kRegionBytes, kRegionBytes);
      const uint64_t number = MUST(context->addProvider(extra, 300));
      EXPECT_OK(context->removeProvider(number, kSoon));
    }
  });
  for (int round = 0; round < 60; ++round) {
    const size_t offset = static_cast<size_t>(round % 3) * kRegionBytes;
    const auto made = add(offset);
    if (!made.isOk()) {
      EXPECT_TRUE(made.status().code() == Code::kRevoked ||
                  made.status().code() == Code::kUnavailable)
          << made.status().toString();
      continue;
    }
    EXPECT_OK(context->unregister(*made, kSoon));
  }
  isOver = true;
  taking.join();
  adding.join();
}

}  // namespace
}  // namespace peerlane
