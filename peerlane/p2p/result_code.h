// SPDX-License-Identifier: Apache-2.0
//
// Result codes: what a Status is in the C API, and the sentence that each thread keeps of its last
// call. Nothing is thrown through the C API: what runs once something was thrown allocates nothing.
// Thread-safe.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "peerlane/core/status.h"
#include "peerlane/p2p.h"

namespace peerlane::p2p {

HcclResult resultOf(Code code);

// A status, and its code where that says more than the status's own.
struct Answer {
  Answer(Status given)  // NOLINT(google-explicit-constructor)
      : status(std::move(given)), result(resultOf(status.code())) {}
  Answer(Status given, HcclResult code) : status(std::move(given)), result(code) {}

  Status status;
  HcclResult result;
};

// HCCL_E_NOT_FOUND.
inline Answer notFound(std::string what) {
  return {Status(Code::kInvalidArgument, std::move(what)), HCCL_E_NOT_FOUND};
}
// HCCL_E_PARA, as the original has it.
inline Answer nullPointer(const char* argument) {
  return Status(Code::kInvalidArgument, std::string(argument) + " is NULL");
}

// With the zero behind it; P2PGetLastError promises it.
inline constexpr size_t kSentenceBytes = 2048;

// The thread remembers the sentence.
HcclResult report(const Answer& answer) noexcept;
HcclResult report(Code code, std::string_view message) noexcept;
// Until the thread's next report. Also while the thread or the process ends.
const char* lastSentence() noexcept;

// What every call of the C API is made of: `call` returns an Answer.
template <typename Call>
HcclResult answer(const Call& call) noexcept {
  try {
    return report(call());
  } catch (const std::bad_alloc&) {
    return report(Code::kOutOfMemory, "there was not enough for this call");
  } catch (const std::exception& thrown) {
    return report(Code::kInternal, thrown.what());
  } catch (...) {
    return report(Code::kInternal, "something was thrown that is no std::exception");
  }
}

}  // namespace peerlane::p2p
