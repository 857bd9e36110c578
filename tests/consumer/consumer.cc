// SPDX-License-Identifier: Apache-2.0
//
// Prints the version of the installed library. Opens a context before, so that whatever the library
// needs at the link is proven to be named by the package files.

#include <cstdio>

#include "peerlane/core/version.h"
#include "peerlane/peerlane.h"

int main() {
  auto context = peerlane::Context::create();
  if (!context.isOk()) {
    std::puts(context.status().toString().c_str());
    return 1;
  }
  if ((*context)->ticket().empty()) return 1;
  std::puts(PEERLANE_VERSION);
  return 0;
}
