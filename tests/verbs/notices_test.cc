// SPDX-License-Identifier: Apache-2.0
// Completion channels, asynchronous events, shared receive queues.
#include <fcntl.h>
#include <poll.h>

#include "tests/verbs/connected_pairs.h"

namespace peerlane {
namespace {

class NoticeTest : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    if (HasFatalFailure()) return;
    channel = verbs.create_comp_channel(context);
    ASSERT_NE(channel, nullptr);
    queue = verbs.create_cq(context, 64, this, channel, 0);
    ASSERT_NE(queue, nullptr);
    PairWishes wishes;
    wishes.receiveQueue = queue;
    a = makePair();
    b = makePair(wishes);
    connect(a, b);
    for (uint64_t i = 0; i < 8; ++i) ASSERT_EQ(postReceive(b, i, 0), 0);
  }
  void TearDown() override {
    if (b != nullptr) {
      EXPECT_EQ(verbs.destroy_qp(takeLastPair()), 0);
    }
    if (queue != nullptr) {
      EXPECT_EQ(verbs.destroy_cq(queue), 0);
    }
    if (channel != nullptr) {
      EXPECT_EQ(verbs.destroy_comp_channel(channel), 0);
    }
    VerbsTest::TearDown();
  }
  bool isReadable(int fd, int milliseconds = 0) {
    pollfd ready = {fd, POLLIN, 0};
    return ::poll(&ready, 1, milliseconds) == 1;
  }
  void takeNotice() {
    ASSERT_TRUE(isReadable(channel->fd, 30'000)) << "no notice came";
    ibv_cq* from = nullptr;
    void* of = nullptr;
    ASSERT_EQ(verbs.get_cq_event(channel, &from, &of), 0);
    EXPECT_EQ(from, queue);
    EXPECT_EQ(of, this);
    verbs.ack_cq_events(from, 1);
  }
  ibv_wc writeImmediate(bool isSolicited) {
    ibv_send_wr wish = request(IBV_WR_RDMA_WRITE_WITH_IMM, 8);
    if (isSolicited) wish.send_flags |= IBV_SEND_SOLICITED;
    EXPECT_EQ(run(a, wish).status, IBV_WC_SUCCESS);
    return poll(queue);
  }
  ibv_comp_channel* channel = nullptr;
  ibv_cq* queue = nullptr;
  ibv_qp *a = nullptr, *b = nullptr;
};

TEST_F(NoticeTest, ANoticeForEachArming) {
  writeImmediate(false);
  EXPECT_FALSE(isReadable(channel->fd)) << "nobody asked";
  ASSERT_EQ(ibv_req_notify_cq(queue, 0), 0);
  EXPECT_FALSE(isReadable(channel->fd)) << "not for what came before";
  writeImmediate(false);
  takeNotice();
  writeImmediate(false);
  EXPECT_FALSE(isReadable(channel->fd)) << "it has to be asked for again";
}

TEST_F(NoticeTest, SolicitedOnesOnly) {
  ASSERT_EQ(ibv_req_notify_cq(queue, 1), 0);
  writeImmediate(false);
  EXPECT_FALSE(isReadable(channel->fd));
  writeImmediate(true);
  takeNotice();
}

TEST_F(NoticeTest, AnErrorIsSolicited) {
  ASSERT_EQ(ibv_req_notify_cq(queue, 1), 0);
  ibv_qp_attr change = {};
  change.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(verbs.modify_qp(b, &change, IBV_QP_STATE), 0);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(poll(queue).status, IBV_WC_WR_FLUSH_ERR);
  if (device.errorsAreSolicited)
    takeNotice();
  else
    EXPECT_FALSE(isReadable(channel->fd));
}

TEST_F(NoticeTest, ATargetThatOnlyReceivesIsToldOfTheFirstPacket) {
  while (isReadable(context->async_fd)) events();
  ibv_qp* c = makePair();
  ibv_qp* d = makePair();
  toInit(c);
  toInit(d);
  toReceive(c, d->qp_num);
  toReceive(d, c->qp_num);
  toSend(c);
  EXPECT_EQ(run(c, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_SUCCESS);
  ASSERT_EQ(isReadable(context->async_fd, device.raisesEstablished ? 30'000 : 0),
            device.raisesEstablished);
  if (device.raisesEstablished) {
    ibv_async_event told = {};
    ASSERT_EQ(verbs.get_async_event(context, &told), 0);
    EXPECT_EQ(told.event_type, IBV_EVENT_COMM_EST);
    EXPECT_EQ(told.element.qp, d);
    verbs.ack_async_event(&told);
  }
  for (ibv_qp* pair : {takeLastPair(), takeLastPair()}) EXPECT_EQ(verbs.destroy_qp(pair), 0);
}

TEST_F(NoticeTest, AQueueThatOverflowsIsInError) {
  ibv_cq* small = verbs.create_cq(context, 3, nullptr, nullptr, 0);
  ASSERT_NE(small, nullptr);
  PairWishes wishes;
  wishes.sendQueue = small;
  ibv_qp* c = makePair(wishes);
  ibv_qp* d = makePair();
  connect(c, d);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8);
  for (int i = 0; i <= small->cqe; ++i) ASSERT_EQ(post(c, wish), 0);
  ibv_async_event told = event();
  EXPECT_EQ(told.event_type, IBV_EVENT_CQ_ERR);
  EXPECT_EQ(told.element.cq, small);
  EXPECT_EQ(verbs.destroy_qp(takeLastPair()), 0);
  EXPECT_EQ(verbs.destroy_qp(takeLastPair()), 0);
  EXPECT_EQ(verbs.destroy_cq(small), 0);
}

TEST_F(NoticeTest, ADescriptorThatDoesNotBlock) {
  ASSERT_EQ(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
  ibv_cq* from = nullptr;
  void* of = nullptr;
  EXPECT_EQ(verbs.get_cq_event(channel, &from, &of), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(fcntl(context->async_fd, F_SETFL, O_NONBLOCK), 0);
  while (!events().empty()) {
  }
  ibv_async_event none = {};
  EXPECT_EQ(verbs.get_async_event(context, &none), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(NoticeTest, AChannelInUseStays) {
  EXPECT_EQ(verbs.destroy_comp_channel(channel), EBUSY);
}

class SharedTest : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    if (HasFatalFailure()) return;
    ibv_srq_init_attr asked = {nullptr, {16, 2, 0}};
    shared = verbs.create_srq(domain, &asked);
    ASSERT_NE(shared, nullptr);
  }
  int postShared(uint64_t id, size_t bytes, size_t offset) {
    ibv_sge piece = {far->address(offset), static_cast<uint32_t>(bytes), far->key()};
    ibv_recv_wr wish = {id, nullptr, &piece, 1};
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(shared, &wish, &bad);
  }
  void TearDown() override {
    while (ibv_qp* pair = takeLastPair()) EXPECT_EQ(verbs.destroy_qp(pair), 0);
    if (shared != nullptr) {
      EXPECT_EQ(verbs.destroy_srq(shared), 0);
    }
    VerbsTest::TearDown();
  }
  ibv_srq* shared = nullptr;
};

TEST_F(SharedTest, ReceivesGoToWhoeverComes) {
  PairWishes wishes;
  wishes.shared = shared;
  ibv_qp* targets[2];
  ibv_qp* sources[2];
  for (int i = 0; i < 2; ++i) {
    sources[i] = makePair();
    targets[i] = makePair(wishes);
    connect(sources[i], targets[i]);
  }
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(postShared(i, 1024, i * 1024), 0);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(run(sources[i % 2], request(IBV_WR_SEND, 100)).status, IBV_WC_SUCCESS);
    const ibv_wc seen = poll(received);
    EXPECT_EQ(seen.wr_id, static_cast<uint64_t>(i));
    EXPECT_EQ(seen.qp_num, targets[i % 2]->qp_num);
  }
  EXPECT_EQ(verbs.destroy_srq(shared), EBUSY);
}

TEST_F(SharedTest, BelowTheLimitThereIsOneEvent) {
  PairWishes wishes;
  wishes.shared = shared;
  ibv_qp* a = makePair();
  ibv_qp* b = makePair(wishes);
  connect(a, b);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(postShared(i, 64, 0), 0);
  ibv_srq_attr attributes = {0, 0, 3};
  ASSERT_EQ(verbs.modify_srq(shared, &attributes, IBV_SRQ_LIMIT), 0);
  EXPECT_EQ(run(a, request(IBV_WR_SEND, 8)).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(run(a, request(IBV_WR_SEND, 8)).status, IBV_WC_SUCCESS);
  const ibv_async_event told = event();
  EXPECT_EQ(told.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(told.element.srq, shared);
  EXPECT_EQ(run(a, request(IBV_WR_SEND, 8)).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(events().empty()) << "once";
  ASSERT_EQ(verbs.query_srq(shared, &attributes), 0);
  EXPECT_EQ(attributes.srq_limit, 0u);
  for (int i = 0; i < 3; ++i) poll(received);
}

TEST_F(SharedTest, ThePairSaysWhenItTakesNoMore) {
  PairWishes wishes;
  wishes.shared = shared;
  ibv_qp* a = makePair();
  ibv_qp* b = makePair(wishes);
  connect(a, b);
  ASSERT_EQ(postShared(1, 64, 0), 0);
  ibv_qp_attr change = {};
  change.qp_state = IBV_QPS_ERR;
  ASSERT_EQ(verbs.modify_qp(b, &change, IBV_QP_STATE), 0);
  EXPECT_EQ(event().event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_TRUE(isEmpty(received)) << "shared receives are for others";
}

TEST_F(SharedTest, AFullOneTakesNoMore) {
  int refused = 0, taken = 0;
  while (taken < 1000 && (refused = postShared(1, 64, 0)) == 0) ++taken;
  EXPECT_EQ(refused, ENOMEM);
  EXPECT_GE(taken, 16);
}

}  // namespace
}  // namespace peerlane
