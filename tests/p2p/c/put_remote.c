/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PPut: memory of ours into that of the other process.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

static void judge(const uint8_t* memory) {
  EXPECT_PATTERN(memory, 3, LENT_SEED, 0);
  EXPECT_PATTERN(memory + 3, 400000, 5, 0);
  EXPECT_PATTERN(memory + 400003, 99997, LENT_SEED, 400003);
  EXPECT_PATTERN(memory + 500000, 160, 5, 7);
  EXPECT_PATTERN(memory + 500160, LENT_BYTES - 500161, LENT_SEED, 500160);
  EXPECT_PATTERN(memory + LENT_BYTES - 1, 1, 5, 0);
}

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_READ_WRITE, judge);
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  const P2PComm comm = borrowed.comm;
  uint8_t* own = newMemory(400000);
  fillPattern(own, 400000, 5);
  P2P_OK(P2PPut(own, farAt(&borrowed, 3), 100000, HCCL_DATA_TYPE_UINT32, comm, NULL));
  P2P_OK(P2PPut(own + 7, farAt(&borrowed, 500000), 10, HCCL_DATA_TYPE_INT128, comm, NULL));
  P2P_OK(P2PPut(own, farAt(&borrowed, LENT_BYTES - 1), 1, HCCL_DATA_TYPE_INT8, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));

  const HcclDataType type = HCCL_DATA_TYPE_UINT8;
  P2P_REFUSED(P2PPut(NULL, borrowed.far, 1, type, comm, NULL), HCCL_E_PTR, "localBuf is NULL");
  P2P_REFUSED(P2PPut(own, NULL, 1, type, comm, NULL), HCCL_E_PTR, "remoteBuf is NULL");
  P2P_REFUSED(P2PPut(own, borrowed.far, 0, type, comm, NULL), HCCL_E_PARA, "count is 0");
  P2P_REFUSED(P2PPut(own, borrowed.far, 1, (HcclDataType)13, comm, NULL), HCCL_E_PARA,
              "dataType is 13");
  P2P_REFUSED(P2PPut(own, borrowed.far, 1, type, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  P2P_REFUSED(P2PPut(own, borrowed.far, 1, type, comm, own), HCCL_E_NOT_FOUND,
              "P2PHostStreamCreate");
  P2P_REFUSED(P2PPut(own, farAt(&borrowed, LENT_BYTES - 1), 2, type, comm, NULL), HCCL_E_PARA,
              "imported");
  returnMemory(side, &borrowed);
  free(own);
}

int main(void) {
  return runSides(first, second);
}
