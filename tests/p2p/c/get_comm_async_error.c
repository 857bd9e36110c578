/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGetCommAsyncError: what went wrong after a call had returned.
 */
#include <string.h>

#include "tests/p2p/c/c_sides.h"

static void each(const Side* side) {
  const P2PComm comm = connectSides(side, P2P_SENDER, P2P_RECEIVER, P2P_LINK_AUTO);
  HcclResult error = HCCL_E_RESERVED;
  P2P_OK(P2PGetCommAsyncError(comm, &error));
  EXPECT(error == HCCL_SUCCESS);
  EXPECT(strcmp(P2PGetLastError(), "") == 0);

  /* Two that do not fit together: both are told, by a sentence. */
  uint8_t memory[200] = {0};
  P2P_OK(side->isFirst ? P2PSend(memory, 100, HCCL_DATA_TYPE_UINT8, comm, NULL)
                       : P2PRecv(memory, 200, HCCL_DATA_TYPE_UINT8, comm, NULL));
  P2P_REFUSED(P2PCommSynchronize(comm, SOON_MS), HCCL_E_PARA, "");
  for (int again = 0; again < 2; ++again) { /* it stays */
    error = HCCL_SUCCESS;
    P2P_OK(P2PGetCommAsyncError(comm, &error));
    EXPECT(error == HCCL_E_PARA);
    EXPECT(strstr(P2PGetLastError(), "100") != NULL);
    EXPECT(strstr(P2PGetLastError(), "200") != NULL);
  }

  P2P_REFUSED(P2PGetCommAsyncError(comm, NULL), HCCL_E_PTR, "asyncError is NULL");
  P2P_REFUSED(P2PGetCommAsyncError(NULL, &error), HCCL_E_PTR, "comm is NULL");
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
  P2P_REFUSED(P2PGetCommAsyncError(comm, &error), HCCL_E_NOT_FOUND, "communicator");
}

int main(void) {
  return runSides(each, each);
}
