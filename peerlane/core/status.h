// SPDX-License-Identifier: Apache-2.0
//
// Status and Result<T>: how every fallible call of the library answers. Errors are values; nothing
// throws. Immutable after creation; copies share the error record. Success is one null pointer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace peerlane {

// What went wrong, coarse enough for a caller to choose what to do next. Numbers are wire format
// (acknowledgements and control messages carry them): never renumber, only append.
enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's value; the message names it and what would be accepted
  kNotSupported = 2,     // this build, link or executor cannot do it, and never will
  kUnavailable = 3,      // cannot be done now: a resource is missing or in use
  kTryAgain = 4,         // back-pressure: nothing was taken, call again later
  kTimeout = 5,          // the caller's bound passed; the operation itself may still be running
  kCancelled = 6,        // ended by cancel(); destination bytes are undefined
  kPeerLost = 7,         // the peer's death is proven (socket end, process exit)
  kPeerSilent = 8,       // the peer stopped answering but may still be alive and may still write
  kClosed = 9,           // the object was closed by its owner
  kOutOfMemory = 10,     //
  kPermissionDenied =
      11,              // rights of a region, of the operating system, or a failed authentication
  kNotPrepared = 12,   // a posting path that may not allocate met something unprepared
  kSizeMismatch = 13,  // a send and its recv disagree on the size; nothing was written
  kCorrupt = 14,       // bytes from outside failed a check (magic, version, length, hash)
  kSystem = 15,        // an operating system call failed; the message carries errno's text
  kInternal = 16,      // a defect of this library
};

// The code's name as it appears in messages and reports, e.g. "PeerLost". Never null.
const char* codeName(Code code);

// One outcome. `message()` is one sentence that names the thing, the value and what would be
// accepted.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message,
         std::source_location where = std::source_location::current());

  static Status ok() { return {}; }
  // Code kSystem with the text of `error` (an errno value) appended to `what`.
  static Status system(int error, std::string_view what,
                       std::source_location where = std::source_location::current());

  bool isOk() const { return record_ == nullptr; }
  explicit operator bool() const { return isOk(); }
  Code code() const { return record_ ? record_->code : Code::kOk; }
  // Empty for success. Lifetime: as long as any copy of this status.
  std::string_view message() const;
  // errno for kSystem, else 0.
  int systemError() const { return record_ ? record_->systemError : 0; }
  // "PeerLost: process 12 of peer 3 ended (peer.cc:88)"; "OK" for success.
  std::string toString() const;

  // The same error with `clause` put before its sentence: "clause: sentence". OK stays OK.
  Status withContext(std::string_view clause) const;

 private:
  struct Record {
    Code code;
    int systemError;
    std::string message;
    std::source_location where;
  };
  std::shared_ptr<const Record> record_;
};

// A value or the reason there is none. Requires: value() only after isOk(); violated, it aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.isOk()) abortOnMisuse("Result built from an OK status without a value");
  }

  bool isOk() const { return value_.has_value(); }
  explicit operator bool() const { return isOk(); }
  const Status& status() const { return status_; }

  T& value() & { return check(), *value_; }
  const T& value() const& { return check(), *value_; }
  T&& value() && { return check(), std::move(*value_); }
  T* operator->() { return check(), &*value_; }
  const T* operator->() const { return check(), &*value_; }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  void check() const {
    if (!value_) abortOnMisuse(status_.toString());
  }
  [[noreturn]] static void abortOnMisuse(const std::string& why);
  std::optional<T> value_;
  Status status_;
};

namespace internal {
[[noreturn]] void abortWith(const char* what, const std::string& detail, const char* file,
                            int line);
}

template <typename T>
void Result<T>::abortOnMisuse(const std::string& why) {
  internal::abortWith("Result misused", why, __FILE__, __LINE__);
}

}  // namespace peerlane

// Returns from the calling function when `expression` (a Status) is an error.
#define PEERLANE_RETURN_IF_ERROR(expression)                                                  \
  do {                                                                                        \
    if (auto peerlane_status = (expression); !peerlane_status.isOk()) return peerlane_status; \
  } while (false)

#define PEERLANE_CONCAT_INNER(a, b) a##b
#define PEERLANE_CONCAT(a, b) PEERLANE_CONCAT_INNER(a, b)
// `PEERLANE_ASSIGN(auto x, call())`: unwraps a Result or returns its Status.
#define PEERLANE_ASSIGN(target, expression)                        \
  auto PEERLANE_CONCAT(peerlane_result_, __LINE__) = (expression); \
  if (!PEERLANE_CONCAT(peerlane_result_, __LINE__).isOk())         \
    return PEERLANE_CONCAT(peerlane_result_, __LINE__).status();   \
  target = std::move(PEERLANE_CONCAT(peerlane_result_, __LINE__)).value()

// Programmer errors (broken invariants of this library) abort with the place and the condition.
#define PEERLANE_CHECK(condition)                                                      \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::peerlane::internal::abortWith("check failed", #condition, __FILE__, __LINE__); \
  } while (false)
