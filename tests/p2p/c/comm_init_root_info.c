/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PCommInitRootInfo: kinds, links and options of a communicator, and whom it refuses.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

#define BYTES ((size_t)73 << 10)

static void transfer(const Side* side, P2PComm comm, bool sends, unsigned seed) {
  uint8_t* memory = newMemory(BYTES);
  if (sends) fillPattern(memory, BYTES, seed);
  P2P_OK(sends ? P2PSend(memory, BYTES, HCCL_DATA_TYPE_UINT8, comm, NULL)
               : P2PRecv(memory, BYTES, HCCL_DATA_TYPE_UINT8, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT_PATTERN(memory, BYTES, seed, 0);
  meet(side);
  free(memory);
}

static void go(const Side* side) {
  const P2pLink links[] = {P2P_LINK_HCCS, P2P_LINK_ROCE, P2P_LINK_AUTO};
  for (unsigned i = 0; i < 3; ++i) {
    P2PComm comm = connectSides(side, P2P_SENDER, P2P_RECEIVER, links[i]);
    transfer(side, comm, side->isFirst, i);
    P2P_OK(P2PCommDestroy(comm));
    comm = connectSides(side, P2P_BIDIRECTIONAL, P2P_BIDIRECTIONAL, links[i]);
    transfer(side, comm, side->isFirst, 10 + i);
    transfer(side, comm, !side->isFirst, 20 + i);
    P2P_OK(P2PCommDestroy(comm));
  }
}

/* Without the other side. */
static void refuse(void) {
  HcclRootInfo root;
  P2PComm comm = NULL;
  memset(&root, 0, sizeof root);
  P2P_REFUSED(P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_AUTO, &comm, NULL), HCCL_E_PARA,
              "was not made by P2PGetRootInfo");
  P2P_OK(P2PGetRootInfo(&root));
  HcclRootInfo damaged = root;
  damaged.internal[100] ^= 1;
  P2P_REFUSED(P2PCommInitRootInfo(&damaged, P2P_SENDER, P2P_LINK_AUTO, &comm, NULL), HCCL_E_PARA,
              "checksum");
  P2P_REFUSED(P2PCommInitRootInfo(NULL, P2P_SENDER, P2P_LINK_AUTO, &comm, NULL), HCCL_E_PTR,
              "rootInfo is NULL");
  P2P_REFUSED(P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_AUTO, NULL, NULL), HCCL_E_PTR,
              "comm is NULL");
  P2P_REFUSED(P2PCommInitRootInfo(&root, (P2pKind)3, P2P_LINK_AUTO, &comm, NULL), HCCL_E_PARA,
              "kind is 3");
  P2P_REFUSED(P2PCommInitRootInfo(&root, P2P_SENDER, (P2pLink)3, &comm, NULL), HCCL_E_PARA,
              "link is 3");
  P2PCommInitOptions options = P2P_COMM_INIT_OPTIONS_INIT;
  options.structBytes = 8;
  P2P_REFUSED(P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_AUTO, &comm, &options), HCCL_E_PARA,
              "structBytes of the options is 8");
  options.structBytes = sizeof options;
  options.device = -3;
  P2P_REFUSED(P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_AUTO, &comm, &options), HCCL_E_PARA,
              "device of the options is -3");
  options.device = P2P_DEVICE_NONE;
  options.timeoutMs = 20;
  P2P_REFUSED(P2PCommInitRootInfo(&root, P2P_SENDER, P2P_LINK_AUTO, &comm, &options),
              HCCL_E_TIMEOUT,
              "the other side did not come with the root (P2PCommInitRootInfo) in 20 ms");
  EXPECT(comm == NULL);
  P2P_OK(P2PCancelRootInfo(&root));
}

/* Both sides learn it. */
static void disagree(const Side* side) {
  P2PCommInitOptions options = P2P_COMM_INIT_OPTIONS_INIT;
  options.timeoutMs = SOON_MS;
  HcclRootInfo roots[2];
  if (side->isFirst)
    for (int i = 0; i < 2; ++i) P2P_OK(P2PGetRootInfo(&roots[i]));
  if (side->isFirst)
    tell(side, roots, sizeof roots);
  else
    hear(side, roots, sizeof roots);
  P2PComm comm = NULL;
  P2P_REFUSED(P2PCommInitRootInfo(&roots[0], P2P_SENDER, P2P_LINK_AUTO, &comm, &options),
              HCCL_E_PARA, "P2P_SENDER meets a P2P_RECEIVER");
  P2P_REFUSED(P2PCommInitRootInfo(&roots[1], P2P_BIDIRECTIONAL,
                                  side->isFirst ? P2P_LINK_HCCS : P2P_LINK_ROCE, &comm, &options),
              HCCL_E_PARA, "P2P_LINK_HCCS");
  EXPECT(comm == NULL);
}

/* After a failure that the other side knows nothing of, the root is as good as new. What one side
 * says of messages holds for both. */
static void tryAgainQuietly(const Side* side) {
  P2PCommInitOptions options = P2P_COMM_INIT_OPTIONS_INIT;
  HcclRootInfo root;
  P2PComm comm = NULL;
  if (side->isFirst) {
    P2P_OK(P2PGetRootInfo(&root));
    options.timeoutMs = 20;
    P2P_REFUSED(P2PCommInitRootInfo(&root, P2P_RECEIVER, P2P_LINK_AUTO, &comm, &options),
                HCCL_E_TIMEOUT,
                "the other side did not come with the root (P2PCommInitRootInfo) in 20 ms");
    tell(side, &root, sizeof root);
    options.enableTwoSidedBuffer = false;
  } else {
    hear(side, &root, sizeof root);
  }
  options.timeoutMs = SOON_MS;
  P2P_OK(P2PCommInitRootInfo(&root, side->isFirst ? P2P_RECEIVER : P2P_SENDER, P2P_LINK_AUTO, &comm,
                             &options));
  uint64_t word = 0;
  P2P_REFUSED(side->isFirst ? P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL)
                            : P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL),
              HCCL_E_NOT_SUPPORT, "enableTwoSidedBuffer");
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

static void each(const Side* side) {
  go(side);
  refuse();
  disagree(side);
  tryAgainQuietly(side);
}

int main(void) {
  return runSides(each, each);
}
