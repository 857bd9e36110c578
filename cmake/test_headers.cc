// SPDX-License-Identifier: Apache-2.0
//
// Carries the precompiled header of all tests; has nothing to do of its own.

int main() {
  return 0;
}
