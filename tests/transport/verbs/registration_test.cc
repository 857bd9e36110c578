// SPDX-License-Identifier: Apache-2.0
//
// How memory is registered with a NIC: as pinned pages, on demand, or not at all, by what the
// device can, by what may be locked, and by the setting.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "peerlane/os/verbs/registration_probe.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/os/quiet_place.h"
#include "tests/os/refused_calls.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMegabyte = 1 << 20;
constexpr uint64_t kLarge = 8 * kMegabyte;
// Enough for slots and control blocks, not for kLarge.
constexpr const char* kLittle = "lockedBytes=4194304";

Config with(IbRegister wanted) {
  Config config = Config::fromEnvironment().value();
  config.ibRegister = wanted;
  return config;
}

// Two sides, of which the first is the one that is looked at.
struct Sides {
  explicit Sides(const HcaSettings& settings, IbRegister wanted = IbRegister::kAuto,
                 const JointOptions& options = {})
      : first(settings, with(wanted)), joint(first, second, options) {}

  // A put and a get of [from, +bytes) of `local`, and all of it compared. The requests for both.
  uint64_t moves(const VerbsSide::Memory& local, uint64_t from, uint64_t bytes) {
    const auto there = second.memory(bytes);
    const RemoteMemory remote = joint.attach(1, there);
    const auto part = local.bytes.subspan(from, bytes);
    fillPattern(part, bytes);
    Poster poster(joint, 0);
    first.resetCounts();
    poster.put({{part.data(), &remote, 0, bytes}});
    EXPECT_EQ(joint.settle(poster), Code::kOk);
    EXPECT_EQ(firstWrong(there.bytes, bytes), bytes);
    std::fill(part.begin(), part.end(), std::byte{0});
    poster.get({{part.data(), &remote, 0, bytes}});
    EXPECT_EQ(joint.settle(poster), Code::kOk);
    EXPECT_EQ(firstWrong(part, bytes), bytes);
    return first.counts().requests;
  }
  Status grant(const VerbsSide::Memory& memory) {
    return joint.link(0).grant(*memory.record).status();
  }
  bool shows(const std::string& text) {
    const auto texts = first.nic()->keys().paths().texts();
    return std::find(texts.begin(), texts.end(), text) != texts.end();
  }

  VerbsSide first, second;
  VerbsJoint joint;
};

void expectRefusal(const Status& status, Code code, const std::string& words) {
  EXPECT_EQ(status.code(), code) << status.toString();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.toString();
}

TEST(VerbsRegistration, PagesThatCannotBeLockedAreRegisteredOnDemand) {
  Sides sides(HcaSettings{{"LIMITS", kLittle}, {"ODP", "yes"}});
  const auto large = sides.first.memory(kLarge);
  EXPECT_EQ(sides.moves(large, 0, kLarge), 2 * kLarge / kMegabyte) << "1 MiB each, no slots";
  EXPECT_EQ(sides.moves(large, 100, 3 * kPage), 2u) << "bytes of any place";
  // The peer writes there, adds to a word and reads.
  const RemoteMemory remote = sides.joint.attach(0, large);
  Poster peer(sides.joint, 1);
  const auto other = sides.second.memory(kPage);
  fillPattern(other.bytes, 4);
  peer.put({{other.bytes.data(), &remote, 24, 1000}});
  peer.store(remote, kLarge - 8, 41);
  peer.add64(remote, kLarge - 8, 1);
  EXPECT_EQ(sides.joint.settle(peer), Code::kOk);
  EXPECT_EQ(firstWrong(large.bytes.subspan(24, 1000), 4), 1000u);
  EXPECT_EQ(*reinterpret_cast<const uint64_t*>(large.bytes.data() + kLarge - 8), 42u);
  EXPECT_TRUE(sides.shows("memory of the host: on demand, where pages cannot be locked"));
}

