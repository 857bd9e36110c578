// SPDX-License-Identifier: Apache-2.0
//
// Everything put, get and notify refuse: before anything moves, with the right code, and with a
// sentence that names the numbers.
#include <functional>
#include <random>

#include "peerlane/channel/transfer/plan.h"
#include "peerlane/channel/transfer/transfer.h"
#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

class TransferRefusal : public NearAndFarTest {
 protected:
  static constexpr uint64_t kBytes = 10'000;
  TransferRefusal() : NearAndFarTest(kBytes) { EXPECT_OK(remote_.prepare(kSoon)); }
  Block block(uint64_t local, uint64_t distant, uint64_t bytes) {
    return {&near_->region(), local, &remote_, distant, bytes};
  }
  void expectRefused(const Result<Transfer>& result, Code code,
                     const std::vector<std::string>& said) {
    ASSERT_FALSE(result.isOk()) << (said.empty() ? "" : said.front());
    EXPECT_EQ(result.status().code(), code) << result.status().toString();
    for (const std::string& part : said)
      EXPECT_NE(result.status().message().find(part), std::string_view::npos)
          << "'" << part << "' is not in: " << result.status().toString();
    EXPECT_TRUE(near_->isAsExpected());
    EXPECT_TRUE(far_->isAsExpected());
  }
  // Both directions refuse.
  void expectBothRefused(const std::vector<Block>& blocks, Code code,
                         const std::vector<std::string>& said) {
    expectRefused(put(pair_.toB, blocks), code, said);
    expectRefused(get(pair_.toB, blocks), code, said);
  }
};

INSTANTIATE_TEST_SUITE_P(Routes, TransferRefusal, everyRoute(), routeName);

TEST_P(TransferRefusal, RangesOutsideOneOfTheRegions) {
  constexpr auto kInvalid = Code::kInvalidArgument;
  expectBothRefused({block(0, 0, kBytes + 1)}, kInvalid, {"10001", "10000"});
  expectBothRefused({block(1, 0, kBytes)}, kInvalid, {"local range [1, +10000)"});
  expectBothRefused({block(0, 1, kBytes)}, kInvalid, {"remote range [1, +10000)"});
  expectBothRefused({block(kBytes, 0, 1)}, kInvalid, {"local range [10000, +1)"});
  expectBothRefused({block(0, kBytes, 1)}, kInvalid, {"remote range [10000, +1)"});
  // Sums that wrap around.
  expectBothRefused({block(UINT64_MAX, 0, 1)}, kInvalid, {"18446744073709551615"});
  expectBothRefused({block(0, UINT64_MAX - 5, 10)}, kInvalid, {"18446744073709551610"});
  expectBothRefused({block(0, 0, UINT64_MAX)}, kInvalid, {"18446744073709551615"});
  expectBothRefused({block(1, 1, UINT64_MAX)}, kInvalid, {"block 0"});
  // A good block before a bad one does not move either.
  expectBothRefused({block(0, 0, 100), block(200, kBytes - 1, 2)}, kInvalid, {"block 1", "9999"});
}

TEST_P(TransferRefusal, NothingToMove) {
  expectBothRefused({}, Code::kInvalidArgument, {"without blocks"});
  expectBothRefused({block(0, 0, 0)}, Code::kInvalidArgument, {"block 0 has 0 bytes"});
  expectBothRefused({block(0, 0, 5), block(10, 10, 0)}, Code::kInvalidArgument,
                    {"block 1 has 0 bytes"});
}

TEST_P(TransferRefusal, BlocksThatOverlapAtTheirDestination) {
  const auto overlap = {std::string("overlap")};
  expectRefused(put(pair_.toB, std::vector{block(0, 100, 50), block(1000, 149, 10)}),
                Code::kInvalidArgument, {"overlap", "149"});
  expectRefused(put(pair_.toB, std::vector{block(0, 300, 10), block(20, 100, 10), block(40, 305, 1),
                                           block(60, 200, 10)}),
                Code::kInvalidArgument, overlap);
  expectRefused(put(pair_.toB, std::vector{block(0, 100, 50), block(1000, 100, 50)}),
                Code::kInvalidArgument, overlap);
  expectRefused(get(pair_.toB, std::vector{block(100, 0, 50), block(149, 1000, 10)}),
                Code::kInvalidArgument, {"overlap", "149"});
  // The same bytes may be read twice.
  const auto twice = get(pair_.toB, std::vector{block(0, 500, 50), block(50, 500, 50)});
  ASSERT_OK(twice.status());
  EXPECT_OK(twice->wait(kSoon));
}

