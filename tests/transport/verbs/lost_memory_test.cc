// SPDX-License-Identifier: Apache-2.0
//
// Memory of this side that its program loses while it is registered, where the CPU reads or writes
// it for a link over a NIC: a put whose bytes go with the request, and bytes that go through a
// slot. The work fails alone, as Revoked. (What the device itself reads and writes are its pages.)
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "peerlane/memory/region_reference.h"
#include "tests/channel/context_pair.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/os/file_memory.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

constexpr uint64_t kSmall = 64;
constexpr uint64_t kBytes = FileMemory::kBytes;
constexpr uint64_t kHalf = kBytes / 2;  // what a cut leaves

class VerbsLostMemory : public testing::TestWithParam<Loss> {
 protected:
  VerbsLostMemory() : there_(sides_[1].memory(kBytes)), remote_(joint_.attach(1, there_)) {
    fillPattern(there_.bytes, 1);
  }

  Code put(std::byte* from, uint64_t bytes) { return move(Verb::kPut, from, bytes); }
  Code get(std::byte* to, uint64_t bytes) { return move(Verb::kGet, to, bytes); }
  // No slot is missing, and later works of the same link, small and large, go on both ways.
  void expectOthersGoOn() {
    EXPECT_OK(joint_.link(0).health());
    EXPECT_OK(joint_.link(1).health());
    EXPECT_TRUE(sides_[0].areSlotsFree());
    for (const bool isHeld : {true, false})
      for (const uint64_t bytes : {kSmall, kHalf}) {
        const auto good = sides_[0].memory(bytes, isHeld);
        fillPattern(good.bytes, 2);
        EXPECT_EQ(put(good.bytes.data(), bytes), Code::kOk);
        EXPECT_EQ(firstWrong(there_.bytes.first(bytes), 2), bytes);
        std::fill(good.bytes.begin(), good.bytes.end(), std::byte{0});
        EXPECT_EQ(get(good.bytes.data(), bytes), Code::kOk);
        EXPECT_EQ(firstWrong(good.bytes, 2), bytes);
      }
  }

  FileMemory file_{std::byte{0x5a}};
  VerbsSide sides_[2];
  VerbsJoint joint_{sides_[0], sides_[1]};
  const VerbsSide::Memory there_;
  const RemoteMemory remote_;

 private:
  Code move(Verb verb, std::byte* local, uint64_t bytes) {
    Poster poster(joint_, 0);
    const Piece piece{local, &remote_, 0, bytes};
    verb == Verb::kPut ? poster.put({piece}) : poster.get({piece});
    return joint_.settle(poster);
  }
};

TEST_P(VerbsLostMemory, FailsAPutWhoseBytesGoWithItsRequest) {
  for (const bool isHeld : {true, false}) {
    FileMemory file(std::byte{0x5a});
    const auto lost = sides_[0].region({file.data(), kBytes}, Access::kLocal, isHeld);
    std::byte* const end = file.data() + kBytes - kSmall;
    ASSERT_EQ(put(end, kSmall), Code::kOk);
    ASSERT_EQ(std::count(there_.bytes.begin(), there_.bytes.begin() + kSmall, std::byte{0x5a}),
              ptrdiff_t{kSmall});
    file.lose(GetParam());
    fillPattern(there_.bytes, 1);
    EXPECT_EQ(put(end, kSmall), Code::kRevoked) << (isHeld ? "registered" : "not registered");
    EXPECT_EQ(firstWrong(there_.bytes, 1), kBytes) << "a put of memory that is gone wrote";
  }
  expectOthersGoOn();
}

// However many requests of the same put went before, in chains of 32: each is waited for.
TEST_P(VerbsLostMemory, FailsAPutOfWhichPartHasGone) {
  const auto good = sides_[0].memory(kBytes);
  const auto lost = sides_[0].region({file_.data(), kBytes}, Access::kLocal);
  ASSERT_EQ(put(file_.data() + kHalf, kSmall), Code::kOk);
  file_.lose(GetParam());
  for (uint64_t before = 1; before <= 70; ++before) {
    std::vector<Piece> pieces;
    for (uint64_t i = 0; i < before; ++i)
      pieces.push_back({good.bytes.data() + i * kSmall, &remote_, 2 * i * kSmall, kSmall});
    pieces.push_back({file_.data() + kHalf, &remote_, 2 * before * kSmall, kSmall});
    Poster poster(joint_, 0);
    poster.put(pieces);
    ASSERT_EQ(joint_.settle(poster), Code::kRevoked) << before;
  }
  expectOthersGoOn();
}

// Of many slots' worth the first half is there in a file that was cut.
TEST_P(VerbsLostMemory, FailsAPutThroughSlots) {
  const auto lost = sides_[0].region({file_.data(), kBytes}, Access::kLocal, /*isHeld=*/false);
  ASSERT_EQ(put(file_.data(), kBytes), Code::kOk);
  file_.lose(GetParam());
  EXPECT_EQ(put(file_.data(), kBytes), Code::kRevoked);
  EXPECT_EQ(put(file_.data() + kHalf, kSmall + 1), Code::kRevoked);
  expectOthersGoOn();
}

