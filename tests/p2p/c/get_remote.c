/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGet: as P2PGetRemoteHostMem, for memory of any kind at either side.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_READ_WRITE, NULL);
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  const P2PComm comm = borrowed.comm;
  uint8_t* got = newMemory(LENT_BYTES);
  /* Many at once, and all of it. */
  const size_t step = LENT_BYTES / 64;
  for (size_t i = 0; i < 64; ++i)
    P2P_OK(P2PGet(farAt(&borrowed, i * step), got + i * step, step / 16, HCCL_DATA_TYPE_INT128,
                  comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT_PATTERN(got, LENT_BYTES, LENT_SEED, 0);
  /* Into memory that is registered itself. */
  P2pSegmentInfo own;
  P2P_OK(P2PRegisterHostMem(got, LENT_BYTES, &own, P2P_SEGMENT_READ_ONLY));
  P2P_OK(P2PGet(farAt(&borrowed, 77), got + 1, 5000, HCCL_DATA_TYPE_UINT8, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT_PATTERN(got + 1, 5000, LENT_SEED, 77);
  P2P_OK(P2PUnregisterMem(&own, SOON_MS));

  const HcclDataType type = HCCL_DATA_TYPE_UINT8;
  P2P_REFUSED(P2PGet(NULL, got, 1, type, comm, NULL), HCCL_E_PTR, "remoteBuf is NULL");
  P2P_REFUSED(P2PGet(borrowed.far, NULL, 1, type, comm, NULL), HCCL_E_PTR, "localBuf is NULL");
  P2P_REFUSED(P2PGet(borrowed.far, got, 0, type, comm, NULL), HCCL_E_PARA, "count is 0");
  P2P_REFUSED(P2PGet(borrowed.far, got, UINT64_MAX, HCCL_DATA_TYPE_FP32, comm, NULL), HCCL_E_PARA,
              "count is 18446744073709551615");
  P2P_REFUSED(P2PGet(borrowed.far, got, 1, HCCL_DATA_TYPE_RESERVED, comm, NULL), HCCL_E_PARA,
              "dataType is 18");
  P2P_REFUSED(P2PGet(borrowed.far, got, 1, type, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  P2P_REFUSED(P2PGet(borrowed.far, got, 1, type, comm, got), HCCL_E_NOT_FOUND,
              "P2PHostStreamCreate");
  P2P_REFUSED(P2PGet(farAt(&borrowed, LENT_BYTES), got, 1, type, comm, NULL), HCCL_E_NOT_FOUND,
              "imported");
  returnMemory(side, &borrowed);
  free(got);
}

int main(void) {
  return runSides(first, second);
}
