/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGetLastError: the sentence of the calling thread's last call, if that did not go well.
 */
#include <pthread.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

static void* failElsewhere(void* comm) {
  EXPECT(strcmp(P2PGetLastError(), "") == 0); /* this thread has called nothing */
  uint64_t word = 0;
  P2P_REFUSED(P2PSend(&word, 0, HCCL_DATA_TYPE_UINT64, comm, NULL), HCCL_E_PARA, "count is 0");
  return NULL;
}

static void each(const Side* side) {
  EXPECT(P2PGetLastError() != NULL);
  EXPECT(strcmp(P2PGetLastError(), "") == 0);
  const P2PComm comm = connectEqualSides(side);
  EXPECT(strcmp(P2PGetLastError(), "") == 0);
  uint64_t word = 0;
  P2P_REFUSED(P2PSend(NULL, 1, HCCL_DATA_TYPE_UINT64, comm, NULL), HCCL_E_PTR, "sendBuf is NULL");
  EXPECT(strstr(P2PGetLastError(), "sendBuf is NULL") != NULL); /* asking does not take it away */
  pthread_t other;
  EXPECT(pthread_create(&other, NULL, failElsewhere, comm) == 0);
  EXPECT(pthread_join(other, NULL) == 0);
  EXPECT(strstr(P2PGetLastError(), "sendBuf is NULL") != NULL); /* nor does another thread */
  P2P_REFUSED(P2PRecv(NULL, 1, HCCL_DATA_TYPE_UINT64, comm, NULL), HCCL_E_PTR, "recvBuf is NULL");
  /* A message between the two, and with it the sentence is gone. */
  word = side->isFirst ? 5 : 0;
  P2P_OK(side->isFirst ? P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL)
                       : P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  EXPECT(strcmp(P2PGetLastError(), "") == 0);
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT(word == 5);
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

int main(void) {
  return runSides(each, each);
}