TEST(VerbsRegistration, WithoutPagingTheLimitIsNamed) {
  Sides sides(HcaSettings{{"LIMITS", kLittle}});
  const auto large = sides.first.memory(kLarge);
  EXPECT_GT(sides.moves(large, 0, kLarge), 2 * kLarge / kMegabyte) << "through slots";
  const Status refused = sides.grant(large);
  expectRefusal(refused, Code::kOutOfMemory, "ulimit -l");
  expectRefusal(refused, Code::kOutOfMemory, "on demand: the device has none");
  EXPECT_TRUE(sides.shows(
      "memory of the host: on demand, refused: the device has none: regions are pinned"));
}

TEST(VerbsRegistration, MemoryThatIsNotThereIsNotAskedForOnDemand) {
  Sides sides(HcaSettings{{"ODP", "yes"}});
  void* const mapped =
      ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  const auto absent = std::make_shared<RegionRecord>();
  absent->base = static_cast<std::byte*>(mapped);
  absent->bytes = kPage;
  absent->access = Access::kRemoteReadWrite;
  absent->acquired = acquireHost({absent->base, kPage});
  // No thread that maps memory may get the place.
  ASSERT_EQ(::mprotect(mapped, kPage, PROT_NONE), 0);
  const Status refused = sides.first.nic()->keys().of(*absent).status();
  EXPECT_EQ(refused.code(), Code::kSystem) << refused.toString();
  ::munmap(mapped, kPage);
}

TEST(VerbsRegistration, RxeGetsWholePagesOfThisSideOnDemand) {
  Sides sides(HcaSettings{{"LIMITS", kLittle}, {"ODP", "rxe"}});
  const auto large = sides.first.memory(kLarge);
  EXPECT_EQ(sides.moves(large, kPage, 4 * kMegabyte), 8u) << "whole pages: no slots";
  EXPECT_GT(sides.moves(large, kPage, 4 * kMegabyte + 8), 8u) << "not whole: through slots";
  EXPECT_EQ(sides.moves(large, kPage + 64, kPage), 2u);
  const Status refused = sides.grant(large);
  expectRefusal(refused, Code::kOutOfMemory, "rxe loses the place in a page; pages: ");
  expectRefusal(refused, Code::kOutOfMemory, "ulimit -l");
  EXPECT_TRUE(sides.shows(
      "memory of the host: on demand, where pages cannot be locked; whole pages of this side only, "
      "because rxe loses the place in a page"));
}

// Packets of one request go over the borders of its pieces.
TEST(VerbsRegistration, WholePagesBeginAPacketOfTheirRequest) {
  Sides sides(HcaSettings{{"LIMITS", kLittle}, {"ODP", "rxe"}});
  const auto pinned = sides.first.memory(kPage);
  const auto large = sides.first.memory(kLarge);
  const auto there = sides.second.memory(4 * kPage);
  const RemoteMemory remote = sides.joint.attach(1, there);
  fillPattern(pinned.bytes, 1);
  fillPattern(large.bytes.first(2 * kPage), 2);
  Poster poster(sides.joint, 0);
  constexpr uint64_t kOdd = 1000;
  poster.put({{pinned.bytes.data(), &remote, 0, kOdd},
              {large.bytes.data(), &remote, kOdd, 2 * kPage},
              {pinned.bytes.data(), &remote, kOdd + 2 * kPage, kOdd}});
  EXPECT_EQ(sides.joint.settle(poster), Code::kOk);
  EXPECT_EQ(firstWrong(there.bytes.first(kOdd), 1), kOdd);
  EXPECT_EQ(firstWrong(there.bytes.subspan(kOdd, 2 * kPage), 2), 2 * kPage);
  EXPECT_EQ(firstWrong(there.bytes.subspan(kOdd + 2 * kPage, kOdd), 1), kOdd);
}

TEST(VerbsRegistration, SmallPacketsGetNoWholePages) {
  Sides sides(HcaSettings{{"LIMITS", kLittle}, {"ODP", "rxe"}}, IbRegister::kAuto,
              {.packetBytes = 1024});
  const auto large = sides.first.memory(kLarge);
  EXPECT_GT(sides.moves(large, 0, 4 * kMegabyte), 8u);
}

