/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGatherBatchToRemoteMem: pieces here into contiguous ranges there.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

#define SEED 33u

static void judge(const uint8_t* memory) {
  EXPECT_PATTERN(memory, 10, LENT_SEED, 0);
  EXPECT_PATTERN(memory + 10, 100, SEED, 1000);
  EXPECT_PATTERN(memory + 110, 200, SEED, 0);
  EXPECT_PATTERN(memory + 310, 300, SEED, 5000);
  EXPECT_PATTERN(memory + 610, 50000 - 610, LENT_SEED, 610);
  EXPECT_PATTERN(memory + 50000, 4000, SEED, 20000);
  EXPECT_PATTERN(memory + 54000, 8, SEED, 10000);
  EXPECT_PATTERN(memory + 54008, LENT_BYTES - 54008, LENT_SEED, 54008);
}

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_WRITE_ONLY, judge);
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  const P2PComm comm = borrowed.comm;
  uint8_t* own = newMemory(30000);
  fillPattern(own, 30000, SEED);
  void* bytes[] = {own + 1000, own, own + 5000};
  uint64_t byteCounts[] = {100, 200, 300};
  void* words[] = {own + 20000, own + 10000};
  uint64_t wordCounts[] = {500, 1};
  P2pScatterEntry entries[] = {
      {farAt(&borrowed, 10), bytes, byteCounts, HCCL_DATA_TYPE_UINT8, 3},
      {farAt(&borrowed, 50000), words, wordCounts, HCCL_DATA_TYPE_FP64, 2}};
  P2P_OK(P2PGatherBatchToRemoteMem(entries, 2, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));

  P2P_REFUSED(P2PGatherBatchToRemoteMem(NULL, 1, comm, NULL), HCCL_E_PTR, "entries is NULL");
  P2P_REFUSED(P2PGatherBatchToRemoteMem(entries, 0, comm, NULL), HCCL_E_PARA, "no entries");
  P2P_REFUSED(P2PGatherBatchToRemoteMem(entries, 2, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  P2P_REFUSED(P2PGatherBatchToRemoteMem(entries, 2, comm, own), HCCL_E_NOT_FOUND,
              "P2PHostStreamCreate");
  fillPattern(own, 30000, SEED + 1); /* would be seen */
  words[1] = NULL;
  P2P_REFUSED(P2PGatherBatchToRemoteMem(entries, 2, comm, NULL), HCCL_E_PTR,
              "entries[1]: dstBufs[1] is NULL");
  words[1] = own;
  wordCounts[0] = 0;
  P2P_REFUSED(P2PGatherBatchToRemoteMem(entries, 2, comm, NULL), HCCL_E_PARA,
              "entries[1]: counts[0] is 0");
  wordCounts[0] = 500;
  entries[1].ddrBuf = NULL;
  P2P_REFUSED(P2PGatherBatchToRemoteMem(entries, 2, comm, NULL), HCCL_E_PTR,
              "entries[1]: ddrBuf is NULL");
  entries[1].ddrBuf = farAt(&borrowed, LENT_BYTES - 4000);
  P2P_REFUSED(P2PGatherBatchToRemoteMem(entries, 2, comm, NULL), HCCL_E_NOT_FOUND,
              "entries[1], dstBufs[1]");
  returnMemory(side, &borrowed);
  free(own);
}

int main(void) {
  return runSides(first, second);
}
