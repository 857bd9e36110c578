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

// The kind of an error, coarse enough for a caller to choose what to do next. Numbers are wire
// format (acknowledgements and control messages carry them): never renumber, only append.
enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's value; the message names it and the accepted values
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
  // The provider of a region's memory took it back, or it was freed, before the region was
  // unregistered; bytes of transfers that used it are undefined.
  kRevoked = 17,
};
inline constexpr Code kLastCode = Code::kRevoked;

// The code's name as it appears in messages and reports, e.g. "PeerLost". Never null.
const char* codeName(Code code);

// One outcome. `message()` is one sentence that names the thing, its value and the accepted values.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message,
         std::source_location where = std::source_location::current());

  static Status ok() { return {}; }
  // Code kSystem (kUnavailable: no descriptor is left) with the text of `error` (errno) after
  // `what`.
  static Status system(int error, std::string_view what,
                       std::source_location where = std::source_location::current());

  bool isOk() const { return record_ == nullptr; }
  explicit operator bool() const { return isOk(); }
  Code code() const { return record_ ? record_->code : Code::kOk; }
  // Empty for success. Lifetime: as long as any copy of this status.
  std::string_view message() const;
  // errno of the system call that failed, else 0.
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

namespace internal {
[[noreturn]] void abortWith(const char* what, const std::string& detail, const char* file,
                            int line);
// A default `caller` means that the place is unknown.
[[noreturn]] void abortOnMisuse(const std::string& why, const std::source_location& caller);
}  // namespace internal

// A value or the reason there is none. Requires: value(), * and -> only after isOk(). Otherwise the
// process aborts with the error, and value() names the line of its caller (operators cannot know
// it).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  // Makes the value in place: for results that are returned so often that a move is too expensive.
  template <typename... Args>
  explicit Result(std::in_place_t, Args&&... args)
      : value_(std::in_place, std::forward<Args>(args)...) {}
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.isOk())
      internal::abortOnMisuse("Result built from an OK status without a value", kNoPlace);
  }

  bool isOk() const { return value_.has_value(); }
  explicit operator bool() const { return isOk(); }
  const Status& status() const { return status_; }

  T& value(std::source_location caller = std::source_location::current()) & {
    return check(caller), *value_;
  }
  const T& value(std::source_location caller = std::source_location::current()) const& {
    return check(caller), *value_;
  }
  T&& value(std::source_location caller = std::source_location::current()) && {
    return check(caller), std::move(*value_);
  }
  T* operator->() { return check(kNoPlace), &*value_; }
  const T* operator->() const { return check(kNoPlace), &*value_; }
  T& operator*() & { return check(kNoPlace), *value_; }
  const T& operator*() const& { return check(kNoPlace), *value_; }

 private:
  static constexpr std::source_location kNoPlace{};
  void check(const std::source_location& caller) const {
    if (!value_) internal::abortOnMisuse(status_.toString(), caller);
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace peerlane

// Returns from the calling function when `expression` (a Status) is an error.
#define PEERLANE_RETURN_IF_ERROR(expression)                                                  \
  do {                                                                                        \
    if (auto peerlane_status = (expression); !peerlane_status.isOk()) return peerlane_status; \
  } while (false)

#define PEERLANE_CONCAT_INNER(a, b) a##b
#define PEERLANE_CONCAT(a, b) PEERLANE_CONCAT_INNER(a, b)
// `PEERLANE_ASSIGN(auto x, call())`: unwraps a Result or returns its Status. Two statements: not
// the body of an `if` without braces. It may stand several times on a line.
#define PEERLANE_ASSIGN(target, expression) \
  PEERLANE_ASSIGN_BY(PEERLANE_CONCAT(peerlane_result_, __COUNTER__), target, expression)
#define PEERLANE_ASSIGN_BY(result, target, expression) \
  auto result = (expression);                          \
  if (!result.isOk()) return result.status();          \
  target = std::move(result).value()

// Programmer errors (broken invariants of this library) abort with the place and the condition.
#define PEERLANE_CHECK(condition)                                                      \
  do {                                                                                 \
    if (!(condition)) [[unlikely]]                                                     \
      ::peerlane::internal::abortWith("check failed", #condition, __FILE__, __LINE__); \
  } while (false)