// Of one size on a grid or off it, of two sizes, near each other or far apart: as pairs say.
TEST_P(TransferRefusal, OverlapsAreFoundInAnyOrder) {
  std::mt19937 random(7);
  const auto below = [&](uint64_t limit) { return random() % limit; };
  size_t refused = 0, accepted = 0;
  for (const uint64_t bytes : {1, 3, 64, 100})
    for (int i = 0; i < 60; ++i) {
      const uint64_t base = below(bytes);
      const uint64_t places = (kBytes - 2 * bytes) / bytes / (i % 4 == 0 ? 10 : 1);
      const bool isOffGrid = i % 3 == 1, hasTwoSizes = i % 3 == 2;
      std::vector<Block> blocks;
      for (uint64_t count = 2 + below(i % 2 == 0 ? 6 : 40); blocks.size() < count;) {
        const uint64_t place = base + below(places) * bytes + (isOffGrid ? below(2) : 0);
        blocks.push_back(block(0, place, hasTwoSizes && below(4) == 0 ? bytes + 1 : bytes));
      }
      bool overlap = false;
      for (const Block& a : blocks)
        for (const Block& b : blocks)
          overlap = overlap || (&a != &b && a.remoteOffset <= b.remoteOffset &&
                                b.remoteOffset < a.remoteOffset + a.bytes);
      const Status planned = Plan::create(pair_.toB, Direction::kPut, blocks).status();
      EXPECT_EQ(planned.code(), overlap ? Code::kInvalidArgument : Code::kOk)
          << blocks.size() << " blocks of " << bytes << ": " << planned.toString();
      ++(overlap ? refused : accepted);
    }
  EXPECT_GT(refused, 50u);
  EXPECT_GT(accepted, 50u);
}

// Two handles on one region are one region.
TEST_P(TransferRefusal, OverlapsThroughTwoHandlesAreOverlaps) {
  const RemoteRegion again = far_->importedBy(pair_.toB);
  ASSERT_OK(again.prepare(kSoon));
  const std::vector<Block> blocks = {block(0, 100, 50), {&near_->region(), 1000, &again, 120, 50}};
  expectRefused(put(pair_.toB, blocks), Code::kInvalidArgument, {"overlap"});
}

TEST_P(TransferRefusal, RightsThatWereNotGiven) {
  auto readable = memory(*pair_.b, kBytes, 3, Access::kRemoteRead);
  auto writable = memory(*pair_.b, kBytes, 4, Access::kRemoteWrite);
  auto local = memory(*pair_.b, kBytes, 5, Access::kLocal);
  const RemoteRegion canRead = readable->importedBy(pair_.toB);
  const RemoteRegion canWrite = writable->importedBy(pair_.toB);
  const RemoteRegion canNothing = local->importedBy(pair_.toB);
  const Block toReadable{&near_->region(), 0, &canRead, 0, 10};
  const Block toWritable{&near_->region(), 0, &canWrite, 0, 10};
  const Block toLocal{&near_->region(), 0, &canNothing, 0, 10};
  expectRefused(put(pair_.toB, {&toReadable, 1}), Code::kPermissionDenied,
                {"remote read", "remote write"});
  expectRefused(get(pair_.toB, {&toWritable, 1}), Code::kPermissionDenied,
                {"remote read", "remote write"});
  expectRefused(put(pair_.toB, {&toLocal, 1}), Code::kPermissionDenied, {"local"});
  expectRefused(get(pair_.toB, {&toLocal, 1}), Code::kPermissionDenied, {"local"});
  EXPECT_EQ(canNothing.prepare(kSoon).code(), Code::kPermissionDenied);
  // What was given works.
  EXPECT_OK(unwrapped(put(pair_.toB, {&toWritable, 1}), "put").wait(kSoon));
  EXPECT_OK(unwrapped(get(pair_.toB, {&toReadable, 1}), "get").wait(kSoon));
  std::memcpy(writable->shadow(), near_->shadow(), 10);
  std::memcpy(near_->shadow(), readable->shadow(), 10);
  for (const auto* each : {&readable, &writable, &local, &near_, &far_})
    EXPECT_TRUE((*each)->isAsExpected());
}

