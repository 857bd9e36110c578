/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PAllocHostMem and P2PFreeHostMem: zeroed memory of the kind that is reached best, used like any
 * other.
 */
#include "tests/p2p/c/c_sides.h"

#define BYTES (((size_t)5 << 20) + 123)

static void first(const Side* side) {
  void* memory = NULL;
  P2P_REFUSED(P2PAllocHostMem(NULL, 1, P2P_NUMA_ANY), HCCL_E_PTR, "hostBuf is NULL");
  P2P_REFUSED(P2PAllocHostMem(&memory, 0, P2P_NUMA_ANY), HCCL_E_PARA, "0");
  P2P_REFUSED(P2PAllocHostMem(&memory, 1, -9), HCCL_E_PARA, "numaNode is -9");
  P2P_REFUSED(P2PAllocHostMem(&memory, 1, P2P_NUMA_OF_DEVICE), HCCL_E_PARA, "P2P_NUMA_OF_DEVICE");
  P2P_REFUSED(P2PAllocHostMem(&memory, 1, 1 << 20), HCCL_E_PARA, "node");
  P2P_REFUSED(P2PAllocHostMem(&memory, (uint64_t)1 << 45, P2P_NUMA_ANY), HCCL_E_MEMORY,
              "35184372088832");
  EXPECT(memory == NULL);
  P2P_OK(P2PAllocHostMem(&memory, BYTES, P2P_NUMA_ANY));
  EXPECT_ALL(memory, BYTES, 0);
  P2pSegmentInfo info;
  P2P_OK(P2PRegisterHostMem(memory, BYTES, &info, P2P_SEGMENT_WRITE_ONLY));
  const P2PComm comm = connectEqualSides(side);
  tell(side, &info, sizeof info);
  tell(side, &memory, sizeof memory);
  meet(side);
  EXPECT_PATTERN(memory, BYTES, 8, 0);
  P2P_REFUSED(P2PFreeHostMem(memory), HCCL_E_UNAVAIL, "P2PUnregisterMem");
  P2P_OK(P2PUnregisterMem(&info, SOON_MS));
  P2P_OK(P2PFreeHostMem(memory));
  P2P_REFUSED(P2PFreeHostMem(memory), HCCL_E_NOT_FOUND, "freed before");
  P2P_REFUSED(P2PFreeHostMem(NULL), HCCL_E_PTR, "hostBuf is NULL");
  P2P_REFUSED(P2PFreeHostMem(&info), HCCL_E_NOT_FOUND, "not of P2PAllocHostMem");
  P2P_OK(P2PCommDestroy(comm));
}

static void second(const Side* side) {
  void* own = NULL;
  P2P_OK(P2PAllocHostMem(&own, BYTES, P2P_NUMA_ANY));
  fillPattern(own, BYTES, 8);
  const P2PComm comm = connectEqualSides(side);
  P2pSegmentInfo info;
  void* far = NULL;
  hear(side, &info, sizeof info);
  hear(side, &far, sizeof far);
  P2P_OK(P2PImportHostSegment(info));
  P2P_OK(P2PPut(own, far, BYTES, HCCL_DATA_TYPE_UINT8, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  P2P_OK(P2PUnimportSegment(info));
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
  P2P_OK(P2PFreeHostMem(own));
}

int main(void) {
  return runSides(first, second);
}
