// SPDX-License-Identifier: Apache-2.0
//
// Two queue pairs of one device that are connected to each other, with memory on both sides: what
// most tests of verbs begin with. Device and GID come from VERBS_TEST_DEVICE (default: the first)
// and VERBS_TEST_GID (default 1). One thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/verbs/device_behaviour.h"
#include "tests/verbs/loaded_verbs.h"

namespace peerlane {

inline constexpr int kAllRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
inline constexpr size_t kSideBytes = 1 << 18;

// Page-aligned memory, registered.
class Side {
 public:
  Side(ibv_pd* domain, int access);
  ~Side();
  Side(const Side&) = delete;
  uint8_t* at(size_t offset = 0) const { return bytes_ + offset; }
  uint64_t address(size_t offset = 0) const { return reinterpret_cast<uint64_t>(at(offset)); }
  uint64_t* word(size_t offset) const { return reinterpret_cast<uint64_t*>(at(offset)); }
  uint32_t key() const { return region->lkey; }
  uint32_t remoteKey() const { return region->rkey; }
  ibv_mr* region;

 private:
  uint8_t* bytes_;
};

struct PairWishes {
  uint32_t sends = 64, receives = 32, pieces = 4, inlined = 64;
  ibv_srq* shared = nullptr;
  ibv_pd* domain = nullptr;  // null: the test's
  ibv_cq* sendQueue = nullptr;
  ibv_cq* receiveQueue = nullptr;
  bool signalsAll = false;
};

struct PathWishes {
  ibv_mtu mtu = IBV_MTU_1024;
  uint32_t sendNumber = 100, receiveNumber = 100;  // must match the peer's
  uint8_t timeout = 14, retries = 7, rnrRetries = 7, rnrTimer = 1, reads = 4;
  unsigned access = kAllRights;
};

class VerbsTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  ibv_qp* makePair(const PairWishes& wishes = {});
  // To INIT, RTR and RTS; false with a failure of the test.
  void toInit(ibv_qp* pair, const PathWishes& path = {});
  void toReceive(ibv_qp* pair, uint32_t peer, const PathWishes& path = {});
  void toSend(ibv_qp* pair, const PathWishes& path = {});
  void connect(ibv_qp* one, ibv_qp* other, const PathWishes& path = {});
  ibv_qp_state stateOf(ibv_qp* pair);
  void waitForState(ibv_qp* pair, ibv_qp_state state);

  // A signalled request of one piece, from `near` to `far` (or back).
  ibv_send_wr request(ibv_wr_opcode opcode, size_t bytes, size_t from = 0, size_t to = 0);
  // The request's completion; what it moved is counted.
  ibv_wc run(ibv_qp* pair, ibv_send_wr request);
  int post(ibv_qp* pair, ibv_send_wr& request);
  int postReceive(ibv_qp* pair, uint64_t id, size_t bytes, size_t offset = 0);
  // Fails the test when none comes in half a minute.
  ibv_wc poll(ibv_cq* queue);
  bool isEmpty(ibv_cq* queue);
  // The next event; fails the test when none comes.
  ibv_async_event event();
  // Event types that are there, each acknowledged; COMM_EST left out.
  std::vector<ibv_event_type> events();

  // For the test to destroy; null: there is none.
  ibv_qp* takeLastPair();

  static void countMoved(uint64_t bytes);

  const LoadedVerbs& verbs = LoadedVerbs::get();
  const DeviceBehaviour& device = DeviceBehaviour::get();
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_cq *sent = nullptr, *received = nullptr;  // of all pairs
  std::unique_ptr<Side> near, far;
  ibv_gid gid{};
  uint8_t gidIndex = 1;

 private:
  std::vector<ibv_qp*> pairs_;
  std::vector<std::unique_ptr<ibv_sge>> pieces_;
};

// With pairs that are connected already: `a` and `b`.
class ConnectedTest : public VerbsTest {
 protected:
  void SetUp() override;
  ibv_qp *a = nullptr, *b = nullptr;
};

}  // namespace peerlane
