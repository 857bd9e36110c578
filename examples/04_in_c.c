/* SPDX-License-Identifier: Apache-2.0
 *
 * The C API without a GPU: two processes, a message from one to the other, and memory of one that
 * the other reads. After `cmake --install`:
 *
 *   cc 04_in_c.c $(pkg-config --cflags --libs peerlane_p2p)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "peerlane/p2p.h"

#define PATIENCE_MS 10000
#define COUNT 1000

/* What one side tells the other before there is a communicator: here over a socket pair, elsewhere
 * by a file, a key-value store, MPI. */
typedef struct Invitation {
  HcclRootInfo root;
  P2pSegmentInfo segment; /* memory that may be read, */
  void* address;          /* and where it is in its own process */
} Invitation;

static void must(HcclResult result, const char* call) {
  if (result == HCCL_SUCCESS) return;
  (void)fprintf(stderr, "%s: %d, %s\n", call, (int)result, P2PGetLastError());
  exit(1);
}
#define MUST(call) must((call), #call)

/* Makes the root, registers its memory, and receives. */
static void receiver(int line) {
  Invitation invitation;
  MUST(P2PAllocHostMem(&invitation.address, COUNT * sizeof(double), P2P_NUMA_ANY));
  double* const table = invitation.address;
  for (int i = 0; i < COUNT; ++i) table[i] = 0.5 * i;
  MUST(P2PGetRootInfo(&invitation.root));
  MUST(P2PRegisterHostMem(table, COUNT * sizeof(double), &invitation.segment,
                          P2P_SEGMENT_READ_ONLY));
  if (write(line, &invitation, sizeof invitation) != (ssize_t)sizeof invitation) exit(1);

  P2PComm comm;
  MUST(P2PCommInitRootInfo(&invitation.root, P2P_RECEIVER, P2P_LINK_AUTO, &comm, NULL));
  char text[32] = "";
  MUST(P2PRecv(text, sizeof text, HCCL_DATA_TYPE_INT8, comm, NULL));
  MUST(P2PCommSynchronize(comm, PATIENCE_MS)); /* now it is there */
  printf("received: %s\n", text);
  if (strcmp(text, "hello from the other process") != 0) exit(1);
  char done; /* the sender has read what it wanted */
  if (read(line, &done, 1) != 1) exit(1);
  MUST(P2PCommDestroy(comm));
  MUST(P2PUnregisterMem(&invitation.segment, PATIENCE_MS));
  MUST(P2PFreeHostMem(table));
}

static void sender(int line) {
  Invitation invitation;
  if (recv(line, &invitation, sizeof invitation, MSG_WAITALL) != (ssize_t)sizeof invitation)
    exit(1);
  P2PComm comm;
  MUST(P2PCommInitRootInfo(&invitation.root, P2P_SENDER, P2P_LINK_AUTO, &comm, NULL));
  char text[32] = "hello from the other process";
  MUST(P2PSend(text, sizeof text, HCCL_DATA_TYPE_INT8, comm, NULL));

  double got[COUNT];
  MUST(P2PImportHostSegment(invitation.segment));
  MUST(P2PGet(invitation.address, got, COUNT, HCCL_DATA_TYPE_FP64, comm, NULL));
  MUST(P2PCommSynchronize(comm, PATIENCE_MS));
  printf("read there: %g\n", got[COUNT - 1]);
  MUST(P2PUnimportSegment(invitation.segment));
  if (got[COUNT - 1] != 0.5 * (COUNT - 1) || write(line, "", 1) != 1) exit(1);
  MUST(P2PCommDestroy(comm));
}

int main(void) {
  int lines[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, lines) != 0) return 1;
  const pid_t child = fork(); /* before the first call of the library */
  if (child < 0) return 1;
  if (child == 0) {
    (void)close(lines[0]);
    sender(lines[1]);
    return 0;
  }
  (void)close(lines[1]);
  receiver(lines[0]);
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
