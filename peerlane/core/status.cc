// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace peerlane {
namespace {

std::string_view baseName(std::string_view path) {
  auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

const char* codeName(Code code) {
  switch (code) {
    case Code::kOk: return "OK";
    case Code::kInvalidArgument: return "InvalidArgument";
    case Code::kNotSupported: return "NotSupported";
    case Code::kUnavailable: return "Unavailable";
    case Code::kTryAgain: return "TryAgain";
    case Code::kTimeout: return "Timeout";
    case Code::kCancelled: return "Cancelled";
    case Code::kPeerLost: return "PeerLost";
    case Code::kPeerSilent: return "PeerSilent";
    case Code::kClosed: return "Closed";
    case Code::kOutOfMemory: return "OutOfMemory";
    case Code::kPermissionDenied: return "PermissionDenied";
    case Code::kNotPrepared: return "NotPrepared";
    case Code::kSizeMismatch: return "SizeMismatch";
    case Code::kCorrupt: return "Corrupt";
    case Code::kSystem: return "System";
    case Code::kInternal: return "Internal";
    case Code::kRevoked: return "Revoked";
  }
  return "UnknownCode";
}

Status::Status(Code code, std::string message, std::source_location where) {
  PEERLANE_CHECK(code != Code::kOk);
  record_ = std::make_shared<const Record>(Record{code, 0, std::move(message), where});
}

Status Status::system(int error, std::string_view what, std::source_location where) {
  Status status;
  std::string message(what);
  message += ": ";
  message += std::generic_category().message(error);
  if (error == EMFILE)
    message +=
        " in this process (ulimit -n): a peer on this host takes about 10 descriptors, "
        "memory of Context::allocate 1, an import of it 1";
  if (error == ENFILE) message += " (fs.file-max)";
  // Whatever the call was: it succeeds when others have closed theirs, or after the advice.
  const Code code = error == EMFILE || error == ENFILE ? Code::kUnavailable : Code::kSystem;
  status.record_ = std::make_shared<const Record>(Record{code, error, std::move(message), where});
  return status;
}

std::string_view Status::message() const {
  return record_ ? std::string_view(record_->message) : std::string_view();
}

std::string Status::toString() const {
  if (!record_) return "OK";
  std::string text = codeName(record_->code);
  text += ": ";
  text += record_->message;
  text += " (";
  text += baseName(record_->where.file_name());
  text += ':';
  text += std::to_string(record_->where.line());
  text += ')';
  return text;
}

Status Status::withContext(std::string_view clause) const {
  if (!record_) return {};
  Status wrapped;
  wrapped.record_ = std::make_shared<const Record>(
      Record{record_->code, record_->systemError, std::string(clause) + ": " + record_->message,
             record_->where});
  return wrapped;
}

namespace internal {
void abortWith(const char* what, const std::string& detail, const char* file, int line) {
  std::fprintf(stderr, "peerlane: %s: %s at %s:%d\n", what, detail.c_str(), file, line);
  std::abort();
}

void abortOnMisuse(const std::string& why, const std::source_location& caller) {
  if (caller.line() != 0)
    abortWith("a Result has no value", why, caller.file_name(), int(caller.line()));
  std::fprintf(stderr, "peerlane: a Result has no value: %s\n", why.c_str());
  std::abort();
}
}  // namespace internal

}  // namespace peerlane
