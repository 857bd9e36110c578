// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {
namespace {

struct Sentence {
  std::string text;
  bool isLost = false;  // there was no room to write it down
};

Sentence& sentence() {
  thread_local Sentence last;
  return last;
}

}  // namespace

HcclResult resultOf(Code code) {
  switch (code) {
    case Code::kOk: return HCCL_SUCCESS;
    case Code::kInvalidArgument:
    case Code::kSizeMismatch:
    case Code::kCorrupt:
    case Code::kPermissionDenied: return HCCL_E_PARA;
    case Code::kNotSupported: return HCCL_E_NOT_SUPPORT;
    case Code::kUnavailable:
    case Code::kCancelled:
    case Code::kClosed:
    case Code::kNotPrepared: return HCCL_E_UNAVAIL;
    case Code::kTryAgain: return HCCL_E_AGAIN;
    case Code::kTimeout: return HCCL_E_TIMEOUT;
    case Code::kPeerLost:
    case Code::kPeerSilent: return HCCL_E_REMOTE;
    case Code::kOutOfMemory: return HCCL_E_MEMORY;
    case Code::kSystem: return HCCL_E_SYSCALL;
    case Code::kInternal: return HCCL_E_INTERNAL;
  }
  return HCCL_E_INTERNAL;
}

HcclResult report(const Answer& answer) noexcept {
  Sentence& last = sentence();
  last.isLost = false;
  if (answer.status.isOk()) {
    last.text.clear();
    return HCCL_SUCCESS;
  }
  try {
    last.text = answer.status.toString();
  } catch (const std::exception&) {
    last.isLost = true;
  }
  return answer.result;
}

const char* lastSentence() {
  return sentence().isLost ? "out of memory" : sentence().text.c_str();
}

}  // namespace peerlane::p2p
