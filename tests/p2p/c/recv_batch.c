/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PRecvBatch: pieces anywhere in memory; who names other pieces than the sender is told.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

#define PIECES 129u
#define GAP 7u /* between pieces; the receiver has them in the opposite order */

static size_t lengthOf(unsigned i) {
  return 1 + (size_t)i * 571;
}

static void each(const Side* side) {
  const P2PComm comm = connectSides(side, P2P_RECEIVER, P2P_SENDER, P2P_LINK_AUTO);
  size_t all = GAP;
  for (unsigned i = 0; i < PIECES; ++i) all += lengthOf(i) + GAP;
  uint8_t* memory = newMemory(all);
  void* buffers[PIECES];
  uint64_t counts[PIECES];
  size_t at = GAP;
  for (unsigned k = 0; k < PIECES; ++k) {
    const unsigned i = side->isFirst ? PIECES - 1 - k : k;
    buffers[i] = memory + at;
    counts[i] = lengthOf(i);
    if (!side->isFirst) fillPattern(buffers[i], lengthOf(i), i);
    at += lengthOf(i) + GAP;
  }
  const HcclDataType type = HCCL_DATA_TYPE_UINT8;
  P2P_OK(side->isFirst ? P2PRecvBatch(buffers, counts, type, PIECES, comm, NULL)
                       : P2PSendBatch(buffers, counts, type, PIECES, comm, NULL));
  /* A batch of one is a message like any other. */
  uint64_t word = side->isFirst ? 0 : 12;
  void* one = &word;
  uint64_t count = sizeof word;
  P2P_OK(side->isFirst ? P2PRecvBatch(&one, &count, type, 1, comm, NULL)
                       : P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT(word == 12);
  for (unsigned i = 0; i < PIECES; ++i) {
    EXPECT_PATTERN(buffers[i], lengthOf(i), i, 0);
    EXPECT_ALL((uint8_t*)buffers[i] + lengthOf(i), GAP, 0);
  }

  if (side->isFirst) {
    void* wrong[2] = {&word, NULL};
    P2P_REFUSED(P2PRecvBatch(wrong, counts, type, 2, comm, NULL), HCCL_E_PTR,
                "recvBuffs[1] is NULL");
    P2P_REFUSED(P2PRecvBatch(NULL, counts, type, 2, comm, NULL), HCCL_E_PTR, "recvBuffs is NULL");
    P2P_REFUSED(P2PRecvBatch(buffers, NULL, type, 2, comm, NULL), HCCL_E_PTR, "counts is NULL");
    P2P_REFUSED(P2PRecvBatch(buffers, counts, type, 0, comm, NULL), HCCL_E_PARA, "no recvBuffs");
    P2P_REFUSED(P2PRecvBatch(buffers, counts, (HcclDataType)13, 2, comm, NULL), HCCL_E_PARA,
                "dataType is 13");
    P2P_REFUSED(P2PRecvBatch(buffers, counts, type, 2, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  } else {
    P2P_REFUSED(P2PRecvBatch(buffers, counts, type, 2, comm, NULL), HCCL_E_PARA,
                "this side is the P2P_SENDER");
  }
  /* As many pieces, but one of them shorter: both learn it. */
  if (side->isFirst) counts[5] -= 1;
  P2P_OK(side->isFirst ? P2PRecvBatch(buffers, counts, type, PIECES, comm, NULL)
                       : P2PSendBatch(buffers, counts, type, PIECES, comm, NULL));
  P2P_REFUSED(P2PCommSynchronize(comm, SOON_MS), HCCL_E_PARA, "");
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
  free(memory);
}

int main(void) {
  return runSides(each, each);
}