TEST_P(VerbsLostMemory, FailsAGetThroughSlots) {
  const auto lost = sides_[0].region({file_.data(), kBytes}, Access::kLocal, /*isHeld=*/false);
  ASSERT_EQ(get(file_.data(), kBytes), Code::kOk);
  file_.lose(GetParam());
  EXPECT_EQ(get(file_.data() + kHalf, kSmall), Code::kRevoked);
  EXPECT_EQ(get(file_.data(), kBytes), Code::kRevoked);
  expectOthersGoOn();
}

// The answer is under way when the memory goes.
TEST_P(VerbsLostMemory, FailsAGetWhoseAnswerComesLater) {
  const auto lost = sides_[0].region({file_.data(), kBytes}, Access::kLocal, /*isHeld=*/false);
  HcaControl::get().hold(sides_[0].device());
  Poster poster(joint_, 0);
  poster.get({{file_.data() + kHalf, &remote_, 0, kSmall}});
  poster.serve();
  file_.lose(GetParam());
  HcaControl::get().release(sides_[0].device());
  EXPECT_EQ(joint_.settle(poster), Code::kRevoked);
  expectOthersGoOn();
}

// A word that is tied to a put never announces bytes that did not leave.
TEST_P(VerbsLostMemory, FailsTheWordThatIsTiedToThePut) {
  const auto lost = sides_[0].region({file_.data(), kBytes}, Access::kLocal);
  file_.lose(GetParam());
  const Piece piece{file_.data() + kHalf, &remote_, 0, kSmall};
  Mailbox mailbox(joint_.link(0));
  MailboxEntry& entry = *mailbox.claim();
  entry.verb = Verb::kPut;
  entry.pieces = &piece;
  entry.pieceCount = 1;
  MailboxEntry& word = *mailbox.claim();
  word.verb = Verb::kStore;
  word.onlyAfterPrevious = true;
  word.remote = &remote_;
  word.remoteOffset = kSmall;
  word.operand = 7;
  mailbox.ring();
  ASSERT_TRUE(joint_.until([&] {
    (void)mailbox.serve();
    return mailbox.idle();
  }));
  EXPECT_EQ(mailbox.code(), Code::kRevoked);
  EXPECT_EQ(firstWrong(there_.bytes, 1), kBytes);
  expectOthersGoOn();
}

// The user learns which region it was.
TEST_P(VerbsLostMemory, IsNamedByTheTransfer) {
  for (const IbRegister way : {IbRegister::kAuto, IbRegister::kStaged}) {
    Config config = configFor(kVerbs);
    config.ibRegister = way;
    ContextPair pair(config);
    TestMemory near(*pair.a, kSmall, false);
    TestMemory far(*pair.b, kSmall, false, Access::kRemoteReadWrite, 2);
    const RemoteRegion remote = far.importedBy(pair.toB);
    FileMemory file(std::byte{0x5a});
    const Region lost = MUST(pair.a->registerRegion(file.data(), kBytes, Access::kLocal));
    const auto move = [&](bool isPut, const Region& local, uint64_t offset) {
      const Block block{&local, offset, &remote, 0, kSmall};
      return MUST(isPut ? peerlane::put(pair.toB, {&block, 1})
                        : peerlane::get(pair.toB, {&block, 1}))
          .wait(kSoon);
    };
    ASSERT_OK(move(true, lost, kHalf));
    file.lose(GetParam());
    const std::string name =
        "region " + std::to_string(MUST(RegionReference::decode(lost.share())).allocation) +
        " of this side";
    // What the device brings by itself goes to its pages.
    for (const bool isPut : {true, false}) {
      if (!isPut && way != IbRegister::kStaged) continue;
      const Status status = move(isPut, lost, kHalf);
      EXPECT_EQ(status.code(), Code::kRevoked) << status.toString();
      EXPECT_NE(status.message().find(name), std::string_view::npos) << status.toString();
    }
    EXPECT_OK(move(true, near.region(), 0));
    EXPECT_EQ(firstDifference(near.data(), far.data(), kSmall), kSmall);
    EXPECT_OK(move(false, near.region(), 0));
    std::memcpy(far.shadow(), far.data(), kSmall);
    EXPECT_OK(pair.a->unregister(lost, kSoon));
  }
}

std::string lossName(const testing::TestParamInfo<Loss>& info) {
  return info.param == Loss::kCut        ? "cut"
         : info.param == Loss::kUnmapped ? "unmapped"
                                         : "protected";
}
INSTANTIATE_TEST_SUITE_P(Losses, VerbsLostMemory,
                         testing::Values(Loss::kCut, Loss::kUnmapped, Loss::kProtected), lossName);

}  // namespace
}  // namespace peerlane
