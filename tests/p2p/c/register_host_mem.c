/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PRegisterHostMem: memory of this process that the other may read, write, or both.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

#define BYTES 70001u

static const P2pSegmentPermissions kRights[] = {P2P_SEGMENT_READ_WRITE, P2P_SEGMENT_READ_ONLY,
                                                P2P_SEGMENT_WRITE_ONLY};

static void refuse(void) {
  uint8_t byte = 0;
  P2pSegmentInfo info;
  P2P_REFUSED(P2PRegisterHostMem(NULL, 1, &info, P2P_SEGMENT_READ_ONLY), HCCL_E_PTR,
              "hostBuf is NULL");
  P2P_REFUSED(P2PRegisterHostMem(&byte, 1, NULL, P2P_SEGMENT_READ_ONLY), HCCL_E_PTR,
              "segmentInfo is NULL");
  P2P_REFUSED(P2PRegisterHostMem(&byte, 0, &info, P2P_SEGMENT_READ_ONLY), HCCL_E_PARA, "0");
  P2P_REFUSED(P2PRegisterHostMem(&byte, 1, &info, (P2pSegmentPermissions)3), HCCL_E_PARA,
              "permissions is 3");
  P2P_REFUSED(P2PRegisterHostMem(&byte, UINT64_MAX, &info, P2P_SEGMENT_READ_ONLY), HCCL_E_PARA, "");
}

/* Ordinary memory that begins anywhere; the first before there is a communicator. */
static void first(const Side* side) {
  refuse();
  uint8_t* memory[3];
  uint8_t* bases[3];
  P2pSegmentInfo infos[3];
  P2PComm comm = NULL;
  for (unsigned i = 0; i < 3; ++i) {
    if (i == 1) comm = connectEqualSides(side);
    memory[i] = newMemory(BYTES + 3);
    fillPattern(memory[i] + 1, BYTES, i);
    P2P_OK(P2PRegisterHostMem(memory[i] + 1, BYTES, &infos[i], kRights[i]));
    bases[i] = memory[i] + 1;
  }
  /* The same memory once more: another segment. */
  P2pSegmentInfo again;
  P2P_OK(P2PRegisterHostMem(memory[1] + 1, BYTES, &again, P2P_SEGMENT_READ_ONLY));
  EXPECT(memcmp(&again, &infos[1], sizeof again) != 0);
  tell(side, bases, sizeof bases);
  tell(side, infos, sizeof infos);
  meet(side);
  for (unsigned i = 0; i < 3; ++i) {
    /* The last byte was written where that is allowed. */
    EXPECT_PATTERN(memory[i] + 1, BYTES - 1, i, 0);
    if (kRights[i] == P2P_SEGMENT_READ_ONLY)
      EXPECT_PATTERN(memory[i] + BYTES, 1, i, BYTES - 1);
    else
      EXPECT(memory[i][BYTES] == 0x5a);
    EXPECT(memory[i][0] == 0 && memory[i][BYTES + 1] == 0);
    P2P_OK(P2PUnregisterMem(&infos[i], SOON_MS));
    if (i == 1) P2P_OK(P2PUnregisterMem(&again, SOON_MS));
    free(memory[i]);
  }
  P2P_OK(P2PCommDestroy(comm));
}

static void second(const Side* side) {
  const P2PComm comm = connectEqualSides(side);
  uintptr_t bases[3];
  P2pSegmentInfo infos[3];
  hear(side, bases, sizeof bases);
  hear(side, infos, sizeof infos);
  uint8_t* got = newMemory(BYTES);
  uint8_t mark = 0x5a;
  const HcclDataType type = HCCL_DATA_TYPE_UINT8;
  for (unsigned i = 0; i < 3; ++i) {
    P2P_OK(P2PImportHostSegment(infos[i]));
    void* base = (void*)bases[i];
    void* last = (void*)(bases[i] + BYTES - 1);
    if (kRights[i] == P2P_SEGMENT_WRITE_ONLY) {
      P2P_REFUSED(P2PGet(base, got, BYTES, type, comm, NULL), HCCL_E_PARA,
                  "P2P_SEGMENT_WRITE_ONLY");
    } else {
      P2P_OK(P2PGet(base, got, BYTES, type, comm, NULL));
      P2P_OK(P2PCommSynchronize(comm, SOON_MS));
      EXPECT_PATTERN(got, BYTES, i, 0);
    }
    if (kRights[i] == P2P_SEGMENT_READ_ONLY)
      P2P_REFUSED(P2PPut(&mark, last, 1, type, comm, NULL), HCCL_E_PARA, "cannot be written");
    else
      P2P_OK(P2PPut(&mark, last, 1, type, comm, NULL));
    P2P_OK(P2PCommSynchronize(comm, SOON_MS));
    /* Not one byte more than was registered. */
    P2P_REFUSED(P2PPut(got, last, 2, type, comm, NULL), HCCL_E_PARA, "over its end by 1 byte");
    P2P_OK(P2PUnimportSegment(infos[i]));
  }
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
  free(got);
}

int main(void) {
  return runSides(first, second);
}
