// SPDX-License-Identifier: Apache-2.0
//
// A shared library that a plug-in of the tests needs.
extern "C" int peerlaneFixtureNeeded() {
  return 0;
}
