/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PRecv: the n-th meets the n-th send, whoever comes first; nothing beside the buffer is touched.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

#define MESSAGES 200

/* Of any length, and large ones among small ones. */
static size_t lengthOf(unsigned i) {
  return i % 50 == 49 ? ((size_t)1 << 20) + i : 1 + (size_t)i * 97;
}

static void first(const Side* side) {
  const P2PComm comm = connectSides(side, P2P_RECEIVER, P2P_SENDER, P2P_LINK_AUTO);
  uint8_t* buffers[MESSAGES];
  for (unsigned i = 0; i < MESSAGES; ++i) {
    if (i == MESSAGES / 2) meet(side); /* half of them before there is a send, half after */
    buffers[i] = newMemory(lengthOf(i) + 2);
    P2P_OK(P2PRecv(buffers[i] + 1, lengthOf(i), HCCL_DATA_TYPE_UINT8, comm, NULL));
  }
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  for (unsigned i = 0; i < MESSAGES; ++i) {
    EXPECT_PATTERN(buffers[i] + 1, lengthOf(i), i, 0);
    EXPECT(buffers[i][0] == 0 && buffers[i][lengthOf(i) + 1] == 0);
    free(buffers[i]);
  }

  uint64_t word = 0;
  const HcclDataType type = HCCL_DATA_TYPE_UINT64;
  P2P_REFUSED(P2PRecv(NULL, 1, type, comm, NULL), HCCL_E_PTR, "recvBuf is NULL");
  P2P_REFUSED(P2PRecv(&word, 0, type, comm, NULL), HCCL_E_PARA, "count is 0");
  P2P_REFUSED(P2PRecv(&word, UINT64_MAX / 4, type, comm, NULL), HCCL_E_PARA, "count is 4611");
  P2P_REFUSED(P2PRecv(&word, 1, (HcclDataType)31, comm, NULL), HCCL_E_PARA, "dataType is 31");
  P2P_REFUSED(P2PRecv(&word, 1, type, NULL, NULL), HCCL_E_PTR, "comm is NULL");
  P2P_REFUSED(P2PRecv(&word, 1, type, comm, &word), HCCL_E_NOT_FOUND, "P2PHostStreamCreate");
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

static void second(const Side* side) {
  const P2PComm comm = connectSides(side, P2P_RECEIVER, P2P_SENDER, P2P_LINK_AUTO);
  uint8_t* buffers[MESSAGES];
  meet(side);
  for (unsigned i = 0; i < MESSAGES; ++i) {
    buffers[i] = newMemory(lengthOf(i));
    fillPattern(buffers[i], lengthOf(i), i);
    P2P_OK(P2PSend(buffers[i], lengthOf(i), HCCL_DATA_TYPE_UINT8, comm, NULL));
  }
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  for (unsigned i = 0; i < MESSAGES; ++i) free(buffers[i]);
  uint64_t word = 0;
  P2P_REFUSED(P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL), HCCL_E_PARA,
              "this side is the P2P_SENDER");
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

int main(void) {
  return runSides(first, second);
}
