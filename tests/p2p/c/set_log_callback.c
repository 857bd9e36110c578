/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PSetLogCallback: what the library has to say goes to the program.
 */
#include <pthread.h>

#include "tests/p2p/c/c_sides.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t come = PTHREAD_COND_INITIALIZER;
static int lines = 0;

/* Called by any thread. */
static void onLog(P2pLogSeverity severity, int vlogLevel, const char* file, int line,
                  const char* message) {
  EXPECT(severity == P2P_LOG_INFO || severity == P2P_LOG_WARNING || severity == P2P_LOG_ERROR);
  EXPECT(severity == P2P_LOG_INFO ? vlogLevel >= 1 : vlogLevel == -1);
  EXPECT(file != NULL && file[0] != '\0' && line > 0);
  EXPECT(message != NULL && message[0] != '\0');
  pthread_mutex_lock(&mutex);
  ++lines;
  pthread_cond_signal(&come);
  pthread_mutex_unlock(&mutex);
}

/* Somebody comes with a secret that is not worth anything any more: that is logged. */
static void first(const Side* side) {
  P2PSetLogCallback(onLog);
  HcclRootInfo root;
  P2P_OK(P2PGetRootInfo(&root));
  P2P_OK(P2PCancelRootInfo(&root));
  tell(side, &root, sizeof root);
  pthread_mutex_lock(&mutex);
  while (lines == 0) pthread_cond_wait(&come, &mutex);
  pthread_mutex_unlock(&mutex);
  P2PSetLogCallback(NULL); /* to standard error again */
  meet(side);
}

static void second(const Side* side) {
  HcclRootInfo root;
  hear(side, &root, sizeof root);
  P2PComm comm = NULL;
  P2P_REFUSED(P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_AUTO, &comm, NULL),
              HCCL_E_TCP_CONNECT, "root");
  meet(side);
}

int main(void) {
  return runSides(first, second);
}
