// SPDX-License-Identifier: Apache-2.0
//
// Prints the version of the installed library, and links against it by one real call.

#include <cstdio>

#include "peerlane/core/status.h"
#include "peerlane/core/version.h"

int main() {
  const peerlane::Status status(peerlane::Code::kTimeout, "nothing happened");
  if (status.code() != peerlane::Code::kTimeout) return 1;
  std::puts(PEERLANE_VERSION);
  return 0;
}
