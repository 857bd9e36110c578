// SPDX-License-Identifier: Apache-2.0
//
// Registered memory that its program loses without unregistering it: the file behind it is cut, or
// it is unmapped or protected, before and while bytes move. The transfer fails alone, as Revoked,
// with the region's name; other regions of the same connection go on, and nobody gets a signal.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "peerlane/memory/region_reference.h"
#include "tests/channel/context_pair.h"
#include "tests/os/file_memory.h"

namespace peerlane {
namespace {

constexpr std::byte kFill{0x5a};

struct Wire {
  RouteCase route;
  bool isSealed = false;
};
constexpr Wire kMappedWire{kMapped};
constexpr Wire kWires[] = {{kSelf},
                           {kCma},
                           {kRing},
                           {kTcp},
                           {{"sealed_tcp", "tcp", ShmEngine::kAuto, false, "socket"}, true}};

Config configOf(const Wire& wire) {
  Config config = configFor(wire.route);
  config.tcpEncrypt = wire.isSealed;
  return config;
}

class GoneMemory : public testing::TestWithParam<std::tuple<Wire, Loss>> {
 protected:
  static constexpr size_t kBytes = FileMemory::kBytes;

  GoneMemory()
      : pair_(configOf(wire())),
        near_(*pair_.a, kBytes, wire().route.shared),
        other_(*pair_.b, kBytes, wire().route.shared, Access::kRemoteReadWrite, 3),
        remoteOther_(other_.importedBy(pair_.toB)) {}
  static const Wire& wire() { return std::get<0>(GetParam()); }
  static Loss loss() { return std::get<1>(GetParam()); }

  static std::string nameOf(const Region& region, const char* side) {
    const RegionReference reference = MUST(RegionReference::decode(region.share()));
    return "region " + std::to_string(reference.allocation) + " of " + side;
  }
  Status move(Direction direction, const Region& local, const RemoteRegion& remote) {
    const Block block{&local, 0, &remote, 0, kBytes};
    auto transfer =
        direction == Direction::kPut ? put(pair_.toB, {&block, 1}) : get(pair_.toB, {&block, 1});
    return transfer ? transfer->wait(kSoon) : transfer.status();
  }
  static void expectGone(const Status& status, const std::string& name) {
    EXPECT_EQ(status.code(), Code::kRevoked) << status.toString();
    EXPECT_NE(status.message().find(name), std::string_view::npos) << status.toString();
  }
  // The connection serves another region, both ways.
  void expectOthersGoOn() {
    EXPECT_OK(move(Direction::kPut, near_.region(), remoteOther_));
    std::memset(near_.data(), 0, kBytes);
    EXPECT_OK(move(Direction::kGet, near_.region(), remoteOther_));
    EXPECT_EQ(firstDifference(near_.data(), other_.data(), kBytes), kBytes);
    std::memcpy(near_.data(), near_.shadow(), kBytes);
  }

  ContextPair pair_;
  TestMemory near_;   // a's
  TestMemory other_;  // b's
  RemoteRegion remoteOther_;
};

TEST_P(GoneMemory, OfTheOwnerFailsTheTransferAlone) {
  FileMemory file(kFill);
  const Region region =
      MUST(pair_.b->registerRegion(file.data(), kBytes, Access::kRemoteReadWrite));
  const RemoteRegion remote = MUST(pair_.toB.importRegion(region.share()));
  ASSERT_OK(move(Direction::kGet, near_.region(), remote));
  EXPECT_EQ(near_.data()[kBytes - 1], kFill);
  file.lose(loss());
  expectGone(move(Direction::kGet, near_.region(), remote), nameOf(region, "the peer"));
  expectGone(move(Direction::kPut, near_.region(), remote), nameOf(region, "the peer"));
  expectOthersGoOn();
  EXPECT_OK(pair_.b->unregister(region, kSoon));
}

// When the loss comes, against the beginning of a move, in turns of an empty loop, because a pause
// or a yield lasts for as long as a busy machine likes. It closes in on the moment at which a move
// is just not caught, by larger steps where many in a row end alike.
class LossTime {
 public:
  // On the thread that loses the memory, and on the one that moves it, once both may begin.
  void beforeLoss() const { spin(turns_); }
  void beforeMove() const { spin(-turns_); }
  void ended(bool isCaught) {
    step_ = isCaught == wasCaught_ ? std::min(2 * step_, int64_t{1} << 22)
                                   : std::max(step_ / 4, int64_t{64});
    wasCaught_ = isCaught;
    turns_ += isCaught ? step_ : -step_;
  }

