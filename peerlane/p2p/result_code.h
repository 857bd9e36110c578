// SPDX-License-Identifier: Apache-2.0
//
// Result codes: what a Status is in the C API, and the sentence that each thread keeps of its last
// call. The C API throws nothing: the code that runs after an exception was caught allocates
// nothing. Plain functions; any thread.
#pragma once

#include <chrono>
#include <exception>
#include <new>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

#include "peerlane/core/status.h"
#include "peerlane/p2p.h"

namespace peerlane::p2p {

HcclResult resultOf(Code code);
// The same, and HCCL_E_RUNTIME where CUDA failed: that is kSystem without an errno. The errno is
// missing, too, where a status repeats the error of another one, or the other side's.
HcclResult resultOf(const Status& status);

// A status and its result code, which may say more than the status's own code.
struct Answer {
  Answer(Status given)  // NOLINT(google-explicit-constructor)
      : status(std::move(given)), result(resultOf(status)) {}
  Answer(Status given, HcclResult code) : status(std::move(given)), result(code) {}
  bool isOk() const { return status.isOk(); }
  Answer withContext(std::string_view what) const {
    return {status.withContext(std::string(what)), result};
  }

  Status status;
  HcclResult result;
};

// HCCL_E_NOT_FOUND.
inline Answer notFound(std::string what,
                       std::source_location where = std::source_location::current()) {
  return {Status(Code::kInvalidArgument, std::move(what), where), HCCL_E_NOT_FOUND};
}
// HCCL_E_PTR.
inline Answer nullPointer(const std::string& argument) {
  return {Status(Code::kInvalidArgument, argument + " is NULL"), HCCL_E_PTR};
}

// Puts before the sentence of a timeout what did not happen in the caller's time. Any other status
// stays as it is.
inline Status afterWaiting(const Status& status, std::chrono::milliseconds time,
                           const std::string& whatDidNotHappen) {
  if (status.code() != Code::kTimeout) return status;
  return status.withContext(whatDidNotHappen + " in " + std::to_string(time.count()) + " ms");
}

// Including the zero at the end. P2PGetLastError promises it.
inline constexpr size_t kSentenceBytes = 2048;

// Keeps the sentence for the calling thread, and returns the code.
HcclResult report(const Answer& answer) noexcept;
HcclResult report(Code code, std::string_view message) noexcept;
// Valid until the thread's next report(), also while the thread or the process ends.
const char* lastSentence() noexcept;

// Runs the body of a function of the C API, which returns an Answer, and reports that or what the
// body threw.
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
