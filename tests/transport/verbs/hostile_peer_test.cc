// SPDX-License-Identifier: Apache-2.0
//
// What a peer may send over a joined pair or in a grant that no build of ours sends: it may end its
// own link, and nothing else.
#include <endian.h>
#include <gtest/gtest.h>

#include "peerlane/core/wire.h"
#include "tests/core/expect_ok.h"
#include "tests/core/quiet_log.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

class VerbsHostilePeer : public testing::Test {
 protected:
  const QuietLog quiet_;
  // Side 0 sends this number, past its agent.
  void send(uint32_t number) {
    ibv_send_wr request{};
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = htobe32(number);
    request.send_flags = IBV_SEND_SIGNALED;
    ibv_send_wr* refused = nullptr;
    ASSERT_EQ(ibv_post_send(joint_.pair(0), &request, &refused), 0);
    HcaControl::get().settle(sides_[0].device());
  }
  Code endOf(int side) {
    EXPECT_TRUE(joint_.until([&] { return !joint_.link(side).health().isOk(); }));
    return joint_.link(side).health().code();
  }

  VerbsSide sides_[2];
  VerbsJoint joint_{sides_[0], sides_[1]}, other_{sides_[0], sides_[1]};
};

TEST_F(VerbsHostilePeer, NewsOfNoKnownKindEndsItsLinkAlone) {
  send(0x7f000000);
  EXPECT_EQ(endOf(1), Code::kCorrupt);
  EXPECT_OK(other_.link(1).health());
}

TEST_F(VerbsHostilePeer, AMailInNoSlotEndsItsLinkAlone) {
  send(News{News::Kind::kStore64, false, 16}.encode());
  EXPECT_EQ(endOf(1), Code::kCorrupt);
  EXPECT_OK(other_.link(1).health());
}

TEST_F(VerbsHostilePeer, AMailToNothingIsLeftOut) {
  send(News{News::Kind::kStore64, false, 3}.encode());
  const auto memory = sides_[1].memory(64);
  const RemoteMemory remote = joint_.attach(1, memory);
  Poster poster(joint_, 0);
  poster.store(remote, 0, 1);
  EXPECT_EQ(joint_.settle(poster), Code::kOk);
  EXPECT_OK(joint_.link(1).health());
}

TEST_F(VerbsHostilePeer, ConfirmationsOfNewsThatNeverWasGiveNothing) {
  for (int i = 0; i < 8; ++i) send(News{News::Kind::kTaken, true, 0}.encode());
  const auto memory = sides_[1].memory(64);
  const RemoteMemory remote = joint_.attach(1, memory);
  Poster poster(joint_, 0);
  for (uint32_t i = 0; i < Mailbox::kSlots; ++i) poster.store(remote, 0, i);
  EXPECT_EQ(joint_.settle(poster), Code::kOk);
  EXPECT_EQ(sides_[0].counts().rnrRetries, 0u);
  EXPECT_OK(joint_.link(1).health());
}

TEST_F(VerbsHostilePeer, AGrantThatIsCutOffIsRefused) {
  for (size_t bytes = 0; bytes < 8; ++bytes) {
    Grant grant;
    grant.own.blob.resize(bytes);
    const Status status = joint_.link(0).attach(std::move(grant)).status();
    EXPECT_EQ(status.code(), Code::kCorrupt) << bytes;
    EXPECT_NE(status.message().find("a grant over verbs"), std::string::npos);
  }
  Grant later;
  later.own.blob.resize(12);  // a later build appends
  EXPECT_OK(joint_.link(0).attach(std::move(later)).status());
}

// Whatever key and address it names, this side's device asks the peer's, which refuses.
TEST_F(VerbsHostilePeer, AGrantOfAnyKeyHarmsNobody) {
  const auto local = sides_[0].memory(4096);
  Grant grant;
  grant.region = {.allocation = 1,
                  .generation = 1,
                  .bytes = ~uint64_t{0},
                  .kind = {},
                  .access = Access::kRemoteReadWrite,
                  .device = {}};
  ByteWriter writer(grant.own.blob);
  writer.u32(0xdeadbeef);
  writer.u32(0xfffffff0);
  const RemoteMemory wrong = MUST(joint_.link(0).attach(std::move(grant)));
  Poster poster(joint_, 0);
  poster.put({{local.bytes.data(), &wrong, ~uint64_t{0} - 4096, 4096}});
  EXPECT_EQ(joint_.settle(poster), Code::kPermissionDenied);
  EXPECT_OK(other_.link(0).health());
}

}  // namespace
}  // namespace peerlane