TEST(VerbsRegistration, TheSettingForbidsTheOtherWay) {
  Sides pages(HcaSettings{{"LIMITS", kLittle}, {"ODP", "yes"}}, IbRegister::kPages);
  const auto large = pages.first.memory(kLarge);
  expectRefusal(pages.grant(large), Code::kOutOfMemory, "on demand: PEERLANE_IB_REGISTER is pages");
  Sides onDemand(HcaSettings{{"ODP", "rxe"}}, IbRegister::kOnDemand);
  const auto memory = onDemand.first.memory(kLarge);
  EXPECT_EQ(onDemand.moves(memory, 0, kLarge), 2 * kLarge / kMegabyte);
  EXPECT_GT(onDemand.moves(memory, 0, kLarge - 8), 2 * kLarge / kMegabyte) << "through slots";
  EXPECT_TRUE(onDemand.shows(
      "memory of the host: on demand, but as pages where peers are granted it; whole pages of this "
      "side only, because rxe loses the place in a page"));
  // Peers write anywhere, words too: as pages.
  const RemoteMemory remote = onDemand.joint.attach(0, memory);
  Poster peer(onDemand.joint, 1);
  const auto other = onDemand.second.memory(kPage);
  fillPattern(other.bytes, 4);
  peer.put({{other.bytes.data(), &remote, 24, 1000}});
  peer.store(remote, 2048, 41);
  EXPECT_EQ(onDemand.joint.settle(peer), Code::kOk);
  EXPECT_EQ(firstWrong(memory.bytes.subspan(24, 1000), 4), 1000u);
  EXPECT_EQ(*reinterpret_cast<const uint64_t*>(memory.bytes.data() + 2048), 41u);
  Sides none({}, IbRegister::kOnDemand);
  const auto neither = none.first.memory(kPage);
  expectRefusal(none.grant(neither), Code::kNotSupported, "on demand: the device has none");
}

TEST(VerbsRegistration, StagedRegistersOnlyWhatPeersAreGranted) {
  Sides sides(HcaSettings{{"ODP", "yes"}, {"DMABUF", "yes"}}, IbRegister::kStaged);
  const auto memory = sides.first.memory(4 * BounceSlots::kSlotBytes);
  EXPECT_EQ(sides.moves(memory, 0, 4 * BounceSlots::kSlotBytes), 8u) << "a request for each slot";
  EXPECT_OK(sides.grant(memory));
  EXPECT_EQ(sides.moves(memory, 0, 4 * BounceSlots::kSlotBytes), 8u) << "granted, and still staged";
  expectRefusal(sides.first.nic()->keys().paths().forDevices(), Code::kNotSupported,
                "dma-buf: PEERLANE_IB_REGISTER is staged");
}

TEST(VerbsRegistration, TheSettingChoosesAmongWaysForGpus) {
  for (const auto& [wanted, good, bad] :
       {std::tuple{IbRegister::kDmaBuf, "dma-buf", "peer memory"},
        std::tuple{IbRegister::kPeerMemory, "peer memory", "dma-buf"}}) {
    Sides sides(HcaSettings{{"DMABUF", "yes"}}, wanted);
    const auto texts = sides.first.nic()->keys().paths().texts();
    const auto refusal = [&](const char* way) {
      return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
        return text.starts_with(std::string("memory of GPUs: ") + way +
                                ", refused: PEERLANE_IB_REGISTER is ");
      });
    };
    EXPECT_FALSE(refusal(good));
    EXPECT_TRUE(refusal(bad));
  }
}

