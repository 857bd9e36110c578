// SPDX-License-Identifier: Apache-2.0
// What each operation moves, and which completions it makes.
#include <algorithm>
#include <array>
#include <cstring>

#include "tests/verbs/connected_pairs.h"

namespace peerlane {
namespace {

using OperationTest = ConnectedTest;

TEST_F(OperationTest, WriteMovesBytesOfEveryLength) {
  size_t at = 0;
  for (const size_t bytes : {1, 8, 63, 1023, 1024, 1025, 4096, 65536}) {
    const ibv_wc done = run(a, request(IBV_WR_RDMA_WRITE, bytes, at, at + 3));
    EXPECT_EQ(done.status, IBV_WC_SUCCESS);
    EXPECT_EQ(done.opcode, IBV_WC_RDMA_WRITE);
    EXPECT_EQ(done.wr_id, 7u);
    EXPECT_EQ(done.qp_num, a->qp_num);
    EXPECT_EQ(memcmp(far->at(at + 3), near->at(at), bytes), 0) << bytes;
    EXPECT_EQ(*far->at(at + 3 + bytes), 0) << "nothing behind the end";
    at += bytes + 16;
  }
  EXPECT_TRUE(isEmpty(received)) << "a WRITE is not seen by the target's queue";
}

TEST_F(OperationTest, WriteOfNothingCompletes) {
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 0);
  wish.num_sge = 0;
  EXPECT_EQ(run(a, wish).status, IBV_WC_SUCCESS);
}

TEST_F(OperationTest, WriteGathersPieces) {
  std::array<ibv_sge, 3> pieces = {{{near->address(10), 5, near->key()},
                                    {near->address(5000), 1500, near->key()},
                                    {near->address(20), 1, near->key()}}};
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 0);
  wish.sg_list = pieces.data();
  wish.num_sge = 3;
  EXPECT_EQ(run(a, wish).status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(far->at(), near->at(10), 5), 0);
  EXPECT_EQ(memcmp(far->at(5), near->at(5000), 1500), 0);
  EXPECT_EQ(*far->at(1505), *near->at(20));
}

TEST_F(OperationTest, InlinedBytesAreTakenAtThePost) {
  // Neither a key nor the memory is needed afterwards.
  std::array<char, 32> text = {"thirty-one bytes on the stack!!"};
  ibv_sge piece = {reinterpret_cast<uint64_t>(text.data()), 32, 0};
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 0);
  wish.sg_list = &piece;
  wish.num_sge = 1;
  wish.send_flags |= IBV_SEND_INLINE;
  ASSERT_EQ(post(a, wish), 0);
  text.fill('x');
  EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
  EXPECT_STREQ(reinterpret_cast<char*>(far->at()), "thirty-one bytes on the stack!!");
  countMoved(32);
}

TEST_F(OperationTest, WriteWithImmediateUsesAReceive) {
  ASSERT_EQ(postReceive(b, 99, 0), 0);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE_WITH_IMM, 3000);
  wish.imm_data = 0x12345678;
  EXPECT_EQ(run(a, wish).opcode, IBV_WC_RDMA_WRITE);
  const ibv_wc seen = poll(received);
  EXPECT_EQ(seen.status, IBV_WC_SUCCESS);
  EXPECT_EQ(seen.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(seen.wr_id, 99u);
  EXPECT_EQ(seen.byte_len, 3000u);
  EXPECT_EQ(seen.imm_data, 0x12345678u);
  EXPECT_NE(seen.wc_flags & IBV_WC_WITH_IMM, 0u);
  EXPECT_EQ(seen.qp_num, b->qp_num);
  EXPECT_EQ(memcmp(far->at(), near->at(), 3000), 0);
}

TEST_F(OperationTest, SendGoesWhereTheReceiveSays) {
  ASSERT_EQ(postReceive(b, 1, 4096, 8192), 0);
  ASSERT_EQ(postReceive(b, 2, 4096, 0), 0);
  EXPECT_EQ(run(a, request(IBV_WR_SEND, 2500)).opcode, IBV_WC_SEND);
  ibv_send_wr wish = request(IBV_WR_SEND_WITH_IMM, 10, 77);
  wish.imm_data = 5;
  EXPECT_EQ(run(a, wish).status, IBV_WC_SUCCESS);
  const ibv_wc first = poll(received), second = poll(received);
  EXPECT_EQ(first.opcode, IBV_WC_RECV);
  EXPECT_EQ(first.wr_id, 1u);
  EXPECT_EQ(first.byte_len, 2500u);
  EXPECT_EQ(first.wc_flags & IBV_WC_WITH_IMM, 0u);
  EXPECT_EQ(second.wr_id, 2u);
  EXPECT_EQ(second.imm_data, 5u);
  EXPECT_EQ(memcmp(far->at(8192), near->at(), 2500), 0);
  EXPECT_EQ(memcmp(far->at(), near->at(77), 10), 0);
}

