// SPDX-License-Identifier: Apache-2.0
// In which order bytes become visible at a target: what is promised holds, and what is not promised
// is seen broken.
#include <cstring>

#include "tests/verbs/software_controls.h"

namespace peerlane {
namespace {

constexpr size_t kData = 4096, kWord = 128 << 10;
constexpr int kRounds = 300;

class OrderTest : public SoftwareTest {
 protected:
  explicit OrderTest(const char* order)
      : SoftwareTest({{"SOFTWARE_HCA_ORDER", order}, {"SOFTWARE_HCA_WINDOW_US", "40"}}) {}

  void SetUp() override {
    SoftwareTest::SetUp();
    relaxed = verbs.reg_mr_iova2(domain, far->at(), kSideBytes, far->address(),
                                 kAllRights | IBV_ACCESS_RELAXED_ORDERING);
    ASSERT_NE(relaxed, nullptr);
  }
  void TearDown() override {
    EXPECT_EQ(verbs.dereg_mr(relaxed), 0);
    SoftwareTest::TearDown();
  }

  // How often the word (or the immediate) was seen before all of the data that was sent before it.
  int roundsOutOfOrder(ibv_wr_opcode opcode, uint32_t dataKey, uint32_t wordKey) {
    int broken = 0;
    for (int round = 1; round <= kRounds; ++round) {
      memset(near->at(), round, kData);
      ibv_send_wr data = request(IBV_WR_RDMA_WRITE, kData);
      data.wr.rdma.rkey = dataKey;
      data.send_flags = 0;
      *near->word(kWord) = static_cast<uint64_t>(round);
      ibv_send_wr word = request(opcode, 8, kWord, kWord);
      if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        word.sg_list->addr = near->address(kWord + 64);
        word.wr.atomic.rkey = wordKey;
        word.wr.atomic.compare_add = 1;
      } else {
        word.wr.rdma.rkey = wordKey;
      }
      if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
        EXPECT_EQ(postReceive(b, 0, 0), 0);
      }
      data.next = &word;
      EXPECT_EQ(post(a, data), 0);
      if (opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
        EXPECT_EQ(poll(received).status, IBV_WC_SUCCESS);
      else
        while (__atomic_load_n(far->word(kWord), __ATOMIC_ACQUIRE) != static_cast<uint64_t>(round))
          sched_yield();
      broken += isComplete(round) ? 0 : 1;
      EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
      EXPECT_TRUE(isComplete(round)) << "the completion says that all is there";
    }
    return broken;
  }
  bool isComplete(int round) const {
    const uint64_t whole = 0x0101010101010101 * static_cast<uint64_t>(round & 0xff);
    for (size_t at = 0; at < kData; at += 8)
      if (__atomic_load_n(far->word(at), __ATOMIC_RELAXED) != whole) return false;
    return true;
  }
  ibv_mr* relaxed = nullptr;
};

class IbtaOrderTest : public OrderTest {
 protected:
  IbtaOrderTest() : OrderTest("ibta") {}
};
class RelaxedOrderTest : public OrderTest {
 protected:
  RelaxedOrderTest() : OrderTest("relaxed") {}
};
class AdaptiveOrderTest : public OrderTest {
 protected:
  AdaptiveOrderTest() : OrderTest("adaptive") {}
};

TEST_F(IbtaOrderTest, WritesArriveInOrder) {
  EXPECT_EQ(roundsOutOfOrder(IBV_WR_RDMA_WRITE, relaxed->rkey, relaxed->rkey), 0);
}

TEST_F(RelaxedOrderTest, AStrictWordWaitsForRelaxedData) {
  EXPECT_EQ(roundsOutOfOrder(IBV_WR_RDMA_WRITE, relaxed->rkey, far->remoteKey()), 0);
}
TEST_F(RelaxedOrderTest, ARelaxedWordOvertakes) {
  EXPECT_GT(roundsOutOfOrder(IBV_WR_RDMA_WRITE, relaxed->rkey, relaxed->rkey), 0);
}
TEST_F(RelaxedOrderTest, AnAtomicWaits) {
  EXPECT_EQ(roundsOutOfOrder(IBV_WR_ATOMIC_FETCH_AND_ADD, relaxed->rkey, relaxed->rkey), 0);
}
TEST_F(RelaxedOrderTest, AnImmediateWaits) {
  EXPECT_EQ(roundsOutOfOrder(IBV_WR_RDMA_WRITE_WITH_IMM, relaxed->rkey, relaxed->rkey), 0);
}

TEST_F(AdaptiveOrderTest, AStrictWordOvertakesStrictData) {
  EXPECT_GT(roundsOutOfOrder(IBV_WR_RDMA_WRITE, far->remoteKey(), far->remoteKey()), 0);
}
TEST_F(AdaptiveOrderTest, AnAtomicWaits) {
  EXPECT_EQ(roundsOutOfOrder(IBV_WR_ATOMIC_FETCH_AND_ADD, far->remoteKey(), far->remoteKey()), 0);
}
TEST_F(AdaptiveOrderTest, AnImmediateWaits) {
  EXPECT_EQ(roundsOutOfOrder(IBV_WR_RDMA_WRITE_WITH_IMM, far->remoteKey(), far->remoteKey()), 0);
}
TEST_F(AdaptiveOrderTest, AReadMayMissAnEarlierWriteUnlessFenced) {
  int missed = 0;
  for (int round = 1; round <= kRounds; ++round) {
    *near->word(0) = static_cast<uint64_t>(round);
    ibv_send_wr write = request(IBV_WR_RDMA_WRITE, 8);
    ibv_send_wr read = request(IBV_WR_RDMA_READ, 8, 64, 0);
    write.send_flags = 0;
    write.next = &read;
    ASSERT_EQ(post(a, write), 0);
    EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
    missed += *near->word(64) == static_cast<uint64_t>(round) ? 0 : 1;
  }
  EXPECT_GT(missed, 0);
}

}  // namespace
}  // namespace peerlane
