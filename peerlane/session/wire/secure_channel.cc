// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/secure_channel.h"

#include <sodium.h>

#include <algorithm>
#include <string>
#include <utility>

#include "peerlane/core/wire.h"
#include "peerlane/session/wire/sodium_bytes.h"

namespace peerlane {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kHeaderBytes = crypto_secretstream_xchacha20poly1305_HEADERBYTES;
// A large message is rare; its buffer is freed, because there are many peers, mostly idle.
constexpr size_t kKeptBytes = 1024;
static_assert(SecureChannel::kOverheadBytes == crypto_secretstream_xchacha20poly1305_ABYTES);
static_assert(Secret::kBytes == crypto_secretstream_xchacha20poly1305_KEYBYTES);
static_assert(kHeaderBytes == 24);

}  // namespace

// One cipher stream per direction. Each sender chooses a random header, which goes ahead of its
// first record; the receive key waits until the peer's header has come.
struct SecureChannel::Streams {
  ~Streams() {
    sodium_memzero(&push, sizeof push);
    sodium_memzero(&pull, sizeof pull);
  }
  crypto_secretstream_xchacha20poly1305_state push;
  crypto_secretstream_xchacha20poly1305_state pull;
  std::array<std::byte, kHeaderBytes> header;
  Secret receiveKey;
  bool headerSent = false;
  bool headerReceived = false;
};

Result<std::unique_ptr<SecureChannel>> SecureChannel::create(const SessionKeys& keys) {
  if (keys.send.isEmpty() || keys.receive.isEmpty() || keys.send == keys.receive) {
    return Status(
        Code::kInvalidArgument,
        "secure channel with empty or equal keys; the keys of one handshake are expected");
  }
  PEERLANE_CHECK(sodium_init() >= 0);
  return std::unique_ptr<SecureChannel>(new SecureChannel(keys));
}

SecureChannel::SecureChannel(const SessionKeys& keys) : streams_(std::make_unique<Streams>()) {
  streams_->receiveKey = keys.receive;
  crypto_secretstream_xchacha20poly1305_init_push(&streams_->push, raw(streams_->header.data()),
                                                  raw(keys.send.bytes().data()));
}

SecureChannel::~SecureChannel() = default;

Status SecureChannel::fail(Status status) {
  failure_ = status;
  streams_.reset();
  incoming_ = {};
  return status;
}

Result<std::vector<std::byte>> SecureChannel::seal(std::span<const std::byte> plaintext) {
  if (failure_) return *failure_;
  if (plaintext.size() > kMaxPlaintextBytes) {
    return Status(Code::kInvalidArgument, "control message of " + std::to_string(plaintext.size()) +
                                              " bytes; at most " +
                                              std::to_string(kMaxPlaintextBytes) + " are accepted");
  }
  const size_t headerBytes = std::exchange(streams_->headerSent, true) ? 0 : kHeaderBytes;
  const size_t recordBytes = plaintext.size() + kOverheadBytes;
  std::vector<std::byte> out(headerBytes + kLengthBytes + recordBytes);
  ByteWriter writer{std::span(out)};
  if (headerBytes != 0) writer.raw(streams_->header);
  writer.u32(static_cast<uint32_t>(recordBytes));
  // The length is authenticated too: nothing on the wire can be altered unseen.
  std::byte* length = out.data() + headerBytes;
  crypto_secretstream_xchacha20poly1305_push(
      &streams_->push, raw(length + kLengthBytes), nullptr, raw(plaintext.data()), plaintext.size(),
      raw(length), kLengthBytes, crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
  return out;
}

// How many bytes `incoming_` must hold before it can be handled further.
size_t SecureChannel::wanted() const {
  if (!streams_->headerReceived) return kHeaderBytes;
  if (incoming_.size() < kLengthBytes) return kLengthBytes;
  return kLengthBytes + ByteReader(incoming_).u32();
}

Status SecureChannel::checkLength() const {
  const uint32_t length = ByteReader(incoming_).u32();
  if (length >= kOverheadBytes && length <= kMaxRecordBytes) return {};
  return Status(Code::kCorrupt, "control record of " + std::to_string(length) + " bytes; " +
                                    std::to_string(kOverheadBytes) + " to " +
                                    std::to_string(kMaxRecordBytes) + " are accepted");
}

Result<size_t> SecureChannel::feed(std::span<const std::byte> input) {
  if (failure_) return *failure_;
  size_t consumed = 0;
  while (consumed < input.size() && incoming_.size() < wanted()) {
    const size_t count = std::min(wanted() - incoming_.size(), input.size() - consumed);
    incoming_.reserve(wanted());
    const auto taken = input.subspan(consumed, count);
    incoming_.insert(incoming_.end(), taken.begin(), taken.end());
    consumed += count;
    if (!streams_->headerReceived && incoming_.size() == kHeaderBytes) {
      crypto_secretstream_xchacha20poly1305_init_pull(&streams_->pull, raw(incoming_.data()),
                                                      raw(streams_->receiveKey.bytes().data()));
      streams_->receiveKey = Secret();
      streams_->headerReceived = true;
      incoming_.clear();
    } else if (streams_->headerReceived && incoming_.size() == kLengthBytes) {
      if (Status status = checkLength(); !status.isOk()) return fail(std::move(status));
    }
  }
  return consumed;
}

Result<std::optional<std::vector<std::byte>>> SecureChannel::next() {
  if (failure_) return *failure_;
  // A record is at least kOverheadBytes longer than its length field, so this also covers a length
  // in part.
  if (!streams_->headerReceived || incoming_.size() < wanted() ||
      incoming_.size() <= kLengthBytes) {
    return std::optional<std::vector<std::byte>>();
  }
  const size_t recordBytes = incoming_.size() - kLengthBytes;
  std::vector<std::byte> plaintext(recordBytes - kOverheadBytes);
  unsigned char tag = 0;
  const int opened = crypto_secretstream_xchacha20poly1305_pull(
      &streams_->pull, raw(plaintext.data()), nullptr, &tag, raw(incoming_.data() + kLengthBytes),
      recordBytes, raw(incoming_.data()), kLengthBytes);
  if (opened != 0) {
    return fail(Status(Code::kPermissionDenied,
                       "control record of " + std::to_string(recordBytes) +
                           " bytes does not authenticate: altered, replayed, out of order, or made "
                           "without the session's keys"));
  }
  if (tag != crypto_secretstream_xchacha20poly1305_TAG_MESSAGE) {
    return fail(Status(Code::kCorrupt,
                       "control record with tag " + std::to_string(tag) + "; only 0 is in use"));
  }
  incoming_.clear();
  if (incoming_.capacity() > kKeptBytes) incoming_ = {};
  return std::optional(std::move(plaintext));
}

Status SecureChannel::finish() {
  if (failure_) return *failure_;
  const bool whole = streams_->headerReceived && incoming_.size() > kLengthBytes &&
                     incoming_.size() == wanted();  // still to be taken by next()
  if (incoming_.empty() || whole) return {};
  return fail(Status(Code::kCorrupt, "control connection ended inside a record: " +
                                         std::to_string(incoming_.size()) + " of " +
                                         std::to_string(wanted()) + " bytes had come"));
}

}  // namespace peerlane
