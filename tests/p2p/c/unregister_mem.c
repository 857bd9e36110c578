/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PUnregisterMem: from then on the memory is its owner's alone.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

#define BYTES ((size_t)1 << 16)

static void first(const Side* side) {
  const P2PComm comm = connectEqualSides(side);
  uint8_t* memory = newMemory(BYTES);
  fillPattern(memory, BYTES, 6);
  P2pSegmentInfo info;
  P2P_REFUSED(P2PUnregisterMem(NULL, 1), HCCL_E_PTR, "segmentInfo is NULL");
  memset(&info, 0, sizeof info);
  P2P_REFUSED(P2PUnregisterMem(&info, 1), HCCL_E_PARA, "segment info");
  P2P_OK(P2PRegisterHostMem(memory, BYTES, &info, P2P_SEGMENT_READ_WRITE));
  tell(side, &info, sizeof info);
  tell(side, &memory, sizeof memory);
  meet(side); /* it has been read, and is imported there still */
  P2P_OK(P2PUnregisterMem(&info, SOON_MS));
  P2P_REFUSED(P2PUnregisterMem(&info, SOON_MS), HCCL_E_NOT_FOUND, "not registered");
  memset(memory, 0, BYTES);
  meet(side);
  meet(side); /* and after all that was tried there: */
  EXPECT_ALL(memory, BYTES, 0);
  P2P_OK(P2PCommDestroy(comm));
  free(memory);
}

static void second(const Side* side) {
  const P2PComm comm = connectEqualSides(side);
  P2pSegmentInfo info;
  void* base = NULL;
  hear(side, &info, sizeof info);
  hear(side, &base, sizeof base);
  P2P_OK(P2PImportHostSegment(info));
  uint8_t* got = newMemory(BYTES);
  P2P_OK(P2PGet(base, got, BYTES, HCCL_DATA_TYPE_UINT8, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT_PATTERN(got, BYTES, 6, 0);
  P2P_REFUSED(P2PUnregisterMem(&info, 1), HCCL_E_NOT_FOUND, "by this process");
  meet(side);
  meet(side);
  P2P_REFUSED(P2PPut(got, base, BYTES, HCCL_DATA_TYPE_UINT8, comm, NULL), HCCL_E_NOT_FOUND,
              "was unregistered");
  P2P_REFUSED(P2PPut(got, base, BYTES, HCCL_DATA_TYPE_UINT8, comm, NULL), HCCL_E_NOT_FOUND,
              "is not registered there (any more)");
  meet(side);
  P2P_OK(P2PUnimportSegment(info));
  P2P_OK(P2PCommDestroy(comm));
  free(got);
}

int main(void) {
  return runSides(first, second);
}
