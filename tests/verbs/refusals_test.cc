// SPDX-License-Identifier: Apache-2.0
// What a device refuses: keys, bounds, rights, domains; what then becomes of both pairs.
#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/verbs/connected_pairs.h"

namespace peerlane {
namespace {

class RefusalTest : public ConnectedTest {
 protected:
  // The request fails like this, both pairs are in error, and the target's program is told.
  void expectRefused(ibv_send_wr wish, ibv_wc_status status) {
    EXPECT_EQ(run(a, wish).status, status) << verbs.wc_status_str(status);
    waitForState(a, IBV_QPS_ERR);
    waitForState(b, IBV_QPS_ERR);
    EXPECT_EQ(run(a, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_WR_FLUSH_ERR)
        << "what comes behind is flushed";
  }
};

TEST_F(RefusalTest, AKeyThatNobodyGaveOut) {
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 64);
  wish.wr.rdma.rkey ^= 0x00ff00;
  expectRefused(wish, IBV_WC_REM_ACCESS_ERR);
  const ibv_async_event told = event();
  EXPECT_EQ(told.event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(told.element.qp, b);
}

TEST_F(RefusalTest, PastTheEndOfARegion) {
  expectRefused(request(IBV_WR_RDMA_WRITE, 64, 0, kSideBytes - 63), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RefusalTest, BeforeTheBeginOfARegion) {
  ibv_send_wr wish = request(IBV_WR_RDMA_READ, 64);
  wish.wr.rdma.remote_addr -= 1;
  expectRefused(wish, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RefusalTest, ADeregisteredRegion) {
  Side other(domain, kAllRights);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 64);
  wish.wr.rdma.rkey = other.remoteKey();
  wish.wr.rdma.remote_addr = other.address();
  EXPECT_EQ(run(a, wish).status, IBV_WC_SUCCESS);
  EXPECT_EQ(verbs.dereg_mr(other.region), 0);
  other.region = nullptr;
  expectRefused(wish, IBV_WC_REM_ACCESS_ERR);
}

TEST_F(RefusalTest, ARegionOfAnotherDomain) {
  ibv_pd* domain2 = verbs.alloc_pd(context);
  {
    Side other(domain2, kAllRights);
    ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 64);
    wish.wr.rdma.rkey = other.remoteKey();
    wish.wr.rdma.remote_addr = other.address();
    expectRefused(wish, IBV_WC_REM_ACCESS_ERR);
  }
  EXPECT_EQ(verbs.dealloc_pd(domain2), 0);
}

TEST_F(RefusalTest, RightsOfTheRegionCount) {
  struct Case {
    int access;
    ibv_wr_opcode opcode;
  };
  for (const Case& one :
       {Case{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_WRITE},
        Case{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_READ},
        Case{IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD}}) {
    Side other(domain, one.access);
    ibv_qp* c = makePair();
    ibv_qp* d = makePair();
    connect(c, d);
    ibv_send_wr wish = request(one.opcode, 8);
    if (one.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wish.wr.atomic.remote_addr = other.address();
      wish.wr.atomic.rkey = other.remoteKey();
    } else {
      wish.wr.rdma.remote_addr = other.address();
      wish.wr.rdma.rkey = other.remoteKey();
    }
    EXPECT_EQ(run(c, wish).status, IBV_WC_REM_ACCESS_ERR) << one.opcode;
    waitForState(d, IBV_QPS_ERR);
  }
}

TEST_F(RefusalTest, RightsOfThePairCount) {
  PathWishes path;
  path.access = IBV_ACCESS_REMOTE_READ;
  ibv_qp* c = makePair();
  ibv_qp* d = makePair();
  connect(c, d, path);
  EXPECT_EQ(run(c, request(IBV_WR_RDMA_READ, 8)).status, IBV_WC_SUCCESS);
  EXPECT_EQ(run(c, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_REM_INV_REQ_ERR);
  waitForState(d, IBV_QPS_ERR);
  const std::vector<ibv_event_type> told = events();
  EXPECT_EQ(std::count(told.begin(), told.end(), IBV_EVENT_QP_REQ_ERR),
            device.raisesRequestError ? 1 : 0);
}

TEST_F(RefusalTest, AnAtomicThatIsNotAligned) {
  ibv_send_wr wish = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 4);
  if (device.unalignedAtomic != 0) {
    EXPECT_EQ(post(a, wish), device.unalignedAtomic);
    return;
  }
  EXPECT_EQ(run(a, wish).status, IBV_WC_REM_INV_REQ_ERR);
  waitForState(b, IBV_QPS_ERR);
}

TEST_F(RefusalTest, AWrongLocalKey) {
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 64);
  wish.sg_list->lkey ^= 0x00ff00;
  EXPECT_EQ(run(a, wish).status, device.badLocalKey);
  waitForState(a, IBV_QPS_ERR);
}

TEST_F(RefusalTest, AMessageLongerThanItsReceive) {
  ASSERT_EQ(postReceive(b, 5, 100), 0);
  EXPECT_EQ(run(a, request(IBV_WR_SEND, 101)).status, device.tooLongSent);
  const ibv_wc seen = poll(received);
  EXPECT_EQ(seen.wr_id, 5u);
  EXPECT_EQ(seen.status, device.tooLongReceived);
}

TEST_F(RefusalTest, NoReceive) {
  PathWishes path;
  path.rnrRetries = 1;
  ibv_qp* c = makePair();
  ibv_qp* d = makePair();
  connect(c, d, path);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE_WITH_IMM, 3000);
  EXPECT_EQ(run(c, wish).status, IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(stateOf(c), IBV_QPS_ERR);
  EXPECT_EQ(stateOf(d), IBV_QPS_RTS) << "the target did nothing wrong";
  EXPECT_EQ(memcmp(far->at(), near->at(), 2048), 0) << "all packets but the last were placed";
}

TEST_F(RefusalTest, AReceiveThatComesLaterIsWaitedFor) {
  ibv_send_wr wish = request(IBV_WR_SEND, 500);
  ASSERT_EQ(post(a, wish), 0);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(isEmpty(sent));
  ASSERT_EQ(postReceive(b, 1, 500), 0);
  EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
  EXPECT_EQ(poll(received).byte_len, 500u);
  countMoved(500);
}

TEST_F(RefusalTest, APairThatIsGone) {
  PathWishes path;
  path.timeout = 8;
  path.retries = 2;
  ibv_qp* c = makePair();
  toInit(c, path);
  toReceive(c, 0xfffffe, path);
  toSend(c, path);
  EXPECT_EQ(run(c, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_RETRY_EXC_ERR);
  waitForState(c, IBV_QPS_ERR);
}

TEST_F(RefusalTest, PacketNumbersThatDoNotMatch) {
  PathWishes path;
  path.timeout = 8;
  path.retries = 2;
  ibv_qp* c = makePair();
  ibv_qp* d = makePair();
  toInit(c, path);
  toInit(d, path);
  toReceive(c, d->qp_num, path);
  toReceive(d, c->qp_num, path);
  path.sendNumber = 5000;
  toSend(c, path);
  EXPECT_EQ(run(c, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(*far->word(0), 0u);
}

// Packets of reliable connections do not say which pair sent them.
TEST_F(RefusalTest, ANumberOfPacketsIsAllThatKeepsStrangersOut) {
  PathWishes path;
  path.timeout = 8;
  path.retries = 2;
  ibv_qp* c = makePair();
  toInit(c, path);
  toReceive(c, b->qp_num, path);
  path.sendNumber = 7777;
  toSend(c, path);
  EXPECT_EQ(run(c, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(*far->word(0), 0u);

  ibv_qp* d = makePair();
  toInit(d, path);
  toReceive(d, b->qp_num, path);
  path.sendNumber = 100;
  toSend(d, path);
  EXPECT_EQ(run(d, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_RETRY_EXC_ERR)
      << "the answer goes to the peer";
  EXPECT_NE(*far->word(0), 0u) << "but it was done";
}

TEST_F(RefusalTest, WhatWasPostedToAPairInErrorIsFlushed) {
  ASSERT_EQ(postReceive(a, 3, 100), 0);
  ibv_qp_attr change = {};
  change.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(verbs.modify_qp(a, &change, IBV_QP_STATE), 0);
  const ibv_wc flushed = poll(received);
  EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(flushed.wr_id, 3u);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8);
  wish.send_flags = 0;
  EXPECT_EQ(run(a, wish).status, IBV_WC_WR_FLUSH_ERR) << "also where none was asked for";
  if (!device.flushesLateReceives) return;
  ASSERT_EQ(postReceive(a, 4, 100), 0);
  EXPECT_EQ(poll(received).wr_id, 4u);
}

}  // namespace
}  // namespace peerlane
