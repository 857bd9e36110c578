// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/result_code.h"

#include <algorithm>
#include <cstring>

namespace peerlane::p2p {
namespace {

constexpr std::string_view kCut = "\u2026";

// An array, which is never destroyed: destructors of the thread's other objects may still use it.
constinit thread_local char last_sentence[kSentenceBytes] = "";

// Writes the thread's last sentence piece by piece, and cuts it where there is no more room.
class SentenceWriter {
 public:
  void add(std::string_view piece) {
    const size_t room = kSentenceBytes - 1 - length_;
    std::memcpy(last_sentence + length_, piece.data(), std::min(piece.size(), room));
    length_ += std::min(piece.size(), room);
    isCut_ = isCut_ || piece.size() > room;
  }
  void finish() {
    if (isCut_) {
      length_ = kSentenceBytes - 1 - kCut.size();
      // Back to the beginning of a character of UTF-8.
      while (length_ > 0 && (last_sentence[length_] & 0xc0) == 0x80) --length_;
      std::memcpy(last_sentence + length_, kCut.data(), kCut.size());
      length_ += kCut.size();
    }
    last_sentence[length_] = '\0';
  }

 private:
  size_t length_ = 0;
  bool isCut_ = false;
};

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
    case Code::kRevoked:
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

HcclResult resultOf(const Status& status) {
  const bool isCuda = status.code() == Code::kSystem && status.systemError() == 0;
  return isCuda ? HCCL_E_RUNTIME : resultOf(status.code());
}

HcclResult report(Code code, std::string_view message) noexcept {
  SentenceWriter writer;
  if (code != Code::kOk) {
    writer.add(codeName(code));
    writer.add(": ");
    writer.add(message);
  }
  writer.finish();
  return resultOf(code);
}

HcclResult report(const Answer& answer) noexcept {
  const Status& status = answer.status;
  if (status.isOk()) return report(Code::kOk, {});
  try {
    const std::string text = status.toString();
    SentenceWriter writer;
    writer.add(text);
    writer.finish();
  } catch (...) {
    (void)report(status.code(), status.message());  // the sentence without the place in the source
  }
  return answer.result;
}

const char* lastSentence() noexcept {
  return last_sentence;
}

}  // namespace peerlane::p2p
