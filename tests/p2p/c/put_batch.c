/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PPutBatch: any number of ranges here, each to a place of its own there.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

#define ENTRIES 500u
#define STEP (LENT_BYTES / ENTRIES)
#define SEED 91u

static size_t bytesOf(unsigned i) {
  return 1 + i % STEP;
}

static void judge(const uint8_t* memory) {
  for (unsigned i = 0; i < ENTRIES; ++i) {
    const size_t at = (ENTRIES - 1 - i) * STEP;
    EXPECT_PATTERN(memory + at, bytesOf(i), SEED, i * STEP);
    EXPECT_PATTERN(memory + at + bytesOf(i), STEP - bytesOf(i), LENT_SEED, at + bytesOf(i));
  }
}

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_WRITE_ONLY, judge);
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  const P2PComm comm = borrowed.comm;
  uint8_t* own = newMemory(LENT_BYTES);
  fillPattern(own, LENT_BYTES, SEED);
  P2pCopyEntry entries[ENTRIES];
  for (unsigned i = 0; i < ENTRIES; ++i) {
    const P2pCopyEntry entry = {own + i * STEP, farAt(&borrowed, (ENTRIES - 1 - i) * STEP),
                                bytesOf(i)};
    entries[i] = entry;
  }
  P2P_OK(P2PPutBatch(entries, ENTRIES, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));

  P2P_REFUSED(P2PPutBatch(NULL, 1, comm, NULL), HCCL_E_PTR, "entries is NULL");
  P2P_REFUSED(P2PPutBatch(entries, 0, comm, NULL), HCCL_E_PARA, "no entries");
  P2P_REFUSED(P2PPutBatch(entries, ENTRIES, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  P2P_REFUSED(P2PPutBatch(entries, ENTRIES, comm, own), HCCL_E_NOT_FOUND, "P2PHostStreamCreate");
  /* All of these lists are wrong at their end, and would have changed what is judged. */
  fillPattern(own, LENT_BYTES, SEED + 1);
  P2pCopyEntry* const last = &entries[ENTRIES - 1];
  const P2pCopyEntry kept = *last;
  last->localBuf = NULL;
  P2P_REFUSED(P2PPutBatch(entries, ENTRIES, comm, NULL), HCCL_E_PTR,
              "entries[499].localBuf is NULL");
  *last = kept;
  last->remoteBuf = NULL;
  P2P_REFUSED(P2PPutBatch(entries, ENTRIES, comm, NULL), HCCL_E_PTR, "remoteBuf is NULL");
  *last = kept;
  last->bytes = 0;
  P2P_REFUSED(P2PPutBatch(entries, ENTRIES, comm, NULL), HCCL_E_PARA, "entries[499] has 0 bytes");
  *last = kept;
  last->remoteBuf = farAt(&borrowed, LENT_BYTES - 1);
  P2P_REFUSED(P2PPutBatch(entries, ENTRIES, comm, NULL), HCCL_E_PARA, "imported");
  returnMemory(side, &borrowed);
  free(own);
}

int main(void) {
  return runSides(first, second);
}
