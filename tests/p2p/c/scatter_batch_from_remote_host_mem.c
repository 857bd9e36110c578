/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PScatterBatchFromRemoteHostMem: many ranges there, each into many pieces here, at once.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

#define ENTRIES 20u
#define EACH 8u
#define BLOCK (LENT_BYTES / ENTRIES / EACH)

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_READ_ONLY, NULL);
}

static void refuse(const Borrowed* borrowed, P2pScatterEntry* entries) {
  const P2PComm comm = borrowed->comm;
  P2P_REFUSED(P2PScatterBatchFromRemoteHostMem(NULL, 1, comm, NULL), HCCL_E_PTR, "entries is NULL");
  P2P_REFUSED(P2PScatterBatchFromRemoteHostMem(entries, 0, comm, NULL), HCCL_E_PARA, "no entries");
  P2P_REFUSED(P2PScatterBatchFromRemoteHostMem(entries, 1, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  const P2pScatterEntry kept = entries[3];
  entries[3].ddrBuf = NULL;
  P2P_REFUSED(P2PScatterBatchFromRemoteHostMem(entries, ENTRIES, comm, NULL), HCCL_E_PTR,
              "entries[3]: ddrBuf is NULL");
  entries[3] = kept;
  entries[3].numEl = 0;
  P2P_REFUSED(P2PScatterBatchFromRemoteHostMem(entries, ENTRIES, comm, NULL), HCCL_E_PARA,
              "entries[3]");
  entries[3] = kept;
  entries[3].counts = NULL;
  P2P_REFUSED(P2PScatterBatchFromRemoteHostMem(entries, ENTRIES, comm, NULL), HCCL_E_PTR,
              "entries[3]: counts is NULL");
  entries[3] = kept;
  entries[3].dataType = HCCL_DATA_TYPE_RESERVED;
  P2P_REFUSED(P2PScatterBatchFromRemoteHostMem(entries, ENTRIES, comm, NULL), HCCL_E_PARA,
              "entries[3]: dataType is 18");
  entries[3] = kept;
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  uint8_t* got = newMemory(LENT_BYTES);
  void* pieces[ENTRIES][EACH];
  uint64_t counts[ENTRIES][EACH];
  P2pScatterEntry entries[ENTRIES];
  for (unsigned e = 0; e < ENTRIES; ++e) {
    for (unsigned i = 0; i < EACH; ++i) { /* the other way round than they lie there */
      pieces[e][i] = got + (e * EACH + (EACH - 1 - i)) * BLOCK;
      counts[e][i] = BLOCK;
    }
    const P2pScatterEntry entry = {farAt(&borrowed, e * EACH * BLOCK), pieces[e], counts[e],
                                   HCCL_DATA_TYPE_INT8, EACH};
    entries[e] = entry;
  }
  refuse(&borrowed, entries);
  for (int again = 0; again < 5; ++again) {
    memset(got, 0, LENT_BYTES);
    P2P_OK(P2PScatterBatchFromRemoteHostMem(entries, ENTRIES, borrowed.comm, NULL));
    P2P_OK(P2PCommSynchronize(borrowed.comm, SOON_MS));
    for (unsigned e = 0; e < ENTRIES; ++e)
      for (unsigned i = 0; i < EACH; ++i)
        EXPECT_PATTERN(pieces[e][i], BLOCK, LENT_SEED, (e * EACH + i) * BLOCK);
  }
  returnMemory(side, &borrowed);
  free(got);
}

int main(void) {
  return runSides(first, second);
}