 private:
  static void spin(int64_t turns) {
    for (std::atomic<int64_t> left{turns}; left.load(std::memory_order_relaxed) > 0;)
      left.fetch_sub(1, std::memory_order_relaxed);
  }
  int64_t turns_ = 0;
  int64_t step_ = 1024;
  bool wasCaught_ = false;
};

// A move that ended before the loss has all its bytes, and any other ends Revoked. 210 rounds on
// each wire, with its three losses. `round` prepares one with the file, and calls the function that
// it is given with its move: while that runs, another thread loses the file.
template <typename Round>
void loseInTheMiddle(Loss loss, const Round& round) {
  constexpr int kRounds = 70;
  int caught = 0;
  LossTime time;
  for (int number = 0; number < kRounds && !testing::Test::HasFailure(); ++number) {
    FileMemory file(kFill);
    std::atomic<int> ready{0};
    const auto begin = [&ready] {
      ++ready;
      while (ready.load() < 2) std::this_thread::yield();
    };
    std::thread program;
    const auto move = [&](const std::function<Status()>& moving) {
      program = std::thread([&] {
        begin();
        time.beforeLoss();
        file.lose(loss);
      });
      begin();
      time.beforeMove();
      Status status = moving();
      program.join();
      time.ended(!status.isOk());
      caught += status.isOk() ? 0 : 1;
      return status;
    };
    // Not kFill.
    round(file, number % 2 == 0 ? Direction::kGet : Direction::kPut,
          static_cast<std::byte>(number + 1), move);
  }
  EXPECT_GT(caught, 0);
  EXPECT_LT(caught, kRounds);
}
using Mover = std::function<Status(const std::function<Status()>&)>;

TEST_P(GoneMemory, WhileBytesMove) {
  loseInTheMiddle(
      loss(), [&](FileMemory& file, Direction direction, std::byte sent, const Mover& whileLost) {
        const Region region =
            MUST(pair_.b->registerRegion(file.data(), kBytes, Access::kRemoteReadWrite));
        const RemoteRegion remote = MUST(pair_.toB.importRegion(region.share()));
        ASSERT_OK(remote.prepare(kSoon));
        std::memset(near_.data(), static_cast<int>(sent), kBytes);
        const Status status = whileLost([&] { return move(direction, near_.region(), remote); });
        if (!status.isOk())
          expectGone(status, nameOf(region, "the peer"));
        else if (direction == Direction::kGet)
          EXPECT_EQ(countOf(near_.data(), kBytes, kFill), kBytes);
        else
          EXPECT_TRUE(file.isAll(sent));
        EXPECT_OK(pair_.b->unregister(region, kSoon));
      });
  std::memcpy(near_.data(), near_.shadow(), kBytes);
  expectOthersGoOn();
}

// Memory of the side that moves. Who maps the peer's memory copies by itself.
class GoneOwnMemory : public GoneMemory {
 protected:
  // Every second page of `local`, to or from as many bytes at the peer.
  Status moveBlocks(Direction direction, const Region& local) {
    std::vector<Block> blocks;
    for (uint64_t at = 0; at < kBytes; at += 2 * kPage)
      blocks.push_back({&local, at, &remoteOther_, at / 2, kPage});
    auto transfer = direction == Direction::kPut ? put(pair_.toB, blocks) : get(pair_.toB, blocks);
    return transfer ? transfer->wait(kSoon) : transfer.status();
  }
  // The same, with the numbers of the blocks said in each post.
  Status moveIndexed(Direction direction, const Region& local) {
    Plan plan = MUST(Plan::create(pair_.toB, direction,
                                  IndexedBlocks{.local = &local,
                                                .localStride = 2 * kPage,
                                                .localCount = kPages / 2,
                                                .remote = &remoteOther_,
                                                .remoteCount = kPages / 2,
                                                .blockBytes = kPage,
                                                .maxBlocksPerPost = kPages / 2}));
    std::vector<uint32_t> numbers(kPages / 2);
    std::iota(numbers.begin(), numbers.end(), 0u);
    auto transfer = plan.post(numbers, numbers);
    return transfer ? transfer->wait(kSoon) : transfer.status();
  }
  static constexpr size_t kPage = 4096;
  static constexpr size_t kPages = kBytes / kPage;
};

TEST_P(GoneOwnMemory, FailsTheTransferAlone) {
  FileMemory file(kFill);
  const Region region = MUST(pair_.a->registerRegion(file.data(), kBytes, Access::kLocal));
  ASSERT_OK(move(Direction::kPut, region, remoteOther_));
  file.lose(loss());
  expectGone(move(Direction::kPut, region, remoteOther_), nameOf(region, "this side"));
  expectGone(move(Direction::kGet, region, remoteOther_), nameOf(region, "this side"));
  expectOthersGoOn();
  EXPECT_OK(pair_.a->unregister(region, kSoon));
}

// Memory that may still be read is a source as before, and no destination.
TEST_P(GoneOwnMemory, ProtectedAgainstWritingIsStillRead) {
  if (loss() != Loss::kProtected) return;
  FileMemory file(kFill);
  const Region near = MUST(pair_.a->registerRegion(file.data(), kBytes, Access::kLocal));
  ASSERT_EQ(::mprotect(file.data(), kBytes, PROT_READ), 0);
  EXPECT_OK(move(Direction::kPut, near, remoteOther_));
  EXPECT_EQ(countOf(other_.data(), kBytes, kFill), kBytes);
  expectGone(move(Direction::kGet, near, remoteOther_), nameOf(near, "this side"));
  expectOthersGoOn();
  EXPECT_OK(pair_.a->unregister(near, kSoon));
}

// Lists, and plans, which prepare their copies once.
TEST_P(GoneOwnMemory, FailsListsAndPlansAlone) {
  FileMemory file(kFill);
  const Region region = MUST(pair_.a->registerRegion(file.data(), kBytes, Access::kLocal));
  ASSERT_OK(moveBlocks(Direction::kPut, region));
  ASSERT_OK(moveIndexed(Direction::kPut, region));
  EXPECT_EQ(countOf(other_.data(), kBytes / 2, kFill), kBytes / 2);
  EXPECT_EQ(firstDifference(other_.data() + kBytes / 2, other_.shadow() + kBytes / 2, kBytes / 2),
            kBytes / 2);
  const Block block{&region, 0, &remoteOther_, 0, kBytes};
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, {&block, 1}));
  ASSERT_OK(MUST(plan.post()).wait(kSoon));
  file.lose(loss());
  const std::string name = nameOf(region, "this side");
  for (const Direction direction : {Direction::kPut, Direction::kGet}) {
    expectGone(moveBlocks(direction, region), name);
    expectGone(moveIndexed(direction, region), name);
  }
  const auto again = plan.post();
  expectGone(again ? again->wait(kSoon) : again.status(), name);
  expectOthersGoOn();
  EXPECT_OK(pair_.a->unregister(region, kSoon));
}

