/* SPDX-License-Identifier: Apache-2.0
 *
 * PrewarmHccp and UnwarmHccp: what is opened early, and let go of. Both may be called at any time
 * and as often as one likes.
 */
#include "tests/p2p/c/c_sides.h"

/* On a stream of its own: where there is a GPU, it is in use from PrewarmHccp on. */
static void passOneWord(const Side* side, P2PComm comm, aclrtStream stream, uint64_t value) {
  uint64_t word = side->isFirst ? value : 0;
  P2P_OK(side->isFirst ? P2PSend(&word, 1, HCCL_DATA_TYPE_UINT64, comm, stream)
                       : P2PRecv(&word, 1, HCCL_DATA_TYPE_UINT64, comm, stream));
  P2P_OK(P2PHostStreamSynchronize(stream, SOON_MS));
  EXPECT(word == value);
}

static void each(const Side* side) {
  P2P_OK(UnwarmHccp()); /* there is nothing yet */
  P2P_OK(PrewarmHccp());
  P2P_OK(PrewarmHccp());
  aclrtStream stream = NULL;
  P2P_OK(P2PHostStreamCreate(&stream));
  const P2PComm comm = connectEqualSides(side);
  P2P_OK(UnwarmHccp()); /* what is in use stays */
  passOneWord(side, comm, stream, 31);
  meet(side);
  P2P_OK(P2PCommDestroy(comm));
  P2P_OK(UnwarmHccp());
  P2P_OK(UnwarmHccp());
  const P2PComm later = connectEqualSides(side);
  passOneWord(side, later, stream, 32);
  meet(side);
  P2P_OK(P2PCommDestroy(later));
  P2P_OK(P2PHostStreamDestroy(stream));
  P2P_OK(UnwarmHccp());
}

int main(void) {
  return runSides(each, each);
}
