// SPDX-License-Identifier: Apache-2.0
#include "tools/failure_report.h"

#include <algorithm>
#include <cstdio>

namespace peerlane {

std::string failureText(const Status& status) {
  std::string text = std::string(codeName(status.code())) + ": " + std::string(status.message());
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  return text;
}

int reportFailure(const Status& status) {
  const std::string line = "peerlane: " + failureText(status) + "\n";
  std::fputs(line.c_str(), stderr);
  return kExitFailure;
}

}  // namespace peerlane