// Memory of Context::regionOf().
class VerbsRegistrationCache : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 64 * 1024;

  void begin(const HcaSettings& settings, uint64_t bytes, IbRegister wanted = IbRegister::kAuto) {
    Config config = with(wanted);
    config.ibCacheBytes = bytes;
    first_ = std::make_unique<VerbsSide>(settings, config);
    joint_ = std::make_unique<VerbsJoint>(*first_, second_);
    there_ = second_.memory(kBytes);
    remote_ = joint_->attach(1, there_);
    EXPECT_TRUE(first_->areSlotsFree());  // and made
    before_ = first_->objects();
  }
  VerbsSide::Memory fleeting(uint64_t bytes = kBytes) {
    VerbsSide::Memory memory = first_->memory(bytes, /*isHeld=*/true, Access::kLocal);
    memory.record->isCached.store(true);
    return memory;
  }
  // A mapping of its own, twice as large as what is put of it.
  VerbsSide::Memory mapped(Access access, int kind = MAP_PRIVATE | MAP_ANONYMOUS) {
    constexpr uint64_t kAll = 2 * kBytes;
    void* const at = ::mmap(quietPlace(kAll), kAll, PROT_READ | PROT_WRITE, kind, -1, 0);
    EXPECT_NE(at, MAP_FAILED);
    const std::span whole(static_cast<std::byte*>(at), kAll);
    VerbsSide::Memory memory = first_->region(whole, access, /*isHeld=*/false);
    memory.bytes = whole.first(kBytes);
    memory.owner = {whole.data(), [](std::byte* data) { ::munmap(data, kAll); }};
    memory.record->isCached.store(true);
    first_->regions().hold(memory.record);
    return memory;
  }
  static void freeRest(const VerbsSide::Memory& memory) {
    ASSERT_EQ(::munmap(memory.bytes.data() + kBytes, kPage), 0);
  }
  bool shows(const std::string& text) const {
    const auto texts = first_->nic()->keys().paths().texts();
    return std::find(texts.begin(), texts.end(), text) != texts.end();
  }
  // Whether a put of it needs no slot, and the registrations that there are then.
  struct Seen {
    bool isByKey;
    int registered;
    bool operator==(const Seen&) const = default;
  };
  Seen put(const VerbsSide::Memory& memory) {
    fillPattern(memory.bytes, ++seed_);
    HcaControl::get().hold(first_->device());
    Poster poster(*joint_, 0);
    poster.put({{memory.bytes.data(), &remote_, 0, kBytes}});
    poster.serve();
    const bool isByKey = first_->areSlotsFree();
    HcaControl::get().release(first_->device());
    EXPECT_EQ(joint_->settle(poster), Code::kOk);
    EXPECT_EQ(firstWrong(there_.bytes, seed_), kBytes);
    return {isByKey, first_->objects() - before_};
  }
  void TearDown() override { joint_.reset(); }

  std::unique_ptr<VerbsSide> first_;
  VerbsSide second_;
  std::unique_ptr<VerbsJoint> joint_;
  VerbsSide::Memory there_;
  RemoteMemory remote_;
  int before_ = 0;
  uint64_t seed_ = 0;
};

#if !defined(__SANITIZE_THREAD__)  // nothing is watched there (peerlane/os/mappings/free_watch.cc)
TEST_F(VerbsRegistrationCache, OnDemandTheKernelTellsOfFrees) {
  if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
  begin({{"ODP", "yes"}}, 1 << 20, IbRegister::kOnDemand);
  const auto memory = fleeting();
  EXPECT_EQ(put(memory), (Seen{true, 1}));
  EXPECT_EQ(put(memory), (Seen{true, 1}));
  EXPECT_OK(memory.record->frees.watch(*memory.record)) << "nobody did so far";
}
#endif

TEST_F(VerbsRegistrationCache, WithoutAnyWayItIsCopied) {
  begin({}, 1 << 20, IbRegister::kOnDemand);
  EXPECT_EQ(put(fleeting()), (Seen{false, 0}));
  const std::string such = "memory of the host that the program may free without a word: ";
  EXPECT_TRUE(shows(such + "pages, refused: PEERLANE_IB_REGISTER is odp"));
  EXPECT_TRUE(shows(such + "on demand, refused: the device has none: regions are pinned"));
  EXPECT_TRUE(
      shows("such memory that peers are not granted: copied through slots: there is no way"));
}

#if !defined(__SANITIZE_THREAD__)  // nothing is watched there (peerlane/os/mappings/free_watch.cc)
TEST_F(VerbsRegistrationCache, PagesThatAreWatchedAreLetGoOfWhenSomeAreFreed) {
  if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
  begin({}, 1 << 20);
  EXPECT_TRUE(
      shows("memory of the host that the program may free without a word: pages, and its frees are "
            "watched"));
  const auto memory = mapped(Access::kLocal);
  EXPECT_EQ(put(memory), (Seen{true, 1}));
  EXPECT_EQ(put(memory), (Seen{true, 1}));
  const uint64_t before = first_->nic()->keys().ended();
  freeRest(memory);
  EXPECT_NE(first_->nic()->keys().ended(), before) << "who found the key before looks again";
  EXPECT_FALSE(put(memory).isByKey);
  EXPECT_TRUE(memory.record->gate.open()) << "the rest is still in use";
}

