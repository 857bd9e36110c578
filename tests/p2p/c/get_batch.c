/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGetBatch: any number of ranges there, each to a place of its own here.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

#define ENTRIES 500u
#define STEP (LENT_BYTES / ENTRIES)

static size_t bytesOf(unsigned i) {
  return 1 + i % STEP;
}

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_READ_ONLY, NULL);
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  const P2PComm comm = borrowed.comm;
  uint8_t* got = newMemory(LENT_BYTES);
  P2pCopyEntry entries[ENTRIES];
  for (unsigned i = 0; i < ENTRIES; ++i) {
    const P2pCopyEntry entry = {got + i * STEP, farAt(&borrowed, (ENTRIES - 1 - i) * STEP + i),
                                bytesOf(i)};
    entries[i] = entry;
  }
  P2P_OK(P2PGetBatch(entries, ENTRIES, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  for (unsigned i = 0; i < ENTRIES; ++i) {
    EXPECT_PATTERN(got + i * STEP, bytesOf(i), LENT_SEED, (ENTRIES - 1 - i) * STEP + i);
    EXPECT_ALL(got + i * STEP + bytesOf(i), STEP - bytesOf(i), 0);
  }

  memset(got, 0, LENT_BYTES);
  P2P_REFUSED(P2PGetBatch(NULL, 1, comm, NULL), HCCL_E_PTR, "entries is NULL");
  P2P_REFUSED(P2PGetBatch(entries, 0, comm, NULL), HCCL_E_PARA, "no entries");
  P2P_REFUSED(P2PGetBatch(entries, ENTRIES, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  P2P_REFUSED(P2PGetBatch(entries, ENTRIES, comm, got), HCCL_E_NOT_FOUND, "P2PHostStreamCreate");
  const P2pCopyEntry kept = entries[7];
  entries[7].localBuf = NULL;
  P2P_REFUSED(P2PGetBatch(entries, ENTRIES, comm, NULL), HCCL_E_PTR, "entries[7].localBuf is NULL");
  entries[7] = kept;
  entries[7].remoteBuf = NULL;
  P2P_REFUSED(P2PGetBatch(entries, ENTRIES, comm, NULL), HCCL_E_PTR, "remoteBuf is NULL");
  entries[7] = kept;
  entries[7].bytes = 0;
  P2P_REFUSED(P2PGetBatch(entries, ENTRIES, comm, NULL), HCCL_E_PARA, "entries[7] has 0 bytes");
  entries[7] = kept;
  entries[7].remoteBuf = farAt(&borrowed, LENT_BYTES);
  P2P_REFUSED(P2PGetBatch(entries, ENTRIES, comm, NULL), HCCL_E_NOT_FOUND, "entries[7]: ");
  returnMemory(side, &borrowed);
  EXPECT_ALL(got, LENT_BYTES, 0); /* all of a list, or nothing */
  free(got);
}

int main(void) {
  return runSides(first, second);
}
