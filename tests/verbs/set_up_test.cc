// SPDX-License-Identifier: Apache-2.0
// Making things and changing them: states of pairs, limits, what is read back, wrong arguments.
#include <array>
#include <cstring>

#include "tests/verbs/connected_pairs.h"

namespace peerlane {
namespace {

using SetUpTest = VerbsTest;

TEST_F(SetUpTest, DeviceAndPortSayWhatTheyAre) {
  ibv_device_attr_ex attributes = {};
  // As the inline functions of verbs.h do it, which refer to symbols besides.
  verbs_context* tables = verbs_get_ctx(context);
  ASSERT_EQ(tables->query_device_ex(context, nullptr, &attributes, sizeof attributes), 0);
  EXPECT_GE(attributes.orig_attr.max_sge, 4);
  EXPECT_GE(attributes.orig_attr.max_qp_rd_atom, 4);
  EXPECT_NE(attributes.orig_attr.atomic_cap, IBV_ATOMIC_NONE);
  EXPECT_EQ(attributes.orig_attr.phys_port_cnt, 1);
  ibv_port_attr port = {};
  ASSERT_EQ(tables->query_port(context, 1, &port, sizeof port), 0);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_GT(port.gid_tbl_len, gidIndex);
  EXPECT_GE(port.active_mtu, IBV_MTU_1024);
  EXPECT_EQ(tables->query_port(context, 2, &port, sizeof port), EINVAL);
  EXPECT_STREQ(verbs.port_state_str(IBV_PORT_ACTIVE), "active");
  EXPECT_EQ(context->device->transport_type, IBV_TRANSPORT_IB);
}

TEST_F(SetUpTest, GidsAndPkeys) {
  ibv_gid_entry entry = {};
  ASSERT_EQ(verbs.query_gid_ex(context, 1, gidIndex, &entry, 0, sizeof entry), 0);
  EXPECT_EQ(memcmp(entry.gid.raw, gid.raw, sizeof gid.raw), 0);
  EXPECT_EQ(entry.gid_index, gidIndex);
  EXPECT_EQ(entry.gid_type, static_cast<uint32_t>(IBV_GID_TYPE_ROCE_V2));
  EXPECT_NE(entry.ndev_ifindex, 0u);
  __be16 pkey = 0;
  ASSERT_EQ(verbs.query_pkey(context, 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, 0xffff);
  EXPECT_EQ(verbs.get_pkey_index(context, 1, pkey), 0);
  EXPECT_EQ(verbs.query_pkey(context, 1, 9999, &pkey), -1);
}

TEST_F(SetUpTest, ForksNeedNothing) {
  EXPECT_EQ(verbs.fork_init(), EINVAL) << "too late: memory was registered before";
  EXPECT_EQ(verbs.is_fork_initialized(), IBV_FORK_UNNEEDED);
}

TEST_F(SetUpTest, NothingIsInOrderByItself) {
  EXPECT_EQ(verbs.query_qp_data_in_order(makePair(), IBV_WR_RDMA_WRITE, 0), 0);
}

TEST_F(SetUpTest, WhatWasMadeIsReadBack) {
  ibv_qp_init_attr asked = {};
  asked.send_cq = sent;
  asked.recv_cq = received;
  asked.cap = {50, 20, 3, 2, 40};
  asked.qp_type = IBV_QPT_RC;
  ibv_qp* pair = verbs.create_qp(domain, &asked);
  ASSERT_NE(pair, nullptr);
  EXPECT_GE(asked.cap.max_send_wr, 50u);
  EXPECT_GE(asked.cap.max_recv_wr, 20u);
  EXPECT_GE(asked.cap.max_send_sge, 3u);
  EXPECT_GE(asked.cap.max_inline_data, 40u);
  ibv_qp_attr attributes = {};
  ibv_qp_init_attr made = {};
  ASSERT_EQ(verbs.query_qp(pair, &attributes, IBV_QP_CAP, &made), 0);
  EXPECT_EQ(made.cap.max_inline_data, asked.cap.max_inline_data);
  EXPECT_EQ(made.cap.max_send_sge, asked.cap.max_send_sge);
  EXPECT_EQ(verbs.destroy_qp(pair), 0);
}

TEST_F(SetUpTest, BeyondTheLimitsNothingIsMade) {
  ibv_device_attr limits = {};
  ASSERT_EQ(verbs.query_device(context, &limits), 0);
  ibv_qp_init_attr good = {};
  good.send_cq = sent;
  good.recv_cq = received;
  good.cap = {16, 16, 1, 1, 0};
  good.qp_type = IBV_QPT_RC;
  ibv_qp_init_attr bad = good;
  bad.cap.max_send_sge = static_cast<uint32_t>(limits.max_sge) + 1;
  EXPECT_EQ(verbs.create_qp(domain, &bad), nullptr);
  EXPECT_EQ(errno, EINVAL);
  bad = good;
  bad.cap.max_send_wr = static_cast<uint32_t>(limits.max_qp_wr) + 1;
  EXPECT_EQ(verbs.create_qp(domain, &bad), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(verbs.create_cq(context, limits.max_cqe + 1, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(verbs.create_cq(context, 0, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(SetUpTest, QueuesAreRoundedUpByDrivers) {
  ibv_cq* queue = verbs.create_cq(context, 100, nullptr, nullptr, 0);
  ASSERT_NE(queue, nullptr);
  EXPECT_EQ(queue->cqe, 127);
  EXPECT_EQ(verbs.destroy_cq(queue), 0);
}

TEST_F(SetUpTest, StatesHaveAnOrder) {
  ibv_qp* pair = makePair();
  EXPECT_EQ(stateOf(pair), IBV_QPS_RESET);
  ibv_qp_attr change = {};
  change.qp_state = IBV_QPS_RTR;
  EXPECT_EQ(verbs.modify_qp(pair, &change, IBV_QP_STATE), EINVAL) << "from RESET";
  change.qp_state = IBV_QPS_INIT;
  change.port_num = 1;
  EXPECT_EQ(verbs.modify_qp(pair, &change, IBV_QP_STATE | IBV_QP_PORT), EINVAL)
      << "without all that is needed";
  change.port_num = 2;
  EXPECT_EQ(verbs.modify_qp(pair, &change,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
            EINVAL)
      << "a port that is not there";
  toInit(pair);
  EXPECT_EQ(stateOf(pair), IBV_QPS_INIT);
  toReceive(pair, 1234);
  EXPECT_EQ(stateOf(pair), IBV_QPS_RTR);
  toSend(pair);
  ibv_qp_attr attributes = {};
  ibv_qp_init_attr made = {};
  ASSERT_EQ(verbs.query_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_TIMEOUT, &made), 0);
  EXPECT_EQ(attributes.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attributes.dest_qp_num, 1234u);
  EXPECT_EQ(attributes.timeout, 14);
  EXPECT_EQ(attributes.retry_cnt, 7);
  EXPECT_EQ(attributes.path_mtu, IBV_MTU_1024);
  change = {};
  change.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(verbs.modify_qp(pair, &change, IBV_QP_STATE), 0);
  EXPECT_EQ(stateOf(pair), IBV_QPS_RESET);
}

TEST_F(SetUpTest, APairCanBeConnectedAgain) {
  ibv_qp* a = makePair();
  ibv_qp* b = makePair();
  for (int round = 0; round < 3; ++round) {
    PathWishes path;
    path.sendNumber = path.receiveNumber = 1000u * static_cast<unsigned>(round) + 0xfffffe;
    path.sendNumber = path.receiveNumber &= 0xffffff;
    connect(a, b, path);
    EXPECT_EQ(run(a, request(IBV_WR_RDMA_WRITE, 5000)).status, IBV_WC_SUCCESS);
    EXPECT_EQ(run(b, request(IBV_WR_RDMA_WRITE, 5000)).status, IBV_WC_SUCCESS);
    ibv_qp_attr change = {};
    change.qp_state = IBV_QPS_RESET;
    EXPECT_EQ(verbs.modify_qp(a, &change, IBV_QP_STATE), 0);
    EXPECT_EQ(verbs.modify_qp(b, &change, IBV_QP_STATE), 0);
  }
}

TEST_F(SetUpTest, WhatIsInUseStays) {
  ibv_pd* other = verbs.alloc_pd(context);
  {
    Side side(other, kAllRights);
    EXPECT_EQ(verbs.dealloc_pd(other), EBUSY);
  }
  EXPECT_EQ(verbs.dealloc_pd(other), 0);
  makePair();
  EXPECT_EQ(verbs.destroy_cq(sent), EBUSY);
}

TEST_F(SetUpTest, PostsThatCannotBe) {
  ibv_qp* a = makePair();
  ibv_qp* b = makePair();
  ibv_send_wr early = request(IBV_WR_RDMA_WRITE, 8);
  EXPECT_EQ(post(a, early), EINVAL);
  connect(a, b);
  ibv_send_wr many = request(IBV_WR_RDMA_WRITE, 8);
  many.num_sge = 1000;
  EXPECT_EQ(post(a, many), EINVAL);
  ibv_send_wr large = request(IBV_WR_RDMA_WRITE, 4096);
  large.send_flags |= IBV_SEND_INLINE;
  EXPECT_EQ(post(a, large), EINVAL);
  ibv_send_wr first = request(IBV_WR_RDMA_WRITE, 8), second = many, *bad = nullptr;
  first.next = &second;
  EXPECT_EQ(ibv_post_send(a, &first, &bad), EINVAL);
  EXPECT_EQ(bad, &second) << "the first one was taken";
  EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
  ibv_recv_wr receive = {1, nullptr, nullptr, 1000}, *badReceive = nullptr;
  EXPECT_EQ(ibv_post_recv(a, &receive, &badReceive), EINVAL);
  EXPECT_EQ(badReceive, &receive);
}

TEST_F(SetUpTest, RequestsAreBuiltInPlace) {
  ibv_qp_init_attr_ex asked = {};
  asked.send_cq = sent;
  asked.recv_cq = received;
  asked.cap = {16, 16, 2, 2, 32};
  asked.qp_type = IBV_QPT_RC;
  asked.pd = domain;
  asked.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  asked.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  ibv_qp* a = verbs_get_ctx(context)->create_qp_ex(context, &asked);
  ASSERT_NE(a, nullptr) << strerror(errno);
  ibv_qp* b = makePair();
  connect(a, b);
  ASSERT_EQ(postReceive(b, 3, 0), 0);
  ibv_qp_ex* built = verbs.qp_to_qp_ex(a);
  ASSERT_NE(built, nullptr);
  ibv_wr_start(built);
  built->wr_id = 1;
  built->wr_flags = 0;
  ibv_wr_rdma_write(built, far->remoteKey(), far->address());
  ibv_wr_set_sge(built, near->key(), near->address(), 3000);
  built->wr_id = 2;
  built->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write_imm(built, far->remoteKey(), far->address(4096), 9);
  ibv_wr_set_inline_data(built, near->at(), 20);
  EXPECT_EQ(ibv_wr_complete(built), 0);
  EXPECT_EQ(poll(sent).wr_id, 2u);
  EXPECT_EQ(poll(received).imm_data, 9u);
  EXPECT_EQ(memcmp(far->at(), near->at(), 3000), 0);
  EXPECT_EQ(memcmp(far->at(4096), near->at(), 20), 0);
  ibv_wr_start(built);
  ibv_wr_rdma_write(built, far->remoteKey(), far->address());
  ibv_wr_abort(built);
  EXPECT_TRUE(isEmpty(sent));
  countMoved(3020);
  EXPECT_EQ(verbs.destroy_qp(a), 0);
}

TEST_F(SetUpTest, AFullQueueTakesNoMore) {
  ibv_qp* a = makePair();
  ibv_qp* b = makePair();
  PathWishes path;
  path.timeout = 0;  // never
  toInit(a);
  toReceive(a, b->qp_num);
  toSend(a, path);
  ibv_qp_init_attr made = {};
  ibv_qp_attr attributes = {};
  ASSERT_EQ(verbs.query_qp(a, &attributes, IBV_QP_CAP, &made), 0);
  uint32_t taken = 0;
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8);
  int refused = 0;
  while (taken < 1000 && (refused = post(a, wish)) == 0) ++taken;
  EXPECT_EQ(refused, ENOMEM);
  EXPECT_GE(taken, 64u);
  EXPECT_EQ(taken, made.cap.max_send_wr);
}

}  // namespace
}  // namespace peerlane