TEST_F(VerbsRegistrationCache, WhatPeersAreGrantedIsRevokedWhenItIsFreed) {
  if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
  begin({{"ODP", "rxe"}}, 1 << 20);
  const auto memory = mapped(Access::kRemoteReadWrite);
  const RemoteMemory remote = joint_->attach(0, memory);
  EXPECT_EQ(put(memory), (Seen{true, 1})) << "one serves both";
  Poster peer(*joint_, 1);
  fillPattern(there_.bytes, 99);
  peer.put({{there_.bytes.data(), &remote, 24, 1000}});
  EXPECT_EQ(joint_->settle(peer), Code::kOk);
  EXPECT_EQ(firstWrong(memory.bytes.subspan(24, 1000), 99), 1000u);
  freeRest(memory);
  FreeWatch::settle();
  EXPECT_TRUE(memory.record->gate.isRevoked());
  EXPECT_EQ(joint_->link(0).grant(*memory.record).status().code(), Code::kRevoked);
}

TEST_F(VerbsRegistrationCache, MemoryThatCannotBeWatchedIsCopiedAndNotGranted) {
  if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
  begin({}, 1 << 20);
  const auto shared = mapped(Access::kRemoteReadWrite, MAP_SHARED | MAP_ANONYMOUS);
  EXPECT_EQ(put(shared), (Seen{false, 0}));
  expectRefusal(joint_->link(0).grant(*shared.record).status(), Code::kNotSupported,
                "frees of shared memory cannot be watched");
  // On demand it can be, where the device reaches any byte so.
  joint_.reset();
  first_.reset();
  begin({{"ODP", "yes"}}, 1 << 20);
  const auto other = mapped(Access::kRemoteReadWrite, MAP_SHARED | MAP_ANONYMOUS);
  EXPECT_EQ(put(other), (Seen{true, 1}));
  EXPECT_OK(joint_->link(0).grant(*other.record).status());
  joint_.reset();
  first_.reset();
  begin({{"ODP", "rxe"}}, 1 << 20);
  const auto third = mapped(Access::kRemoteReadWrite, MAP_SHARED | MAP_ANONYMOUS);
  EXPECT_TRUE(put(third).isByKey);
  const Status refused = joint_->link(0).grant(*third.record).status();
  expectRefusal(refused, Code::kNotSupported, "frees of shared memory cannot be watched");
  expectRefusal(refused, Code::kNotSupported, "rxe loses the place in a page");
}
#endif

TEST_F(VerbsRegistrationCache, NoCacheNoRegistration) {
  begin({{"ODP", "yes"}}, 0);
  EXPECT_FALSE(put(fleeting()).isByKey);
  expectRefusal(first_->nic()->keys().paths().forFleeting(), Code::kNotSupported,
                "PEERLANE_IB_CACHE is 0");
}

TEST_F(VerbsRegistrationCache, TheLeastRecentlyUsedOneLeavesFirst) {
  begin({{"ODP", "yes"}}, 2 * kBytes);
  const auto a = fleeting(), b = fleeting(), c = fleeting();
  EXPECT_EQ(put(a), (Seen{true, 1}));
  EXPECT_EQ(put(b), (Seen{true, 2}));
  EXPECT_EQ(put(a), (Seen{true, 2}));
  EXPECT_EQ(put(c), (Seen{true, 2})) << "b leaves";
  first_->inject(SOFTWARE_HCA_REGISTER_FAILS, -1, EIO);
  EXPECT_TRUE(put(a).isByKey) << "it did not leave";
  first_->inject(SOFTWARE_HCA_REGISTER_FAILS, 0);
  EXPECT_EQ(put(b), (Seen{true, 2}));
}

