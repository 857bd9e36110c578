/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PUnimportSegment: the addresses mean nothing any more, until it is imported again.
 */
#include <string.h>

#include "tests/p2p/c/c_sides.h"

static void first(const Side* side) {
  lendMemory(side, P2P_SEGMENT_READ_ONLY, NULL);
}

static void second(const Side* side) {
  const Borrowed borrowed = borrowMemory(side);
  uint8_t got[4096];
  for (int again = 0; again < 3; ++again) {
    memset(got, 0, sizeof got);
    P2P_OK(P2PGet(borrowed.far, got, sizeof got, HCCL_DATA_TYPE_UINT8, borrowed.comm, NULL));
    P2P_OK(P2PUnimportSegment(borrowed.info)); /* what is under way goes on */
    P2P_REFUSED(P2PGet(borrowed.far, got, 1, HCCL_DATA_TYPE_UINT8, borrowed.comm, NULL),
                HCCL_E_NOT_FOUND, "imported");
    P2P_OK(P2PCommSynchronize(borrowed.comm, SOON_MS));
    EXPECT_PATTERN(got, sizeof got, LENT_SEED, 0);
    P2P_REFUSED(P2PUnimportSegment(borrowed.info), HCCL_E_NOT_FOUND, "not imported");
    P2P_OK(P2PImportHostSegment(borrowed.info));
  }
  P2pSegmentInfo wrong;
  memset(&wrong, 0, sizeof wrong);
  P2P_REFUSED(P2PUnimportSegment(wrong), HCCL_E_PARA, "segment info");
  returnMemory(side, &borrowed);
}

int main(void) {
  return runSides(first, second);
}
