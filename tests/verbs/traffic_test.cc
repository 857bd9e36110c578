// SPDX-License-Identifier: Apache-2.0
// Much at once: several pairs, both directions, every operation, lengths around the path MTU; all
// bytes are compared.
#include <algorithm>
#include <cstring>
#include <random>

#include "tests/verbs/connected_pairs.h"

namespace peerlane {
namespace {

class TrafficTest : public VerbsTest {
 protected:
  static constexpr size_t kSlot = 8192, kSlots = 8;  // of each pair

  // One request of a pair, on a slot of its own.
  struct Going {
    ibv_wr_opcode opcode;
    size_t bytes, local, remote;
  };
  void startOne(size_t pair, uint64_t number) {
    const size_t slot = (pair * kSlots + begun[pair]++ % kSlots) * kSlot;
    Going going = {kOpcodes[random() % 3], 1 + random() % (kSlot - 8), slot + random() % 8,
                   slot + random() % 8};
    ibv_send_wr wish = request(going.opcode, going.bytes, going.local, going.remote);
    wish.wr_id = number;
    // A READ overwrites its pattern, so each has a fresh one at the side that it comes from.
    Side& from = going.opcode == IBV_WR_RDMA_READ ? *far : *near;
    const size_t at = going.opcode == IBV_WR_RDMA_READ ? going.remote : going.local;
    for (size_t i = 0; i < going.bytes; ++i) *from.at(at + i) = static_cast<uint8_t>(random());
    if (going.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
      ASSERT_EQ(postReceive(targets[pair], number, 0), 0);
    }
    ASSERT_EQ(post(sources[pair], wish), 0);
    under[pair].push_back(going);
  }
  void endOne() {
    const ibv_wc done = poll(sent);
    ASSERT_EQ(done.status, IBV_WC_SUCCESS);
    const auto pair = static_cast<size_t>(
        std::find_if(sources.begin(), sources.end(),
                     [&](const ibv_qp* source) { return source->qp_num == done.qp_num; }) -
        sources.begin());
    ASSERT_LT(pair, sources.size());
    const Going going = under[pair].front();
    under[pair].erase(under[pair].begin());
    ASSERT_EQ(memcmp(near->at(going.local), far->at(going.remote), going.bytes), 0)
        << going.opcode << " of " << going.bytes;
    countMoved(going.bytes);
    if (going.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
      ASSERT_EQ(poll(received).status, IBV_WC_SUCCESS);
    }
    ++ended;
  }
  uint64_t random() { return random_(); }

  static constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
                                               IBV_WR_RDMA_WRITE_WITH_IMM};
  std::vector<ibv_qp*> sources, targets;
  std::vector<std::vector<Going>> under;  // each pair's, oldest first
  std::vector<size_t> begun;
  uint64_t ended = 0;

 private:
  std::mt19937_64 random_{42};
};

TEST_F(TrafficTest, EveryByteOfEveryPair) {
  constexpr size_t kPairs = 4;
  constexpr uint64_t kRequests = 1000;
  for (size_t i = 0; i < kPairs; ++i) {
    PathWishes path;
    path.mtu = i % 2 == 0 ? IBV_MTU_1024 : IBV_MTU_4096;
    sources.push_back(makePair());
    targets.push_back(makePair());
    connect(sources[i], targets[i], path);
  }
  under.resize(kPairs);
  begun.resize(kPairs);
  for (uint64_t number = 0; number < kRequests; ++number) {
    const size_t pair = random() % kPairs;
    while (under[pair].size() == kSlots) {
      ASSERT_NO_FATAL_FAILURE(endOne());
    }
    ASSERT_NO_FATAL_FAILURE(startOne(pair, number));
  }
  while (ended < kRequests) {
    ASSERT_NO_FATAL_FAILURE(endOne());
  }
}

TEST_F(TrafficTest, OneLongMessageEachWay) {
  ibv_qp* a = makePair();
  ibv_qp* b = makePair();
  connect(a, b);
  ibv_send_wr write = request(IBV_WR_RDMA_WRITE, kSideBytes / 2);
  ibv_send_wr read = request(IBV_WR_RDMA_READ, kSideBytes / 2, kSideBytes / 2, kSideBytes / 2);
  memset(far->at(kSideBytes / 2), 0x3c, kSideBytes / 2);
  ASSERT_EQ(post(a, write), 0);
  ASSERT_EQ(post(b, read), 0);
  EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
  EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(far->at(), near->at(), kSideBytes), 0);
  countMoved(kSideBytes);
}

}  // namespace
}  // namespace peerlane