TEST_F(VerbsRegistrationCache, OneThatATransferHoldsStays) {
  begin({{"ODP", "yes"}}, 2 * kBytes);
  const auto a = fleeting(), b = fleeting(), c = fleeting();
  EXPECT_TRUE(put(a).isByKey);
  EXPECT_TRUE(put(b).isByKey);
  ASSERT_TRUE(a.record->gate.enter());
  ASSERT_TRUE(b.record->gate.enter());
  EXPECT_FALSE(put(c).isByKey) << "there is no room";
  b.record->gate.leave();
  EXPECT_TRUE(put(c).isByKey) << "b leaves, though a is older";
  first_->inject(SOFTWARE_HCA_REGISTER_FAILS, -1, EIO);
  EXPECT_TRUE(put(a).isByKey) << "its key was kept";
  first_->inject(SOFTWARE_HCA_REGISTER_FAILS, 0);
  a.record->gate.leave();
}

TEST_F(VerbsRegistrationCache, MoreThanTheCacheHoldsIsCopied) {
  begin({{"ODP", "yes"}}, 2 * kBytes);
  const auto small = fleeting(), large = fleeting(4 * kBytes);
  EXPECT_TRUE(put(small).isByKey);
  EXPECT_FALSE(put(large).isByKey);
  EXPECT_TRUE(put(small).isByKey) << "and nothing leaves for it";
}

