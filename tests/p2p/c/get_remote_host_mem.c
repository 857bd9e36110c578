/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGetRemoteHostMem: a range of the other process's memory into ours; it takes no part.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_READ_ONLY, NULL);
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  const P2PComm comm = borrowed.comm;
  uint8_t* got = newMemory(LENT_BYTES + 1);
  const struct {
    size_t offset, bytes;
  } ranges[] = {{0, LENT_BYTES}, {4097, (size_t)72 << 10}, {LENT_BYTES - 1, 1}, {13, 3}};
  for (unsigned i = 0; i < 4; ++i) {
    got[ranges[i].bytes] = 0xee;
    P2P_OK(P2PGetRemoteHostMem(farAt(&borrowed, ranges[i].offset), got, ranges[i].bytes,
                               HCCL_DATA_TYPE_INT8, comm, NULL));
    P2P_OK(P2PCommSynchronize(comm, SOON_MS));
    EXPECT_PATTERN(got, ranges[i].bytes, LENT_SEED, ranges[i].offset);
    EXPECT(got[ranges[i].bytes] == 0xee);
  }
  const HcclDataType type = HCCL_DATA_TYPE_FP32;
  P2P_OK(P2PGetRemoteHostMem(farAt(&borrowed, 400), got, 100, type, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT_PATTERN(got, 400, LENT_SEED, 400);

  P2P_REFUSED(P2PGetRemoteHostMem(NULL, got, 1, type, comm, NULL), HCCL_E_PTR, "ddrBuf is NULL");
  P2P_REFUSED(P2PGetRemoteHostMem(borrowed.far, NULL, 1, type, comm, NULL), HCCL_E_PTR,
              "dstBuf is NULL");
  P2P_REFUSED(P2PGetRemoteHostMem(borrowed.far, got, 0, type, comm, NULL), HCCL_E_PARA,
              "count is 0");
  P2P_REFUSED(P2PGetRemoteHostMem(borrowed.far, got, 1, (HcclDataType)13, comm, NULL), HCCL_E_PARA,
              "dataType is 13");
  P2P_REFUSED(P2PGetRemoteHostMem(borrowed.far, got, 1, type, NULL, NULL), HCCL_E_PTR,
              "comm is NULL");
  P2P_REFUSED(P2PGetRemoteHostMem(borrowed.far, got, 1, type, comm, got), HCCL_E_NOT_FOUND,
              "P2PHostStreamCreate");
  P2P_REFUSED(P2PGetRemoteHostMem(farAt(&borrowed, LENT_BYTES - 3), got, 1, type, comm, NULL),
              HCCL_E_PARA, "imported");
  returnMemory(side, &borrowed);
  free(got);
}

int main(void) {
  return runSides(first, second);
}
