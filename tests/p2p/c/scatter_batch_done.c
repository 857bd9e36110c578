/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PScatterBatchFromRemoteHostMemDone: may be called where the original wants it, and need not be.
 */
#include "tests/p2p/c/c_sides.h"

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_READ_ONLY, NULL);
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  P2P_OK(P2PScatterBatchFromRemoteHostMemDone(borrowed.comm)); /* before there was anything */
  uint8_t got[2][1000];
  for (unsigned round = 0; round < 8; ++round) {
    void* pieces[2] = {got[0], got[1]};
    uint64_t counts[2] = {250, 250};
    P2pScatterEntry entry = {farAt(&borrowed, round * 4096), pieces, counts, HCCL_DATA_TYPE_FP32,
                             2};
    P2P_OK(P2PScatterBatchFromRemoteHostMem(&entry, 1, borrowed.comm, NULL));
    P2P_OK(P2PCommSynchronize(borrowed.comm, SOON_MS));
    if (round % 2 == 0) P2P_OK(P2PScatterBatchFromRemoteHostMemDone(borrowed.comm));
    for (unsigned i = 0; i < 2; ++i)
      EXPECT_PATTERN(got[i], 1000, LENT_SEED, round * 4096 + i * 1000);
  }
  P2P_REFUSED(P2PScatterBatchFromRemoteHostMemDone(NULL), HCCL_E_PTR, "comm is NULL");
  returnMemory(side, &borrowed);
  P2P_REFUSED(P2PScatterBatchFromRemoteHostMemDone(borrowed.comm), HCCL_E_NOT_FOUND,
              "communicator");
}

int main(void) {
  return runSides(first, second);
}