// As in a container that withholds userfaultfd.
TEST(VerbsRegistrationWatch, WithoutItMemoryIsCopiedAndNotGranted) {
  const pid_t child = ::fork();
  if (child == 0) {
    refuseCalls(SYS_userfaultfd, EPERM);
    {
      Sides sides({});
      const auto memory = sides.first.memory(kMegabyte);
      memory.record->isCached.store(true);
      EXPECT_GT(sides.moves(memory, 0, kMegabyte), 2u) << "through slots";
      expectRefusal(sides.grant(memory), Code::kNotSupported, "pages: userfaultfd");
      const auto texts = sides.first.nic()->keys().paths().texts();
      EXPECT_TRUE(std::any_of(texts.begin(), texts.end(), [](const std::string& text) {
        return text.starts_with(
            "memory of the host that the program may free without a word: "
            "pages, refused: userfaultfd");
      }));
    }
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// The key is of the region that the transfer holds, not of another one with the same bytes.
TEST(VerbsKeys, TheKeyIsOfTheRegionInUse) {
  VerbsSide side;
  RegionTable table;
  const auto keys = std::make_shared<MemoryKeys>(side.nic()->domain(), table, Config());
  const auto memory = side.memory(8 * kPage);
  const auto add = [&](uint64_t from, uint64_t bytes) {
    const auto range = memory.bytes.subspan(from, bytes);
    return table
        .add(range.data(), bytes, Access::kLocal, MemoryDescription(), nullptr, acquireHost(range))
        .value();
  };
  const auto remove = [&](const std::shared_ptr<RegionRecord>& record) {
    record->gate.close();
    table.remove(record->allocation);
  };
  std::byte* const at = memory.bytes.data() + 2 * kPage;
  const auto whole = add(0, 8 * kPage);
  const uint64_t before = keys->ended();
  const auto ofWhole = MUST(keys->find(at, 8));
  EXPECT_TRUE(ofWhole.holds(at, 8)) << "good for later requests, too";
  EXPECT_EQ(keys->ended(), before);

  const auto part = add(kPage, 2 * kPage);
  EXPECT_NE(keys->ended(), before) << "who found the key before looks again";
  EXPECT_EQ(keys->find(at, 8).status().code(), Code::kUnavailable) << "nobody holds either";
  ASSERT_TRUE(part->gate.enter());
  const auto ofPart = MUST(keys->find(at, 8));
  EXPECT_NE(ofPart.local, ofWhole.local);
  EXPECT_FALSE(ofPart.holds(at, 8)) << "the next transfer may hold the other one";
  // The whole region goes while a transfer of the part is under way.
  remove(whole);
  EXPECT_EQ(MUST(keys->find(at, 8)).local, ofPart.local);
  part->gate.leave();
  remove(part);
  EXPECT_EQ(keys->find(at, 8).status().code(), Code::kUnavailable);
}

// What a library of today and an older one are asked.
verbs::Library called;
int newCalls = 0, oldCalls = 0;
ibv_mr* countNew(ibv_pd* domain, verbs::MemoryAttributes* memory) {
  ++newCalls;
  return called.ibv_reg_mr_ex(domain, memory);
}
ibv_mr* countOld(ibv_pd* domain, uint64_t offset, size_t bytes, uint64_t address, int descriptor,
                 int rights) {
  ++oldCalls;
  return called.ibv_reg_dmabuf_mr(domain, offset, bytes, address, descriptor, rights);
}

TEST(VerbsDmaBuf, ByTheNewerCallWhereTheLibraryHasIt) {
  const Config config = Config::fromEnvironment().value();
  called = *MUST(verbs::library(config.ibvLibrary));
  ASSERT_NE(called.ibv_reg_mr_ex, nullptr);
  const int file = ::memfd_create("a dma-buf", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, 8 * kPage), 0);
  ::setenv("SOFTWARE_HCA_DMABUF", "yes", 1);
  for (const bool isOld : {false, true}) {
    verbs::Library library = called;
    library.ibv_reg_mr_ex = isOld ? nullptr : countNew;
    library.ibv_reg_dmabuf_mr = countOld;
    newCalls = oldCalls = 0;
    auto devices = MUST(verbs::VerbsDevice::openAll(library, config.ibDevices));
    const std::shared_ptr<const verbs::VerbsDevice> device = std::move(devices.front());
    const auto domain = MUST(ProtectionDomain::create(device));
    EXPECT_OK(verbs::probeDmaBuf(*device, domain->handle()));
    {
      const DeviceMemory made =
          MUST(domain->addDmaBuf(file, kPage, 2 * kPage, IBV_ACCESS_LOCAL_WRITE, 5 * kPage));
      EXPECT_NE(made.local(), 0u);
    }
    const Status beyond =
        domain->addDmaBuf(file, 7 * kPage, 2 * kPage, IBV_ACCESS_LOCAL_WRITE, 0).status();
    EXPECT_EQ(beyond.code(), Code::kSystem) << beyond.toString();
    const Status other = domain->addDmaBuf(file, 100, kPage, IBV_ACCESS_LOCAL_WRITE, 50).status();
    EXPECT_EQ(other.code(), Code::kSystem) << "another place in the page: " << other.toString();
    EXPECT_EQ(isOld ? oldCalls : newCalls, 4);
    EXPECT_EQ(isOld ? newCalls : oldCalls, 0);
  }
  ::unsetenv("SOFTWARE_HCA_DMABUF");
  ::close(file);
}

TEST(VerbsDmaBuf, WithoutAnyCallTheLibraryIsNamed) {
  const Config config = Config::fromEnvironment().value();
  verbs::Library library = *MUST(verbs::library(config.ibvLibrary));
  library.ibv_reg_mr_ex = nullptr;
  library.ibv_reg_dmabuf_mr = nullptr;
  auto devices = MUST(verbs::VerbsDevice::openAll(library, config.ibDevices));
  const std::shared_ptr<const verbs::VerbsDevice> device = std::move(devices.front());
  const auto domain = MUST(ProtectionDomain::create(device));
  expectRefusal(verbs::probeDmaBuf(*device, domain->handle()), Code::kNotSupported,
                "need rdma-core 34");
}

TEST(VerbsPort, TheLinkIsOfThePortThatIsNamed) {
  ::setenv("PEERLANE_IB_PORT", "2", 1);
  const HcaSettings settings{{"LIMITS", "ports=2"}};
  VerbsSide first(settings), second(settings);
  ::unsetenv("PEERLANE_IB_PORT");
  EXPECT_EQ(first.nic()->device().port(), 2);
  VerbsJoint joint(first, second);
  const auto local = first.memory(kPage), there = second.memory(kPage);
  const RemoteMemory remote = joint.attach(1, there);
  fillPattern(local.bytes, 7);
  Poster poster(joint, 0);
  poster.put({{local.bytes.data(), &remote, 0, kPage}});
  EXPECT_EQ(joint.settle(poster), Code::kOk);
  EXPECT_EQ(firstWrong(there.bytes, 7), kPage);
}

}  // namespace
}  // namespace peerlane
