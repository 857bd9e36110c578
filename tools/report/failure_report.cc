// SPDX-License-Identifier: Apache-2.0
#include "tools/report/failure_report.h"

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
  tellUser("peerlane: " + failureText(status));
  return kExitFailure;
}

void tellUser(const std::string& line) {
  std::fputs((line + "\n").c_str(), stderr);
}

CommandEnd CommandEnd::notRead(Status status) {
  CommandEnd end(std::move(status));
  end.wrongLine_ = end.status_.code() == Code::kInvalidArgument;
  return end;
}

CommandEnd CommandEnd::noTicket(Status status) {
  CommandEnd end(std::move(status));
  end.wrongLine_ =
      end.status_.code() == Code::kInvalidArgument || end.status_.code() == Code::kCorrupt;
  return end;
}

int CommandEnd::report() const {
  if (status_.isOk()) return 0;
  reportFailure(status_);
  return wrongLine_ ? kExitUsage : kExitFailure;
}

}  // namespace peerlane
