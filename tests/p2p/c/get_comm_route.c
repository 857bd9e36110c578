/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGetCommRoute: which link was taken, in words.
 */
#include <string.h>

#include "tests/p2p/c/c_sides.h"

static void expectRoute(const Side* side, P2pLink link, const char* word) {
  const P2PComm comm = connectSides(side, P2P_BIDIRECTIONAL, P2P_BIDIRECTIONAL, link);
  char text[8192], cut[9];
  memset(cut, 'x', sizeof cut);
  P2P_OK(P2PGetCommRoute(comm, text, sizeof text));
  EXPECT(strstr(text, word) != NULL);
  /* As much as there is room for, and always a string. */
  P2P_OK(P2PGetCommRoute(comm, cut, 8));
  EXPECT(strlen(cut) == 7 && strncmp(text, cut, 7) == 0 && cut[8] == 'x');
  P2P_OK(P2PGetCommRoute(comm, cut, 1));
  EXPECT(cut[0] == '\0' && cut[1] == text[1]);
  P2P_REFUSED(P2PGetCommRoute(comm, NULL, 10), HCCL_E_PTR, "text is NULL");
  P2P_REFUSED(P2PGetCommRoute(comm, cut, 0), HCCL_E_PARA, "");
  P2P_REFUSED(P2PGetCommRoute(NULL, cut, 1), HCCL_E_PTR, "comm is NULL");
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
  P2P_REFUSED(P2PGetCommRoute(comm, cut, 1), HCCL_E_NOT_FOUND, "communicator");
}

static void each(const Side* side) {
  expectRoute(side, P2P_LINK_HCCS, "mapped");
  expectRoute(side, P2P_LINK_ROCE, "tcp");
}

int main(void) {
  return runSides(each, each);
}
