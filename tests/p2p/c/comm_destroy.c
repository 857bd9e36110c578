/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PCommDestroy: ends what is under way, at the other side, too; a handle that was destroyed names
 * nobody.
 */
#include "tests/p2p/c/c_sides.h"

static void first(const Side* side) {
  P2PComm comm = connectEqualSides(side);
  meet(side); /* the other side waits for a message that will not come */
  P2P_OK(P2PCommDestroy(comm));
  P2P_REFUSED(P2PCommDestroy(comm), HCCL_E_NOT_FOUND, "no such communicator");
  P2P_REFUSED(P2PCommDestroy(NULL), HCCL_E_PTR, "comm is NULL");
  uint64_t word = 0;
  P2P_REFUSED(P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL), HCCL_E_NOT_FOUND,
              "communicator");
  P2P_REFUSED(P2PCommDestroy((P2PComm)&word), HCCL_E_NOT_FOUND, "no such communicator");
  /* Others are not touched by it. */
  comm = connectEqualSides(side);
  word = 18;
  P2P_OK(P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

static void second(const Side* side) {
  P2PComm comm = connectEqualSides(side);
  uint64_t word = 0;
  P2P_OK(P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  meet(side);
  const HcclResult ended = P2PCommSynchronize(comm, SOON_MS);
  EXPECT(ended == HCCL_E_REMOTE || ended == HCCL_E_UNAVAIL); /* lost, or closed: what comes first */
  EXPECT(P2PGetLastError()[0] != '\0');
  HcclResult error = HCCL_SUCCESS;
  P2P_OK(P2PGetCommAsyncError(comm, &error));
  EXPECT(error == ended);
  P2P_OK(P2PCommDestroy(comm));
  comm = connectEqualSides(side);
  P2P_OK(P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT(word == 18);
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

int main(void) {
  return runSides(first, second);
}
