/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PCommSynchronize: waits until everything posted on a communicator has ended.
 */
#include <stdlib.h>

#include "tests/p2p/c/c_sides.h"

#define BYTES ((size_t)3 << 20)

static void each(const Side* side) {
  const P2PComm comm = connectSides(side, P2P_SENDER, P2P_RECEIVER, P2P_LINK_AUTO);
  P2P_OK(P2PCommSynchronize(comm, 0)); /* nothing was posted */
  P2P_REFUSED(P2PCommSynchronize(NULL, 1), HCCL_E_PTR, "comm is NULL");
  uint8_t* memory = newMemory(2 * BYTES);
  if (side->isFirst) {
    fillPattern(memory, 2 * BYTES, 3);
    meet(side);
  } else {
    for (int i = 0; i < 2; ++i)
      P2P_OK(P2PRecv(memory + i * BYTES, BYTES, HCCL_DATA_TYPE_UINT8, comm, NULL));
    /* Nobody has sent yet. Both go on, whoever has waited. */
    P2P_REFUSED(P2PCommSynchronize(comm, 0), HCCL_E_TIMEOUT, "");
    P2P_REFUSED(P2PCommSynchronize(comm, 20), HCCL_E_TIMEOUT,
                "waited 20 ms; not ended yet: 2 of 2");
    meet(side);
  }
  if (side->isFirst)
    for (int i = 0; i < 2; ++i)
      P2P_OK(P2PSend(memory + i * BYTES, BYTES, HCCL_DATA_TYPE_UINT8, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT_PATTERN(memory, 2 * BYTES, 3, 0);

  /* Of several, the first error; it does not keep the others from going well. */
  P2P_OK(side->isFirst ? P2PSend(memory, 7, HCCL_DATA_TYPE_UINT8, comm, NULL)
                       : P2PRecv(memory, 8, HCCL_DATA_TYPE_UINT8, comm, NULL));
  uint64_t word = side->isFirst ? 9 : 0;
  P2P_OK(side->isFirst ? P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL)
                       : P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  P2P_REFUSED(P2PCommSynchronize(comm, SOON_MS), HCCL_E_PARA, "");
  EXPECT(word == 9);
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
  P2P_REFUSED(P2PCommSynchronize(comm, 1), HCCL_E_NOT_FOUND, "communicator");
  free(memory);
}

int main(void) {
  return runSides(each, each);
}
