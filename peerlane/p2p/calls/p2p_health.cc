// SPDX-License-Identifier: Apache-2.0
//
// p2p.h: the calls that report the state of a communicator, the last error and the version.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "peerlane/core/version.h"
#include "peerlane/p2p.h"
#include "peerlane/p2p/calls/call_arguments.h"
#include "peerlane/p2p/result_code.h"

using namespace peerlane;
using namespace peerlane::p2p;

HcclResult P2PGetCommAsyncError(P2PComm comm, HcclResult* asyncError) {
  Answer error = Status::ok();
  const HcclResult result = answer([&]() -> Answer {
    if (asyncError == nullptr) return nullPointer("asyncError");
    const auto pair = findComm(comm);
    if (!pair) return noSuchComm(comm);
    error = pair->asyncError();
    *asyncError = error.result;
    return Status::ok();
  });
  if (result == HCCL_SUCCESS) (void)report(error);  // keeps its sentence for P2PGetLastError
  return result;
}

HcclResult P2PGetCommHeartbeat(P2PComm comm, int* seconds) {
  return answer([&]() -> Answer {
    if (seconds == nullptr) return nullPointer("seconds");
    const auto pair = findComm(comm);
    if (!pair) return noSuchComm(comm);
    *seconds = pair->silence();
    return Status::ok();
  });
}

HcclResult P2PCommSynchronize(P2PComm comm, uint32_t timeoutMs) {
  return answer([&]() -> Answer {
    const auto pair = findComm(comm);
    if (!pair) return noSuchComm(comm);
    return pair->synchronize(std::chrono::milliseconds(timeoutMs));
  });
}

HcclResult P2PGetCommRoute(P2PComm comm, char* text, uint64_t bytes) {
  return answer([&]() -> Answer {
    if (text == nullptr) return nullPointer("text");
    if (bytes == 0)
      return Status(Code::kInvalidArgument, "bytes is 0; need at least 1, for the end of the text");
    const auto pair = findComm(comm);
    if (!pair) return noSuchComm(comm);
    const std::string route = pair->route();
    const uint64_t length = std::min<uint64_t>(route.size(), bytes - 1);
    std::memcpy(text, route.data(), length);
    text[length] = '\0';
    return Status::ok();
  });
}

const char* P2PGetLastError() {
  return lastSentence();
}

HcclResult P2PGetVersion(uint32_t* major, uint32_t* minor, uint32_t* patch) {
  if (major != nullptr) *major = PEERLANE_VERSION_MAJOR;
  if (minor != nullptr) *minor = PEERLANE_VERSION_MINOR;
  if (patch != nullptr) *patch = PEERLANE_VERSION_PATCH;
  return report(Status::ok());
}
