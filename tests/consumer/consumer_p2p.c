/* SPDX-License-Identifier: Apache-2.0
 *
 * The C API in a stranger's hands: two communicators of one process, and eight bytes.
 */
#include <peerlane/p2p.h>
#include <pthread.h>
#include <stdio.h>

static HcclRootInfo root;

static void* send_it(void* number) {
  P2PComm comm;
  if (P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_AUTO, &comm, NULL) != HCCL_SUCCESS ||
      P2PSend(number, 1, HCCL_DATA_TYPE_UINT64, comm, NULL) != HCCL_SUCCESS ||
      P2PCommSynchronize(comm, 10000) != HCCL_SUCCESS)
    printf("sender: %s\n", P2PGetLastError());
  return NULL;
}

int main(void) {
  uint32_t major = 0, minor = 0, patch = 0;
  uint64_t sent = 42, got = 0;
  pthread_t sender;
  P2PComm comm;
  P2PGetVersion(&major, &minor, &patch);
  if (P2PGetRootInfo(&root) != HCCL_SUCCESS) return 1;
  if (pthread_create(&sender, NULL, send_it, &sent) != 0) return 1;
  if (P2PCommInitRootInfo(&root, P2P_RECEIVER, P2P_LINK_AUTO, &comm, NULL) != HCCL_SUCCESS ||
      P2PRecv(&got, 1, HCCL_DATA_TYPE_UINT64, comm, NULL) != HCCL_SUCCESS ||
      P2PCommSynchronize(comm, 10000) != HCCL_SUCCESS) {
    printf("receiver: %s\n", P2PGetLastError());
    return 1;
  }
  pthread_join(sender, NULL);
  if (got != sent) return 1;
  printf("%u.%u.%u\n", major, minor, patch);
  return 0;
}