TEST_F(OperationTest, ReadFetches) {
  memset(far->at(), 0x5a, 10000);
  ibv_send_wr wish = request(IBV_WR_RDMA_READ, 9999, 0, 1);
  const ibv_wc done = run(a, wish);
  EXPECT_EQ(done.opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(done.status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(near->at(), far->at(1), 9999), 0);
  EXPECT_NE(*near->at(9999), 0x5a);
}

TEST_F(OperationTest, AtomicsReturnWhatTheyFound) {
  *far->word(64) = 1000;
  ibv_send_wr add = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 64);
  add.wr.atomic.compare_add = 5;
  ibv_wc done = run(a, add);
  EXPECT_EQ(done.status, IBV_WC_SUCCESS);
  EXPECT_EQ(done.opcode, IBV_WC_FETCH_ADD);
  EXPECT_EQ(*near->word(0), 1000u);
  EXPECT_EQ(*far->word(64), 1005u);

  ibv_send_wr swap = request(IBV_WR_ATOMIC_CMP_AND_SWP, 8, 8, 64);
  swap.wr.atomic.compare_add = 1005;
  swap.wr.atomic.swap = 42;
  done = run(a, swap);
  EXPECT_EQ(done.opcode, IBV_WC_COMP_SWAP);
  EXPECT_EQ(*near->word(8), 1005u);
  EXPECT_EQ(*far->word(64), 42u);
  EXPECT_EQ(run(a, swap).status, IBV_WC_SUCCESS);
  EXPECT_EQ(*near->word(8), 42u) << "not equal: nothing was exchanged";
  EXPECT_EQ(*far->word(64), 42u);
}

TEST_F(OperationTest, OnlySignalledRequestsComplete) {
  std::array<ibv_send_wr, 8> chain;
  for (size_t i = 0; i < chain.size(); ++i) {
    chain[i] = request(IBV_WR_RDMA_WRITE, 100, i * 100, i * 100);
    chain[i].wr_id = i;
    chain[i].send_flags = i == 7 ? IBV_SEND_SIGNALED : 0;
    chain[i].next = i == 7 ? nullptr : &chain[i + 1];
  }
  ASSERT_EQ(post(a, chain[0]), 0);
  const ibv_wc done = poll(sent);
  EXPECT_EQ(done.wr_id, 7u);
  EXPECT_EQ(memcmp(far->at(), near->at(), 800), 0) << "all before it are done";
  EXPECT_TRUE(isEmpty(sent));
  countMoved(800);
}

TEST_F(OperationTest, SignalAllSignalsAll) {
  PairWishes wishes;
  wishes.signalsAll = true;
  ibv_qp* c = makePair(wishes);
  ibv_qp* d = makePair();
  connect(c, d);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 100);
  wish.send_flags = 0;
  EXPECT_EQ(run(c, wish).status, IBV_WC_SUCCESS);
}

TEST_F(OperationTest, CompletionsComeInOrder) {
  constexpr int kRounds = 40;
  for (int i = 0; i < kRounds; ++i) {
    ibv_send_wr wish = request(i % 3 == 0 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 2000,
                               static_cast<size_t>(i) * 2048, static_cast<size_t>(i) * 2048);
    wish.wr_id = static_cast<uint64_t>(i);
    ASSERT_EQ(post(a, wish), 0);
  }
  for (int i = 0; i < kRounds; ++i) {
    const ibv_wc done = poll(sent);
    EXPECT_EQ(done.wr_id, static_cast<uint64_t>(i));
    EXPECT_EQ(done.status, IBV_WC_SUCCESS);
    countMoved(2000);
  }
}

TEST_F(OperationTest, AFencedWriteSendsWhatAReadBrought) {
  memset(far->at(), 0x77, 4096);
  ibv_send_wr read = request(IBV_WR_RDMA_READ, 4096, 0, 0);
  ibv_send_wr write = request(IBV_WR_RDMA_WRITE, 4096, 0, 8192);
  read.send_flags = 0;
  read.next = &write;
  write.send_flags |= IBV_SEND_FENCE;
  EXPECT_EQ(post(a, read), 0);
  EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(far->at(8192), far->at(), 4096), 0);
  countMoved(8192);
}

TEST_F(OperationTest, MoreReadsThanMayBeUnderWayAllEnd) {
  for (int i = 0; i < 20; ++i)
    ASSERT_EQ(post(a, *std::make_unique<ibv_send_wr>(
                          request(IBV_WR_RDMA_READ, 5000, 5000u * static_cast<unsigned>(i), 0))),
              0);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
  countMoved(100'000);
}

}  // namespace
}  // namespace peerlane
