/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGetRootInfo: a root, whose bytes bring two processes together.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/p2p/c/c_sides.h"

static void passOneWord(const Side* side, const HcclRootInfo* root) {
  P2PComm comm = NULL;
  P2P_OK(P2PCommInitRootInfo(root, side->isFirst ? P2P_SENDER : P2P_RECEIVER, P2P_LINK_AUTO, &comm,
                             NULL));
  uint64_t word = side->isFirst ? 17 : 0;
  P2P_OK(side->isFirst ? P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL)
                       : P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT(word == 17);
  P2P_OK(P2PCommDestroy(comm));
}

static void refuseVariable(const char* name, const char* value) {
  HcclRootInfo root;
  EXPECT(setenv(name, value, 1) == 0);
  P2P_REFUSED(P2PGetRootInfo(&root), HCCL_E_PARA, name);
  EXPECT(unsetenv(name) == 0);
}

/* A range whose only port is taken, on the only address allowed. */
static void refuseFullRange(void) {
  const int taken = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address;
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  EXPECT(inet_pton(AF_INET, "127.0.0.1", &address.sin_addr) == 1);
  socklen_t length = sizeof address;
  EXPECT(bind(taken, (const struct sockaddr*)&address, sizeof address) == 0);
  EXPECT(listen(taken, 1) == 0);
  EXPECT(getsockname(taken, (struct sockaddr*)&address, &length) == 0);
  char port[8];
  snprintf(port, sizeof port, "%u", (unsigned)ntohs(address.sin_port));
  EXPECT(setenv("P2P_PORT_RANGE", port, 1) == 0);
  EXPECT(setenv("P2P_IF_IP", "127.0.0.1", 1) == 0);
  HcclRootInfo root;
  P2P_REFUSED(P2PGetRootInfo(&root), HCCL_E_UNAVAIL, port);
  EXPECT(unsetenv("P2P_IF_IP") == 0);
  EXPECT(unsetenv("P2P_PORT_RANGE") == 0);
  EXPECT(close(taken) == 0);
}

static void first(const Side* side) {
  P2P_REFUSED(P2PGetRootInfo(NULL), HCCL_E_PTR, "rootInfo is NULL");
  refuseVariable("P2P_PORT_RANGE", "many");
  refuseVariable("P2P_PORT_RANGE", "56900-56800");
  refuseVariable("P2P_IF_IP", "here");
  refuseFullRange();
  /* What went wrong before does no harm to the next. */
  HcclRootInfo roots[2];
  for (int i = 0; i < 2; ++i) P2P_OK(P2PGetRootInfo(&roots[i]));
  EXPECT(memcmp(&roots[0], &roots[1], sizeof roots[0]) != 0);
  tell(side, roots, sizeof roots);
  for (int i = 0; i < 2; ++i) passOneWord(side, &roots[i]);
}

static void second(const Side* side) {
  HcclRootInfo roots[2];
  hear(side, roots, sizeof roots);
  for (int i = 0; i < 2; ++i) passOneWord(side, &roots[i]);
}

int main(void) {
  return runSides(first, second);
}
