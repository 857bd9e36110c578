/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PScatterFromRemoteHostMem: one range there into many pieces here.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

#define PIECES 31u
#define START 11u

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_READ_ONLY, NULL);
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  const P2PComm comm = borrowed.comm;
  void* pieces[PIECES];
  uint64_t counts[PIECES];
  for (unsigned i = 0; i < PIECES; ++i) {
    counts[i] = 1 + i * 97;
    pieces[i] = newMemory(2 * counts[i]);
  }
  const HcclDataType type = HCCL_DATA_TYPE_BFP16;
  P2P_OK(P2PScatterFromRemoteHostMem(farAt(&borrowed, START), pieces, counts, type, PIECES, comm,
                                     NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  size_t offset = START;
  for (unsigned i = 0; i < PIECES; ++i) {
    EXPECT_PATTERN(pieces[i], 2 * counts[i], LENT_SEED, offset);
    offset += 2 * counts[i];
  }

  void* far = borrowed.far;
  P2P_REFUSED(P2PScatterFromRemoteHostMem(NULL, pieces, counts, type, 1, comm, NULL), HCCL_E_PTR,
              "ddrBuf is NULL");
  P2P_REFUSED(P2PScatterFromRemoteHostMem(far, NULL, counts, type, 1, comm, NULL), HCCL_E_PTR,
              "dstBufs is NULL");
  P2P_REFUSED(P2PScatterFromRemoteHostMem(far, pieces, NULL, type, 1, comm, NULL), HCCL_E_PTR,
              "counts is NULL");
  P2P_REFUSED(P2PScatterFromRemoteHostMem(far, pieces, counts, type, 0, comm, NULL), HCCL_E_PARA,
              "no dstBufs");
  P2P_REFUSED(
      P2PScatterFromRemoteHostMem(far, pieces, counts, HCCL_DATA_TYPE_RESERVED, 1, comm, NULL),
      HCCL_E_PARA, "dataType is 18");
  P2P_REFUSED(P2PScatterFromRemoteHostMem(far, pieces, counts, type, 1, NULL, NULL), HCCL_E_PTR,
              "comm is NULL");
  void* const kept = pieces[2];
  pieces[2] = NULL;
  P2P_REFUSED(P2PScatterFromRemoteHostMem(far, pieces, counts, type, 3, comm, NULL), HCCL_E_PTR,
              "dstBufs[2] is NULL");
  pieces[2] = kept;
  counts[1] = 0;
  P2P_REFUSED(P2PScatterFromRemoteHostMem(far, pieces, counts, type, 3, comm, NULL), HCCL_E_PARA,
              "counts[1] is 0");
  counts[1] = 1 + 97;
  /* The last piece would come from behind the segment: none of them is copied. */
  memset(pieces[0], 0, 2 * counts[0]);
  P2P_REFUSED(P2PScatterFromRemoteHostMem(farAt(&borrowed, LENT_BYTES - 4), pieces, counts, type, 2,
                                          comm, NULL),
              HCCL_E_PARA, "dstBufs[1]: ");
  returnMemory(side, &borrowed);
  EXPECT_ALL(pieces[0], 2 * counts[0], 0);
  for (unsigned i = 0; i < PIECES; ++i) free(pieces[i]);
}

int main(void) {
  return runSides(first, second);
}
