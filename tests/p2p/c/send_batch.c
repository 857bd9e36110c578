/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PSendBatch: one message in many pieces. The arrays are the caller's again when it returns.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

#define PIECES 3000u
static const uint32_t batches[] = {1, 2, 31, 256, PIECES};
#define BATCHES (sizeof batches / sizeof batches[0])

static size_t lengthOf(unsigned i) {
  return 4 * (1 + (size_t)i % 513);
}

static void refuse(P2PComm comm) {
  uint8_t byte = 0;
  void* buffers[2] = {&byte, NULL};
  uint64_t counts[2] = {1, 1};
  const HcclDataType type = HCCL_DATA_TYPE_INT8;
  P2P_REFUSED(P2PSendBatch(buffers, counts, type, 2, comm, NULL), HCCL_E_PTR,
              "sendBufs[1] is NULL");
  buffers[1] = &byte;
  counts[1] = 0;
  P2P_REFUSED(P2PSendBatch(buffers, counts, type, 2, comm, NULL), HCCL_E_PARA, "counts[1] is 0");
  P2P_REFUSED(P2PSendBatch(NULL, counts, type, 2, comm, NULL), HCCL_E_PTR, "sendBufs is NULL");
  P2P_REFUSED(P2PSendBatch(buffers, NULL, type, 2, comm, NULL), HCCL_E_PTR, "counts is NULL");
  P2P_REFUSED(P2PSendBatch(buffers, counts, type, 0, comm, NULL), HCCL_E_PARA, "no sendBufs");
  P2P_REFUSED(P2PSendBatch(buffers, counts, HCCL_DATA_TYPE_RESERVED, 1, comm, NULL), HCCL_E_PARA,
              "dataType is 18");
  P2P_REFUSED(P2PSendBatch(buffers, counts, type, 1, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  P2P_REFUSED(P2PSendBatch(buffers, counts, type, 1, comm, &byte), HCCL_E_NOT_FOUND,
              "P2PHostStreamCreate");
}

static void each(const Side* side) {
  const P2PComm comm = connectSides(side, P2P_SENDER, P2P_RECEIVER, P2P_LINK_AUTO);
  if (side->isFirst) refuse(comm);
  void** buffers = newMemory(PIECES * sizeof *buffers);
  uint64_t* counts = newMemory(PIECES * sizeof *counts);
  uint8_t* memory[PIECES];
  for (unsigned i = 0; i < PIECES; ++i) memory[i] = newMemory(lengthOf(i));
  for (unsigned batch = 0; batch < BATCHES; ++batch) {
    const uint32_t pieces = batches[batch];
    for (unsigned i = 0; i < pieces; ++i) {
      buffers[i] = memory[i];
      counts[i] = lengthOf(i) / 4;
      if (side->isFirst)
        fillPattern(memory[i], lengthOf(i), i + batch);
      else
        memset(memory[i], 0, lengthOf(i));
    }
    P2P_OK(side->isFirst ? P2PSendBatch(buffers, counts, HCCL_DATA_TYPE_FP32, pieces, comm, NULL)
                         : P2PRecvBatch(buffers, counts, HCCL_DATA_TYPE_FP32, pieces, comm, NULL));
    memset(buffers, 0, PIECES * sizeof *buffers);
    memset(counts, 0, PIECES * sizeof *counts);
    P2P_OK(P2PCommSynchronize(comm, SOON_MS));
    for (unsigned i = 0; i < pieces; ++i) EXPECT_PATTERN(memory[i], lengthOf(i), i + batch, 0);
  }
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
  for (unsigned i = 0; i < PIECES; ++i) free(memory[i]);
  free(counts);
  free(buffers);
}

int main(void) {
  return runSides(each, each);
}
