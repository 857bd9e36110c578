/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PScatterBatchToRemoteMem: contiguous ranges here (ddrBuf) into pieces there.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

#define SEED 34u

static void judge(const uint8_t* memory) {
  EXPECT_PATTERN(memory, 20000, LENT_SEED, 0);
  EXPECT_PATTERN(memory + 20000, 1000, SEED, 3);
  EXPECT_PATTERN(memory + 21000, 9000, LENT_SEED, 21000);
  EXPECT_PATTERN(memory + 30000, 7, SEED, 1003);
  EXPECT_PATTERN(memory + 30007, 9993, LENT_SEED, 30007);
  EXPECT_PATTERN(memory + 40000, 80, SEED, 8000);
  EXPECT_PATTERN(memory + 40080, LENT_BYTES - 40080, LENT_SEED, 40080);
}

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_READ_WRITE, judge);
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  const P2PComm comm = borrowed.comm;
  uint8_t* own = newMemory(30000);
  fillPattern(own, 30000, SEED);
  void* bytes[] = {farAt(&borrowed, 20000), farAt(&borrowed, 30000)};
  uint64_t byteCounts[] = {1000, 7};
  void* words[] = {farAt(&borrowed, 40000)};
  uint64_t wordCounts[] = {10};
  P2pScatterEntry entries[] = {{own + 3, bytes, byteCounts, HCCL_DATA_TYPE_FP8E5M2, 2},
                               {own + 8000, words, wordCounts, HCCL_DATA_TYPE_INT64, 1}};
  P2P_OK(P2PScatterBatchToRemoteMem(entries, 2, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));

  P2P_REFUSED(P2PScatterBatchToRemoteMem(NULL, 1, comm, NULL), HCCL_E_PTR, "entries is NULL");
  P2P_REFUSED(P2PScatterBatchToRemoteMem(entries, 0, comm, NULL), HCCL_E_PARA, "no entries");
  P2P_REFUSED(P2PScatterBatchToRemoteMem(entries, 2, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  P2P_REFUSED(P2PScatterBatchToRemoteMem(entries, 2, comm, own), HCCL_E_NOT_FOUND,
              "P2PHostStreamCreate");
  fillPattern(own, 30000, SEED + 1); /* would be seen */
  words[0] = farAt(&borrowed, LENT_BYTES - 79);
  P2P_REFUSED(P2PScatterBatchToRemoteMem(entries, 2, comm, NULL), HCCL_E_PARA, "imported");
  words[0] = NULL;
  P2P_REFUSED(P2PScatterBatchToRemoteMem(entries, 2, comm, NULL), HCCL_E_PTR,
              "entries[1]: dstBufs[0] is NULL");
  words[0] = farAt(&borrowed, 40000);
  entries[1].ddrBuf = NULL;
  P2P_REFUSED(P2PScatterBatchToRemoteMem(entries, 2, comm, NULL), HCCL_E_PTR,
              "entries[1]: ddrBuf is NULL");
  entries[1].ddrBuf = own;
  entries[1].counts = NULL;
  P2P_REFUSED(P2PScatterBatchToRemoteMem(entries, 2, comm, NULL), HCCL_E_PTR,
              "entries[1]: counts is NULL");
  returnMemory(side, &borrowed);
  free(own);
}

int main(void) {
  return runSides(first, second);
}