// The reference travelled through the user's hands; what the owner says counts.
TEST_P(TransferRefusal, ReferencesThatPromiseTooMuch) {
  auto readable = memory(*pair_.b, kBytes, 3, Access::kRemoteRead);
  RegionReference reference = MUST(RegionReference::decode(readable->region().share()));
  reference.access = Access::kRemoteReadWrite;
  RemoteRegion forged = MUST(pair_.toB.importRegion(reference.encode()));
  Block block{&near_->region(), 0, &forged, 0, 10};
  auto transfer = put(pair_.toB, {&block, 1});
  if (transfer.isOk()) {
    EXPECT_EQ(transfer->wait(kSoon).code(), Code::kPermissionDenied);
  }
  EXPECT_TRUE(readable->isAsExpected());

  reference.access = Access::kRemoteRead;
  reference.bytes *= 2;
  forged = MUST(pair_.toB.importRegion(reference.encode()));
  const Status longer = forged.prepare(kSoon);
  EXPECT_EQ(longer.code(), Code::kInvalidArgument) << longer.toString();
  EXPECT_NE(longer.message().find("20000"), std::string_view::npos) << longer.toString();

  reference.bytes /= 2;
  reference.generation ^= 1;
  forged = MUST(pair_.toB.importRegion(reference.encode()));
  EXPECT_EQ(forged.prepare(kSoon).code(), Code::kInvalidArgument);

  reference.generation ^= 1;
  reference.allocation += 100;
  forged = MUST(pair_.toB.importRegion(reference.encode()));
  EXPECT_EQ(forged.prepare(kSoon).code(), Code::kInvalidArgument);

  reference.owner[3] ^= 1;
  EXPECT_EQ(pair_.toB.importRegion(reference.encode()).status().code(), Code::kInvalidArgument);
  // The connection is none the worse.
  const Block honest = this->block(0, 0, 100);
  EXPECT_OK(unwrapped(put(pair_.toB, {&honest, 1}), "put").wait(kSoon));
  std::memcpy(far_->shadow(), near_->shadow(), 100);
  EXPECT_TRUE(far_->isAsExpected());
  EXPECT_EQ(pair_.toB.state(), "ready");
}

