/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PHostStreamCreate, P2PHostStreamSynchronize and P2PHostStreamDestroy: what is posted to a
 * stream is done in order, by a thread of its own.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

#define MESSAGES 300
#define BYTES ((size_t)4 << 20)

static void refuse(P2PComm comm) {
  uint64_t word = 0;
  P2P_REFUSED(P2PHostStreamCreate(NULL), HCCL_E_PTR, "stream is NULL");
  P2P_REFUSED(P2PHostStreamSynchronize(NULL, 1), HCCL_E_NOT_FOUND, "P2PHostStreamCreate");
  P2P_REFUSED(P2PHostStreamSynchronize(&word, 1), HCCL_E_NOT_FOUND, "P2PHostStreamCreate");
  P2P_REFUSED(P2PHostStreamDestroy(NULL), HCCL_E_NOT_FOUND, "P2PHostStreamCreate");
  P2P_REFUSED(P2PHostStreamDestroy(&word), HCCL_E_NOT_FOUND, "P2PHostStreamCreate");
  P2P_REFUSED(P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, &word), HCCL_E_NOT_FOUND,
              "P2PHostStreamCreate");
}

/* One stream, in order: what was received is sent back by the next operation, without a wait
 * between them. */
static void inOrder(const Side* side, P2PComm comm) {
  aclrtStream stream = NULL;
  P2P_OK(P2PHostStreamCreate(&stream));
  P2P_OK(P2PHostStreamSynchronize(stream, 0)); /* nothing was posted */
  uint8_t* memory = newMemory(BYTES);
  const HcclDataType type = HCCL_DATA_TYPE_UINT8;
  if (side->isFirst) {
    uint8_t* back = newMemory(BYTES);
    fillPattern(memory, BYTES, 40);
    P2P_OK(P2PSend(memory, BYTES, type, comm, stream));
    P2P_OK(P2PRecv(back, BYTES, type, comm, stream));
    P2P_OK(P2PHostStreamSynchronize(stream, SOON_MS));
    EXPECT_PATTERN(back, BYTES, 40, 0);
    free(back);
  } else {
    P2P_OK(P2PRecv(memory, BYTES, type, comm, stream));
    P2P_OK(P2PSend(memory, BYTES, type, comm, stream));
    P2P_OK(P2PHostStreamSynchronize(stream, SOON_MS));
    EXPECT_PATTERN(memory, BYTES, 40, 0);
  }
  P2P_OK(P2PHostStreamDestroy(stream));
  P2P_REFUSED(P2PHostStreamSynchronize(stream, 1), HCCL_E_NOT_FOUND, "P2PHostStreamCreate");
  P2P_REFUSED(P2PHostStreamDestroy(stream), HCCL_E_NOT_FOUND, "P2PHostStreamCreate");
  free(memory);
}

/* Many messages on one stream while another, which nobody serves, holds nothing up. */
static void manyMessages(const Side* side, P2PComm comm) {
  aclrtStream stream = NULL;
  P2P_OK(P2PHostStreamCreate(&stream));
  uint64_t words[MESSAGES];
  for (uint64_t i = 0; i < MESSAGES; ++i) {
    words[i] = side->isFirst ? 1000 + i : 0;
    P2P_OK(side->isFirst ? P2PSend(&words[i], 1, HCCL_DATA_TYPE_UINT64, comm, stream)
                         : P2PRecv(&words[i], 1, HCCL_DATA_TYPE_UINT64, comm, stream));
  }
  P2P_OK(P2PHostStreamSynchronize(stream, SOON_MS));
  for (uint64_t i = 0; i < MESSAGES; ++i) EXPECT(words[i] == 1000 + i);

  /* Its first error since the last time, and only once. */
  P2P_OK(side->isFirst ? P2PSend(words, 2, HCCL_DATA_TYPE_UINT64, comm, stream)
                       : P2PRecv(words, 3, HCCL_DATA_TYPE_UINT64, comm, stream));
  P2P_REFUSED(P2PHostStreamSynchronize(stream, SOON_MS), HCCL_E_PARA, "");
  P2P_OK(P2PHostStreamSynchronize(stream, SOON_MS));
  P2P_OK(P2PHostStreamDestroy(stream));
}

/* Who waits for nobody is cancelled with its stream. */
static void cancelled(const Side* side, P2PComm comm) {
  aclrtStream stream = NULL;
  uint64_t word = 0;
  P2P_OK(P2PHostStreamCreate(&stream));
  if (!side->isFirst) {
    P2P_OK(P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, stream));
    P2P_REFUSED(P2PHostStreamSynchronize(stream, 10), HCCL_E_TIMEOUT,
                "waited 10 ms; not ended yet");
    P2P_OK(P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, stream));
  }
  P2P_OK(P2PHostStreamDestroy(stream));
  meet(side);
}

static void each(const Side* side) {
  const P2PComm comm = connectEqualSides(side);
  refuse(comm);
  inOrder(side, comm);
  manyMessages(side, comm);
  cancelled(side, comm);
  P2P_OK(P2PCommDestroy(comm));
}

int main(void) {
  return runSides(each, each);
}