// On the links by which this side's CPU copies its memory to the peer's by itself.
class GoneMappingOfOnesOwn : public GoneOwnMemory {};

TEST_P(GoneMappingOfOnesOwn, WhileBytesMove) {
  loseInTheMiddle(
      loss(), [&](FileMemory& file, Direction direction, std::byte sent, const Mover& whileLost) {
        const Region region = MUST(pair_.a->registerRegion(file.data(), kBytes, Access::kLocal));
        std::memset(near_.data(), static_cast<int>(sent), kBytes);
        ASSERT_OK(move(Direction::kPut, near_.region(), remoteOther_));
        const Status status = whileLost([&] { return move(direction, region, remoteOther_); });
        if (!status.isOk())
          expectGone(status, nameOf(region, "this side"));
        else if (direction == Direction::kPut)
          EXPECT_EQ(countOf(other_.data(), kBytes, kFill), kBytes);
        else
          EXPECT_TRUE(file.isAll(sent));
        EXPECT_OK(pair_.a->unregister(region, kSoon));
      });
  std::memcpy(near_.data(), near_.shadow(), kBytes);
  expectOthersGoOn();
}

std::string goneName(const testing::TestParamInfo<std::tuple<Wire, Loss>>& info) {
  static constexpr const char* kNames[] = {"cut", "unmapped", "protected"};
  return std::string(std::get<0>(info.param).route.name) + "_" +
         kNames[static_cast<size_t>(std::get<1>(info.param))];
}
const auto kLosses = testing::Values(Loss::kCut, Loss::kUnmapped, Loss::kProtected);
INSTANTIATE_TEST_SUITE_P(Wires, GoneMemory, testing::Combine(testing::ValuesIn(kWires), kLosses),
                         goneName);
