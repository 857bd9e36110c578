/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PRegisterDeviceMem takes memory of a GPU alone, and says what takes other memory. (With GPUs it
 * is used by tests/gpu.)
 */
#include <string.h>

#include "tests/p2p/c/c_sides.h"

static void first(const Side* side) {
  const P2PComm comm = connectEqualSides(side);
  uint64_t word = 21;
  P2pSegmentInfo info;
  P2P_REFUSED(P2PRegisterDeviceMem(NULL, 8, &info, P2P_SEGMENT_READ_ONLY), HCCL_E_PTR,
              "devBuf is NULL");
  P2P_REFUSED(P2PRegisterDeviceMem(&word, 8, NULL, P2P_SEGMENT_READ_ONLY), HCCL_E_PTR,
              "segmentInfo is NULL");
  /* Without CUDA nothing is; with it, this is the wrong call. */
  const HcclResult refused = P2PRegisterDeviceMem(&word, 8, &info, P2P_SEGMENT_READ_ONLY);
  EXPECT(refused == HCCL_E_NOT_SUPPORT ||
         (refused == HCCL_E_PARA && strstr(P2PGetLastError(), "P2PRegisterHostMem") != NULL));
  P2P_OK(P2PRegisterHostMem(&word, 8, &info, P2P_SEGMENT_READ_ONLY));
  uint64_t* base = &word;
  tell(side, &info, sizeof info);
  tell(side, &base, sizeof base);
  meet(side);
  P2P_OK(P2PUnregisterMem(&info, SOON_MS));
  P2P_OK(P2PCommDestroy(comm));
}

static void second(const Side* side) {
  const P2PComm comm = connectEqualSides(side);
  P2pSegmentInfo info;
  void* base = NULL;
  hear(side, &info, sizeof info);
  hear(side, &base, sizeof base);
  P2P_OK(P2PImportHostSegment(info));
  uint64_t word = 0;
  P2P_OK(P2PGet(base, &word, 1, HCCL_DATA_TYPE_UINT64, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT(word == 21);
  P2P_OK(P2PUnimportSegment(info));
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

int main(void) {
  return runSides(first, second);
}
