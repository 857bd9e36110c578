/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PImportHostSegment: from then on addresses of the other process mean its memory; before there
 * is a communicator, or after.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/p2p/c/c_sides.h"

#define BYTES 8192u

static void first(const Side* side) {
  uint8_t* memory[2];
  P2pSegmentInfo infos[2];
  for (unsigned i = 0; i < 2; ++i) {
    memory[i] = newMemory(BYTES);
    fillPattern(memory[i], BYTES, i);
    P2P_OK(P2PRegisterHostMem(memory[i], BYTES, &infos[i], P2P_SEGMENT_READ_ONLY));
  }
  tell(side, memory, sizeof memory);
  tell(side, infos, sizeof infos);
  const P2PComm comm = connectEqualSides(side);
  meet(side);
  for (unsigned i = 0; i < 2; ++i) {
    P2P_OK(P2PUnregisterMem(&infos[i], SOON_MS));
    free(memory[i]);
  }
  P2P_OK(P2PCommDestroy(comm));
}

static void expectRead(P2PComm comm, void* base, unsigned seed) {
  uint8_t got[BYTES];
  P2P_OK(P2PGet(base, got, BYTES, HCCL_DATA_TYPE_UINT8, comm, NULL));
  P2P_OK(P2PCommSynchronize(comm, SOON_MS));
  EXPECT_PATTERN(got, BYTES, seed, 0);
}

static void second(const Side* side) {
  void* bases[2];
  P2pSegmentInfo infos[2];
  hear(side, bases, sizeof bases);
  hear(side, infos, sizeof infos);
  P2P_OK(P2PImportHostSegment(infos[0]));
  const P2PComm comm = connectEqualSides(side);
  expectRead(comm, bases[0], 0);
  uint8_t byte = 0;
  P2P_REFUSED(P2PGet(bases[1], &byte, 1, HCCL_DATA_TYPE_UINT8, comm, NULL), HCCL_E_NOT_FOUND,
              "imported");
  P2P_OK(P2PImportHostSegment(infos[1]));
  P2P_OK(P2PImportHostSegment(infos[1])); /* does nothing */
  expectRead(comm, bases[1], 1);
  P2pSegmentInfo wrong;
  memset(&wrong, 0, sizeof wrong);
  P2P_REFUSED(P2PImportHostSegment(wrong), HCCL_E_PARA, "was not made by this library");
  wrong = infos[0];
  wrong.internal[0] ^= 0x04;
  P2P_REFUSED(P2PImportHostSegment(wrong), HCCL_E_PARA, "version");
  for (unsigned i = 0; i < 2; ++i) P2P_OK(P2PUnimportSegment(infos[i]));
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
}

int main(void) {
  return runSides(first, second);
}