INSTANTIATE_TEST_SUITE_P(Mapped, GoneMappingOfOnesOwn,
                         testing::Combine(testing::Values(kMappedWire, Wire{kSelf}), kLosses),
                         goneName);
INSTANTIATE_TEST_SUITE_P(Mapped, GoneOwnMemory,
                         testing::Combine(testing::Values(kMappedWire), kLosses), goneName);
INSTANTIATE_TEST_SUITE_P(Wires, GoneOwnMemory, testing::Combine(testing::ValuesIn(kWires), kLosses),
                         goneName);

// A peer that maps shared memory has a mapping of its own, and the file cannot be cut: there is
// nothing to fail.
class GoneMappedMemory : public testing::TestWithParam<Loss> {
 protected:
  static constexpr size_t kBytes = FileMemory::kBytes;
  // Imports the region of b, and finds it mapped.
  RemoteRegion mapped(const Region& region) const {
    RemoteRegion remote = MUST(pair_.toB.importRegion(region.share()));
    EXPECT_OK(remote.prepare(kSoon));
    EXPECT_EQ(remote.engine(), "mapped");
    return remote;
  }
  void expectGets(const RemoteRegion& remote, std::byte wanted) {
    const Block block{&near_.region(), 0, &remote, 0, kBytes};
    std::memset(near_.data(), 0, kBytes);
    EXPECT_OK(MUST(get(pair_.toB, {&block, 1})).wait(kSoon));
    EXPECT_EQ(countOf(near_.data(), kBytes, wanted), kBytes);
  }

  ContextPair pair_{configFor(kMapped)};
  TestMemory near_{*pair_.a, kBytes, true};
};

TEST_P(GoneMappedMemory, GoesOn) {
  FileMemory memory(std::byte{0x33}, FileMemory::Kind::kSealable);
  const Region region =
      MUST(pair_.b->registerRegion(memory.data(), kBytes, Access::kRemoteReadWrite));
  const RemoteRegion remote = mapped(region);
  memory.lose(GetParam());
  expectGets(remote, std::byte{0x33});
  EXPECT_OK(pair_.b->unregister(region, kSoon));
}

// 210 rounds with the three losses.
TEST_P(GoneMappedMemory, GoesOnWhileBytesMove) {
  constexpr int kRounds = 70;
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    FileMemory memory(std::byte{0x33}, FileMemory::Kind::kSealable);
    const Region region =
        MUST(pair_.b->registerRegion(memory.data(), kBytes, Access::kRemoteReadWrite));
    const RemoteRegion remote = mapped(region);
    const auto sent = static_cast<std::byte>(round + 1);
    std::memset(near_.data(), static_cast<int>(sent), kBytes);
    const Block block{&near_.region(), 0, &remote, 0, kBytes};
    memory.loseWhile(GetParam(), [&] { EXPECT_OK(MUST(put(pair_.toB, {&block, 1})).wait(kSoon)); });
    EXPECT_TRUE(memory.isAll(sent));
    expectGets(remote, sent);
    EXPECT_OK(pair_.b->unregister(region, kSoon));
  }
  std::memcpy(near_.data(), near_.shadow(), kBytes);
}
INSTANTIATE_TEST_SUITE_P(Losses, GoneMappedMemory, kLosses);

}  // namespace
}  // namespace peerlane
