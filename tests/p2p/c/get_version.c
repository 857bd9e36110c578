/* SPDX-License-Identifier: Apache-2.0
 *
 * P2PGetVersion: of the library, the same at both sides. No argument of it can be wrong.
 */
#include "tests/p2p/c/c_sides.h"

static void each(const Side* side) {
  uint32_t own[3] = {9999, 9999, 9999}, other[3];
  P2P_OK(P2PGetVersion(&own[0], &own[1], &own[2]));
  for (int i = 0; i < 3; ++i) EXPECT(own[i] < 9999);
  P2P_OK(P2PGetVersion(NULL, NULL, NULL));
  uint32_t alone[3] = {9999, 9999, 9999};
  P2P_OK(P2PGetVersion(&alone[0], NULL, NULL));
  P2P_OK(P2PGetVersion(NULL, &alone[1], NULL));
  P2P_OK(P2PGetVersion(NULL, NULL, &alone[2]));
  tell(side, own, sizeof own);
  hear(side, other, sizeof other);
  for (int i = 0; i < 3; ++i) EXPECT(own[i] == alone[i] && own[i] == other[i]);
}

int main(void) {
  return runSides(each, each);
}
