/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGatherBatchFromRemoteMem: pieces there into contiguous ranges here (ddrBuf).
 */
#include <stdlib.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

#define PIECES 256u
#define EACH 900u

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_READ_ONLY, NULL);
}

static size_t farOffset(unsigned i) {
  return (size_t)(PIECES - 1 - i) * 4000 + i;
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  const P2PComm comm = borrowed.comm;
  uint8_t* got = newMemory(2 * PIECES * EACH);
  void* pieces[PIECES];
  uint64_t counts[PIECES];
  for (unsigned i = 0; i < PIECES; ++i) {
    pieces[i] = farAt(&borrowed, farOffset(i));
    counts[i] = EACH / 2;
  }
  /* The same pieces in two entries, to two places. */
  P2pScatterEntry entries[] = {
      {got, pieces, counts, HCCL_DATA_TYPE_FP16, PIECES},
      {got + PIECES * EACH, pieces, counts, HCCL_DATA_TYPE_UINT16, PIECES}};
  P2P_OK(P2PGatherBatchFromRemoteMem(entries, 2, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  for (unsigned i = 0; i < 2 * PIECES; ++i)
    EXPECT_PATTERN(got + i * EACH, EACH, LENT_SEED, farOffset(i % PIECES));

  memset(got, 0, 2 * PIECES * EACH);
  P2P_REFUSED(P2PGatherBatchFromRemoteMem(NULL, 1, comm, NULL), HCCL_E_PTR, "entries is NULL");
  P2P_REFUSED(P2PGatherBatchFromRemoteMem(entries, 0, comm, NULL), HCCL_E_PARA, "no entries");
  P2P_REFUSED(P2PGatherBatchFromRemoteMem(entries, 2, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  P2P_REFUSED(P2PGatherBatchFromRemoteMem(entries, 2, comm, got), HCCL_E_NOT_FOUND,
              "P2PHostStreamCreate");
  pieces[255] = NULL;
  P2P_REFUSED(P2PGatherBatchFromRemoteMem(entries, 2, comm, NULL), HCCL_E_PTR,
              "entries[0]: dstBufs[255] is NULL");
  pieces[255] = farAt(&borrowed, LENT_BYTES - 1);
  P2P_REFUSED(P2PGatherBatchFromRemoteMem(entries, 2, comm, NULL), HCCL_E_PARA, "imported");
  entries[1].ddrBuf = NULL;
  P2P_REFUSED(P2PGatherBatchFromRemoteMem(entries, 2, comm, NULL), HCCL_E_PTR,
              "entries[1]: ddrBuf is NULL");
  entries[1].ddrBuf = got;
  entries[1].dataType = (HcclDataType)13;
  P2P_REFUSED(P2PGatherBatchFromRemoteMem(entries, 2, comm, NULL), HCCL_E_PARA,
              "entries[1]: dataType is 13");
  returnMemory(side, &borrowed);
  EXPECT_ALL(got, 2 * PIECES * EACH, 0);
  free(got);
}

int main(void) {
  return runSides(first, second);
}
