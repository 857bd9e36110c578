/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGetCommHeartbeat: for how many seconds nothing has been heard of the other side; -1 once it is
 * lost.
 */
#include <signal.h>
#include <unistd.h>

#include "tests/p2p/c/c_sides.h"

static void first(const Side* side) {
  const P2PComm comm = connectEqualSides(side);
  int seconds = -7;
  P2P_OK(P2PGetCommHeartbeat(comm, &seconds));
  EXPECT(seconds >= 0 && seconds < 30);
  P2P_REFUSED(P2PGetCommHeartbeat(comm, NULL), HCCL_E_PTR, "seconds is NULL");
  P2P_REFUSED(P2PGetCommHeartbeat(NULL, &seconds), HCCL_E_PTR, "comm is NULL");
  uint64_t word = 0;
  P2P_OK(P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  const char go = 'g';
  tell(side, &go, 1);
  /* The end of the message says that the loss has been seen. */
  P2P_REFUSED(P2PCommSynchronize(comm, SOON_MS), HCCL_E_REMOTE, "");
  P2P_OK(P2PGetCommHeartbeat(comm, &seconds));
  EXPECT(seconds == -1);
  P2P_OK(P2PCommDestroy(comm));
  P2P_REFUSED(P2PGetCommHeartbeat(comm, &seconds), HCCL_E_NOT_FOUND, "communicator");
}

/* Ends like a process that is killed, and says goodbye to nobody. */
static void second(const Side* side) {
  (void)connectEqualSides(side);
  char go = 0;
  hear(side, &go, 1);
  _exit(0);
}

int main(void) {
  return runSides(first, second);
}