TEST_P(TransferRefusal, HandlesThatNameNothing) {
  const Region noRegion;
  const RemoteRegion noRemote;
  const std::vector<Block> rows = {{nullptr, 0, &remote_, 0, 1},
                                   {&near_->region(), 0, nullptr, 0, 1},
                                   {&noRegion, 0, &remote_, 0, 1},
                                   {&near_->region(), 0, &noRemote, 0, 1}};
  for (const Block& row : rows) expectBothRefused({row}, Code::kInvalidArgument, {"names no"});
  const Block good = block(0, 0, 1);
  expectRefused(put(Peer(), {&good, 1}), Code::kInvalidArgument, {"empty Peer"});
  expectRefused(get(Peer(), {&good, 1}), Code::kInvalidArgument, {"empty Peer"});
  expectRefused(notify(Peer(), {}), Code::kInvalidArgument, {"empty Peer"});
  EXPECT_EQ(flush(Peer()).code(), Code::kInvalidArgument);
  EXPECT_EQ(noRemote.prepare().code(), Code::kInvalidArgument);
  EXPECT_EQ(pair_.a->unregister(noRegion).code(), Code::kInvalidArgument);
  EXPECT_EQ(Peer().status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Peer().importRegion(near_->region().share()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Peer().sendMessage(1, {}).code(), Code::kInvalidArgument);
  EXPECT_EQ(Peer().receiveMessage(1, kSoon).status().code(), Code::kInvalidArgument);
}

TEST_P(TransferRefusal, RegionsOfAnotherPeer) {
  auto third = MUST(Context::create({configFor(GetParam()), {}, ""}));
  const Peer toThird = MUST(pair_.a->connect(third->ticket(), kSoon));
  const Block block = this->block(0, 0, 10);
  expectRefused(put(toThird, {&block, 1}), Code::kInvalidArgument, {"another peer"});
  // A region that belongs to somebody else cannot even be imported from this peer.
  EXPECT_EQ(toThird.importRegion(far_->region().share()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(pair_.a->unregister(far_->region()).code(), Code::kInvalidArgument)
      << "it is registered elsewhere";
}

TEST_P(TransferRefusal, NotificationsThatCannotBe) {
  const Block block = this->block(0, 0, 10);
  const std::vector<std::byte> message(4097);
  PostOptions options;
  options.notify.message = message;
  expectRefused(put(pair_.toB, {&block, 1}, options), Code::kInvalidArgument, {"4097", "4096"});
  expectRefused(notify(pair_.toB, options.notify), Code::kInvalidArgument, {"4097", "4096"});
  options.notify.message = std::span(message).first(10);
  expectRefused(get(pair_.toB, {&block, 1}, options), Code::kInvalidArgument, {"get"});
  options.notify.message.reset();
  options.notify.signal = 64;
  expectRefused(put(pair_.toB, {&block, 1}, options), Code::kInvalidArgument, {"64", "63"});
  options.notify.signal = 0;
  expectRefused(get(pair_.toB, {&block, 1}, options), Code::kInvalidArgument, {"get"});
  options.notify.signalAdd = uint64_t{1} << 62;
  expectRefused(put(pair_.toB, {&block, 1}, options), Code::kInvalidArgument,
                {"4611686018427387904"});
  expectRefused(notify(pair_.toB, {}), Code::kInvalidArgument, {"without message"});
  EXPECT_EQ(pollNotification(pair_.toA).status().code(), Code::kTryAgain);
}

TEST_P(TransferRefusal, StridesThatDoNotFit) {
  const StridedBlocks good{.local = &near_->region(),
                           .localStride = 100,
                           .remote = &remote_,
                           .remoteStride = 100,
                           .blockBytes = 50,
                           .count = 100};
  struct Row {
    std::function<void(StridedBlocks&)> spoil;
    std::string said;
  };
  for (const Row& row : {Row{[](auto& b) { b.count = 0; }, "0 x 50"},
                         Row{[](auto& b) { b.blockBytes = 0; }, "100 x 0"},
                         Row{[](auto& b) { b.count = 101; }, "101 x 50"},
                         Row{[](auto& b) { b.localOffset = 51; }, "from offset 51"},
                         Row{[](auto& b) { b.remoteOffset = 51; }, "remote blocks"},
                         Row{[](auto& b) { b.localStride = UINT64_MAX / 3; }, "local blocks"},
                         Row{[](auto& b) { b.remoteStride = UINT64_MAX; }, "remote blocks"},
                         Row{[](auto& b) { b.count = UINT64_MAX; }, "18446744073709551615"},
                         Row{[](auto& b) { b.localOffset = UINT64_MAX; }, "local blocks"},
                         Row{[](auto& b) { b.local = nullptr; }, "names no local"},
                         Row{[](auto& b) { b.remote = nullptr; }, "names no remote"}}) {
    StridedBlocks blocks = good;
    row.spoil(blocks);
    expectRefused(put(pair_.toB, blocks), Code::kInvalidArgument, {row.said});
    expectRefused(get(pair_.toB, blocks), Code::kInvalidArgument, {row.said});
  }
  StridedBlocks close = good;
  close.remoteStride = 49;
  expectRefused(put(pair_.toB, close), Code::kInvalidArgument, {"stride 49", "50"});
  close = good;
  close.localStride = 0;
  expectRefused(get(pair_.toB, close), Code::kInvalidArgument, {"stride 0"});
}

// In one process the two sides of a transfer may be the same memory.
TEST(TransferRefusalSelf, SourceAndDestinationThatAreTheSameMemory) {
  ContextPair pair(configFor(kSelf));
  TestMemory memory(*pair.b, 1000, false);
  Region again = MUST(pair.a->registerRegion(memory.data(), 1000, Access::kLocal));
  const RemoteRegion remote = memory.importedBy(pair.toB);
  const Block overlapping{&again, 0, &remote, 50, 100};
  const auto refused = put(pair.toB, {&overlapping, 1});
  EXPECT_EQ(refused.isOk() ? refused->wait(kSoon).code() : refused.status().code(),
            Code::kInvalidArgument);
  const Block touching{&again, 0, &remote, 100, 100};
  EXPECT_OK(unwrapped(put(pair.toB, {&touching, 1}), "put").wait(kSoon));
  std::memcpy(memory.shadow() + 100, memory.shadow(), 100);
  const StridedBlocks woven{.local = &again,
                            .localOffset = 0,
                            .localStride = 100,
                            .remote = &remote,
                            .remoteOffset = 10,
                            .remoteStride = 100,
                            .blockBytes = 20,
                            .count = 5};
  const auto strided = put(pair.toB, woven);
  EXPECT_EQ(strided.isOk() ? strided->wait(kSoon).code() : strided.status().code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(memory.isAsExpected());
  EXPECT_OK(pair.a->unregister(again, kSoon));
}

}  // namespace
}  // namespace peerlane
