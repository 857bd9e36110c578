// SPDX-License-Identifier: Apache-2.0
//
// The record layer of a control connection after the handshake: encrypted, authenticated, ordered
// records over any byte stream. Bytes in, bytes out; no socket, no clock. Not for bulk data:
// regions have their own links. Confined to one thread per object. The bytes are specified in
// docs/wire.md.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/session/wire/handshake.h"

namespace peerlane {

// The first failure is final: every later call of any method returns the same error.
class SecureChannel {
 public:
  static constexpr size_t kMaxRecordBytes = 64 * 1024;  // encrypted, without its 4 length bytes
  static constexpr size_t kOverheadBytes = 17;          // tag and authenticator inside a record
  static constexpr size_t kMaxPlaintextBytes = kMaxRecordBytes - kOverheadBytes;

  // Takes both directions' fresh keys; a pair of keys is good for one channel. Errors:
  // kInvalidArgument for empty or equal keys.
  static Result<std::unique_ptr<SecureChannel>> create(const SessionKeys& keys);
  ~SecureChannel();
  SecureChannel(const SecureChannel&) = delete;
  SecureChannel& operator=(const SecureChannel&) = delete;

  // One message of 0 to kMaxPlaintextBytes as the bytes to write next. Order: the stream must carry
  // the results in the order of the calls, each once and whole. Errors: kInvalidArgument for a
  // longer message (the channel lives on).
  Result<std::vector<std::byte>> seal(std::span<const std::byte> plaintext);

  // Takes received bytes up to the end of one record and returns how many; less than `input.size()`
  // means that a record waits for next(). Keeps at most one record. Errors: kCorrupt for a length
  // outside 17 to kMaxRecordBytes, refused before anything is allocated for it.
  //
  //   while (!input.empty()) { feed(input) and drop what it took; take messages by next() until
  //   there is none }
  Result<size_t> feed(std::span<const std::byte> input);
  // The message of a whole record, or none before one has come. Errors: kPermissionDenied for a
  // record that was altered, replayed, reordered, or made without the keys.
  Result<std::optional<std::vector<std::byte>>> next();
  // To be called when the stream ended. kCorrupt when it ended inside a record; OK does not mean
  // that the peer ended on purpose: only a control message says that.
  Status finish();

 private:
  struct Streams;
  explicit SecureChannel(const SessionKeys& keys);

  size_t wanted() const;
  Status checkLength() const;
  Status fail(Status status);

  std::unique_ptr<Streams> streams_;  // cipher states, wiped at the end
  std::vector<std::byte>
      incoming_;  // the stream header, or one record with its length, as far as it came
  std::optional<Status> failure_;
};

}  // namespace peerlane
