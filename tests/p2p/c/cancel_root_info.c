/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PCancelRootInfo: takes back a root that nobody has claimed.
 */
#include <pthread.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

static void* waitForOther(void* root) {
  P2PComm comm = NULL;
  const HcclResult result = P2PCommInitRootInfo(root, P2P_RECEIVER, P2P_LINK_AUTO, &comm, NULL);
  /* Told while it waits, or it comes too late to wait at all. */
  EXPECT(result == HCCL_E_UNAVAIL || result == HCCL_E_TCP_CONNECT);
  EXPECT(P2PGetLastError()[0] != '\0');
  return NULL;
}

static void first(const Side* side) {
  HcclRootInfo root;
  P2P_REFUSED(P2PCancelRootInfo(NULL), HCCL_E_PTR, "rootInfo is NULL");
  memset(&root, 0, sizeof root);
  P2P_REFUSED(P2PCancelRootInfo(&root), HCCL_E_PARA, "P2PGetRootInfo");
  P2P_OK(P2PGetRootInfo(&root));
  tell(side, &root, sizeof root);
  meet(side); /* the other side cannot cancel it; this one can */
  P2P_OK(P2PCancelRootInfo(&root));
  P2P_REFUSED(P2PCancelRootInfo(&root), HCCL_E_NOT_FOUND, "cancelled before");
  meet(side);

  HcclRootInfo waited;
  P2P_OK(P2PGetRootInfo(&waited));
  pthread_t waiter;
  EXPECT(pthread_create(&waiter, NULL, waitForOther, &waited) == 0);
  P2P_OK(P2PCancelRootInfo(&waited));
  EXPECT(pthread_join(waiter, NULL) == 0);

  /* One that has connected is used up. */
  HcclRootInfo used;
  P2P_OK(P2PGetRootInfo(&used));
  tell(side, &used, sizeof used);
  P2PComm comm = NULL;
  P2P_OK(P2PCommInitRootInfo(&used, P2P_RECEIVER, P2P_LINK_AUTO, &comm, NULL));
  P2P_REFUSED(P2PCancelRootInfo(&used), HCCL_E_NOT_FOUND, "has connected");
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

static void second(const Side* side) {
  HcclRootInfo root;
  hear(side, &root, sizeof root);
  P2P_REFUSED(P2PCancelRootInfo(&root), HCCL_E_NOT_FOUND, "of this process");
  meet(side);
  meet(side);
  P2PComm comm = NULL;
  P2P_REFUSED(P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_AUTO, &comm, NULL),
              HCCL_E_TCP_CONNECT, "root");
  HcclRootInfo used;
  hear(side, &used, sizeof used);
  P2P_OK(P2PCommInitRootInfo(&used, P2P_SENDER, P2P_LINK_AUTO, &comm, NULL));
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

int main(void) {
  return runSides(first, second);
}
