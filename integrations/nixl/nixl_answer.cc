// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/nixl_answer.h"

#include <algorithm>
#include <cstdio>

#include "peerlane/core/config.h"

namespace peerlane::nixl {
namespace {

LogLevel shownLevel() {
  static const LogLevel level = [] {
    const auto config = Config::fromEnvironment();
    return config.isOk() ? config->logLevel : LogLevel::kWarn;
  }();
  return level;
}

}  // namespace

abi::Answer answerFor(Code code) {
  switch (code) {
    case Code::kOk: return abi::Answer::kSuccess;
    case Code::kInvalidArgument: return abi::Answer::kInvalidParam;
    case Code::kNotSupported: return abi::Answer::kNotSupported;
    case Code::kCancelled: return abi::Answer::kCanceled;
    case Code::kPeerLost:
    case Code::kPeerSilent: return abi::Answer::kRemoteDisconnect;
    case Code::kClosed:
    case Code::kRevoked: return abi::Answer::kNotFound;
    case Code::kPermissionDenied: return abi::Answer::kNotAllowed;
    case Code::kSizeMismatch:
    case Code::kCorrupt: return abi::Answer::kMismatch;
    case Code::kUnavailable:
    case Code::kTryAgain:
    case Code::kTimeout:
    case Code::kOutOfMemory:
    case Code::kNotPrepared:
    case Code::kSystem:
    case Code::kInternal: return abi::Answer::kBackend;
  }
  return abi::Answer::kUnknown;
}

void say(LogLevel level, const std::string& agent, const std::string& text) {
  if (static_cast<int>(level) > static_cast<int>(shownLevel())) return;
  std::string line = "peerlane nixl: " + agent + ": " + text;
  // Names and reasons may come from elsewhere, and shall forge no line.
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  std::fprintf(stderr, "%s\n", line.c_str());
}

void LimitedLines::say(LogLevel level, const std::string& agent, const std::string& text) {
  if (static_cast<int>(level) > static_cast<int>(shownLevel())) return;
  std::string leftOut;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!limit_.allows()) return;
    leftOut = limit_.leftOut();
  }
  nixl::say(level, agent, text + leftOut);
}

abi::Answer refuse(const std::string& agent, const std::string& what, const Status& status) {
  if (!status.isOk()) say(LogLevel::kError, agent, what + ": " + status.toString());
  return answerFor(status.code());
}

}  // namespace peerlane::nixl
