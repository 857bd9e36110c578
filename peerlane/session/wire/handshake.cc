// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/handshake.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>

#include "peerlane/core/wire.h"
#include "peerlane/session/wire/sodium_bytes.h"

namespace peerlane {
namespace {

using Role = Handshake::Role;

// Byte map of both messages (little endian). The preface is the same in every major version:
//   0  8 magic "PEERLANE"   8  2 major   10  2 kind
// hello (kind 1 initiator, 2 acceptor):
//  12  2 minor   14  2 zero   16  8 features   24 16 context id   40  8 host identity
//  48 32 ephemeral X25519 key   80  4 process hint   84  4 key id   88 32 authenticator
// reject (kind 3):
//  12  2 minor   14  1 reason   15  1 zero
constexpr std::string_view kMagic = "PEERLANE";
constexpr size_t kMajorAt = 8;
constexpr size_t kKindAt = 10;
constexpr size_t kMinorAt = 12;
constexpr size_t kReasonAt = 14;
constexpr size_t kKeyAt = 48;
constexpr size_t kKeyIdAt = 84;
constexpr size_t kAuthenticatorAt = 88;
constexpr size_t kAuthenticatorBytes = 32;
constexpr uint16_t kRejectKind = 3;
static_assert(kAuthenticatorAt + kAuthenticatorBytes == kHelloBytes);
static_assert(crypto_scalarmult_BYTES == 32 && crypto_scalarmult_SCALARBYTES == Secret::kBytes);

constexpr std::string_view kWrongSecret = "authentication failed: wrong secret";

using ByteView = std::span<const std::byte>;

ByteView bytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// BLAKE2b of the concatenated pieces, keyed; `out` may have 16 to 64 bytes.
void keyedHash(const Secret& key, std::initializer_list<ByteView> pieces,
               std::span<std::byte> out) {
  crypto_generichash_state state;
  crypto_generichash_init(&state, raw(key.bytes().data()), Secret::kBytes, out.size());
  for (const ByteView piece : pieces) {
    crypto_generichash_update(&state, raw(piece.data()), piece.size());
  }
  crypto_generichash_final(&state, raw(out.data()), out.size());
  sodium_memzero(&state, sizeof state);
}

// One key per purpose, so that no value made for one can be passed off as another.
Secret purposeKey(const Secret& secret, std::string_view purpose) {
  Secret key;
  keyedHash(secret, {bytesOf(purpose)}, key.writableBytes());
  return key;
}

std::array<std::byte, kAuthenticatorBytes> authenticatorOf(Role role, const Secret& secret,
                                                           ByteView transcript, ByteView fields) {
  const Secret key = purposeKey(secret, role == Role::kInitiator ? "peerlane 2 initiator hello"
                                                                 : "peerlane 2 acceptor hello");
  std::array<std::byte, kAuthenticatorBytes> authenticator;
  keyedHash(key, {transcript, fields}, authenticator);
  return authenticator;
}

std::vector<std::byte> encodeReject(uint16_t major, uint16_t minor, uint8_t reason) {
  std::vector<std::byte> out;
  ByteWriter writer(out);
  writer.raw(bytesOf(kMagic));
  writer.u16(major);
  writer.u16(kRejectKind);
  writer.u16(minor);
  writer.u8(reason);
  writer.u8(0);
  PEERLANE_CHECK(out.size() == kRejectBytes);
  return out;
}

uint16_t u16At(ByteView bytes, size_t offset) {
  return ByteReader(bytes.subspan(offset)).u16();
}

}  // namespace

uint32_t keyIdOf(const Secret& secret) {
  return ByteReader(purposeKey(secret, "peerlane 2 key id").bytes()).u32();
}

namespace internal {

std::array<std::byte, kHelloBytes> encodeHello(const Hello& hello, const Secret& secret,
                                               ByteView transcript) {
  std::array<std::byte, kHelloBytes> out;
  ByteWriter writer{std::span<std::byte>(out)};
  writer.raw(bytesOf(kMagic));
  writer.u16(hello.major);
  writer.u16(static_cast<uint16_t>(hello.role));
  writer.u16(hello.minor);
  writer.u16(0);
  writer.u64(hello.features);
  writer.raw(hello.context.bytes());
  writer.u64(hello.hostIdentity);
  writer.raw(hello.ephemeralPublic);
  writer.u32(hello.processHint);
  writer.u32(keyIdOf(secret));
  PEERLANE_CHECK(writer.size() == kAuthenticatorAt);
  writer.raw(
      authenticatorOf(hello.role, secret, transcript, ByteView(out).first(kAuthenticatorAt)));
  PEERLANE_CHECK(writer.ok());
  return out;
}

SessionKeys initiatorKeys(const Secret& secret, std::span<const std::byte, 32> sharedPoint,
                          ByteView initiatorHello, ByteView acceptorHello) {
  const auto derive = [&](std::string_view purpose, std::span<std::byte> out) {
    keyedHash(purposeKey(secret, purpose), {sharedPoint, initiatorHello, acceptorHello}, out);
  };
  std::array<std::byte, 2 * Secret::kBytes> both;
  derive("peerlane 2 session keys", both);
  SessionKeys keys{Secret(std::span(both).first<Secret::kBytes>()),
                   Secret(std::span(both).last<Secret::kBytes>()), Secret()};
  derive("peerlane 2 link keys", keys.links.writableBytes());
  sodium_memzero(both.data(), both.size());
  return keys;
}

}  // namespace internal

Result<std::unique_ptr<Handshake>> Handshake::create(Role role, HandshakeOptions options) {
  if (options.secret.isEmpty()) {
    return Status(Code::kInvalidArgument, "handshake without a secret");
  }
  if (options.self.isNull()) {
    return Status(Code::kInvalidArgument, "handshake without a context id of its own");
  }
  if (role == Role::kAcceptor && !options.keyId) {
    return Status(Code::kInvalidArgument, "handshake without the key id of the acceptor's secret");
  }
  PEERLANE_CHECK(sodium_init() >= 0);
  return std::unique_ptr<Handshake>(new Handshake(role, std::move(options)));
}

Handshake::Handshake(Role role, HandshakeOptions options)
    : role_(role), options_(std::move(options)) {
  message_.reserve(kHelloBytes);
  ephemeralSecret_ = Secret::random();
  if (role_ == Role::kInitiator) makeHello({});
}

void Handshake::makeHello(ByteView transcript) {
  internal::Hello hello;
  hello.role = role_;
  hello.major = options_.major;
  hello.minor = options_.minor;
  hello.features = options_.features;
  hello.context = options_.self;
  hello.hostIdentity = options_.hostIdentity;
  hello.processHint = options_.processHint;
  crypto_scalarmult_base(raw(hello.ephemeralPublic.data()), raw(ephemeralSecret_.bytes().data()));
  hello_ = internal::encodeHello(hello, options_.secret, transcript);
}

std::vector<std::byte> Handshake::start() const {
  if (role_ == Role::kAcceptor) return {};
  return {hello_.begin(), hello_.end()};
}

const SessionKeys& Handshake::keys() const {
  PEERLANE_CHECK(done_);
  return keys_;
}

const PeerIdentity& Handshake::peer() const {
  PEERLANE_CHECK(done_);
  return peer_;
}

Result<HandshakeProgress> Handshake::feed(std::span<const std::byte> input) {
  if (failure_) return *failure_;
  if (done_) {
    return Status(Code::kInvalidArgument,
                  "handshake is complete: further bytes belong to the secure channel");
  }
  HandshakeProgress progress;
  // The preface decides how long the message is, so it is taken and checked first.
  while (progress.consumed < input.size() && message_.size() < messageBytes()) {
    const ByteView rest = input.subspan(progress.consumed);
    const ByteView taken = rest.first(std::min(rest.size(), messageBytes() - message_.size()));
    message_.insert(message_.end(), taken.begin(), taken.end());
    progress.consumed += taken.size();
    if (Status status = checkPreface(); !status.isOk()) return fail(std::move(status));
  }
  if (message_.size() < kPrefaceBytes || message_.size() < messageBytes()) return progress;
  if (u16At(message_, kKindAt) == kRejectKind) return fail(readReject());
  if (Status status = finish(progress.send); !status.isOk()) return fail(std::move(status));
  progress.done = done_ = true;
  return progress;
}

size_t Handshake::wanted() const {
  return messageBytes() - message_.size();
}

size_t Handshake::messageBytes() const {
  if (message_.size() < kPrefaceBytes) return kPrefaceBytes;
  return u16At(message_, kKindAt) == kRejectKind ? kRejectBytes : kHelloBytes;
}

// Checks as much of the preface as has come: a stranger is turned away at its first wrong byte.
Status Handshake::checkPreface() {
  const size_t known = std::min(message_.size(), kMagic.size());
  if (std::memcmp(message_.data(), kMagic.data(), known) != 0) {
    return Status(Code::kCorrupt, "the other side does not speak Peerlane: wrong first bytes");
  }
  if (message_.size() < kPrefaceBytes) return {};
  const uint16_t major = u16At(message_, kMajorAt);
  const uint16_t kind = u16At(message_, kKindAt);
  if (major != options_.major) {
    Status status(Code::kNotSupported, "the other side speaks Peerlane protocol version " +
                                           std::to_string(major) + ", this side version " +
                                           std::to_string(options_.major) +
                                           "; the major versions must be equal");
    return kind == kRejectKind ? status : refuse(Reason::kMajor, std::move(status));
  }
  if (kind == static_cast<uint16_t>(role_)) {
    return Status(Code::kPermissionDenied,
                  "authentication failed: the other side speaks in this side's own role");
  }
  const bool answer = role_ == Role::kInitiator;
  const Role expected = answer ? Role::kAcceptor : Role::kInitiator;
  if (kind == static_cast<uint16_t>(expected) || (answer && kind == kRejectKind)) return {};
  return Status(Code::kCorrupt, "handshake message of kind " + std::to_string(kind) + "; kind " +
                                    std::to_string(static_cast<int>(expected)) + " is expected");
}

// Any host on the path can forge a reject; it can do no more than end this attempt.
Status Handshake::readReject() const {
  const auto reason = std::to_integer<uint8_t>(message_[kReasonAt]);
  switch (static_cast<Reason>(reason)) {
    case Reason::kSecret: return Status(Code::kPermissionDenied, std::string(kWrongSecret));
    case Reason::kSameContext:
      return Status(Code::kPermissionDenied, "refused by the other side: it is this very context");
    case Reason::kMalformed:
      return Status(Code::kCorrupt,
                    "refused by the other side: it found this side's hello malformed");
    case Reason::kNoRoom:
      return Status(Code::kTryAgain,
                    "turned away: the other side has no descriptor left, or too many connections "
                    "that are not finished or that nobody has taken");
    case Reason::kLate:
      return Status(Code::kTryAgain, "turned away: the hello did not come in the time given");
    case Reason::kOtherUser:
      return Status(Code::kPermissionDenied,
                    "refused by the other side: its process belongs to another user");
    case Reason::kMajor: break;  // an honest side of this major never sends this
  }
  return Status(Code::kPermissionDenied,
                "refused by the other side for reason number " + std::to_string(reason));
}

bool Handshake::isAuthentic(const Secret& secret) const {
  const ByteView message(message_);
  const bool answer = role_ == Role::kInitiator;
  const auto expected =
      authenticatorOf(answer ? Role::kAcceptor : Role::kInitiator, secret,
                      answer ? ByteView(hello_) : ByteView(), message.first(kAuthenticatorAt));
  return sodium_memcmp(expected.data(), &message[kAuthenticatorAt], kAuthenticatorBytes) == 0;
}

Status Handshake::findSecret() {
  const Status wrong(Code::kPermissionDenied, std::string(kWrongSecret));
  if (role_ == Role::kInitiator)
    return isAuthentic(options_.secret) ? Status::ok() : refuse(Reason::kSecret, wrong);
  // So a stranger costs comparisons of key ids alone, however many secrets are open.
  const uint32_t keyId = ByteReader(ByteView(message_).subspan(kKeyIdAt)).u32();
  if (keyId == options_.keyId && isAuthentic(options_.secret)) return Status::ok();
  std::optional<HandshakeOptions::OtherSecret> other;
  if (options_.otherSecret)
    other =
        options_.otherSecret(keyId, [this](const Secret& secret) { return isAuthentic(secret); });
  if (!other) return refuse(Reason::kSecret, wrong);
  if (!other->hasRoom)
    return refuse(Reason::kNoRoom, Status(Code::kTryAgain,
                                          "as many peers as may have connected with this ticket, "
                                          "and none of them has been taken"));
  options_.secret = other->secret;
  return Status::ok();
}

// Of the bytes after the preface only the key id is read before the authenticator has been checked.
Status Handshake::checkHello() {
  PEERLANE_RETURN_IF_ERROR(findSecret());
  ByteReader reader(ByteView(message_).subspan(kMinorAt));
  peer_.major = options_.major;
  peer_.minor = std::min(reader.u16(), options_.minor);
  reader.skip(2);
  peer_.features = reader.u64() & options_.features;
  peer_.context = ContextId(reader.raw(ContextId::kBytes).first<ContextId::kBytes>());
  peer_.hostIdentity = reader.u64();
  reader.skip(32);
  peer_.processHint = reader.u32();
  if (peer_.context.isNull()) {
    return refuse(Reason::kMalformed, Status(Code::kCorrupt, "the peer's context id is null"));
  }
  if (peer_.context == options_.self) {
    return refuse(Reason::kSameContext,
                  Status(Code::kPermissionDenied, "the other side says it is this very context (" +
                                                      peer_.context.toText() +
                                                      "); a context cannot be its own peer"));
  }
  if (options_.expectedPeer && peer_.context != *options_.expectedPeer) {
    return Status(Code::kPermissionDenied, "the other side is context " + peer_.context.toText() +
                                               "; the ticket names " +
                                               options_.expectedPeer->toText());
  }
  return {};
}

Status Handshake::finish(std::vector<std::byte>& send) {
  PEERLANE_RETURN_IF_ERROR(checkHello());
  const bool initiator = role_ == Role::kInitiator;
  if (!initiator) makeHello(message_);
  Secret shared;
  if (crypto_scalarmult(raw(shared.writableBytes().data()), raw(ephemeralSecret_.bytes().data()),
                        raw(&message_[kKeyAt])) != 0) {
    return refuse(Reason::kMalformed,
                  Status(Code::kCorrupt, "the peer's ephemeral key is a point of low order"));
  }
  ephemeralSecret_ = Secret();
  keys_ = internal::initiatorKeys(options_.secret, shared.bytes(),
                                  initiator ? ByteView(hello_) : message_,
                                  initiator ? ByteView(message_) : hello_);
  if (!initiator) {
    std::swap(keys_.send, keys_.receive);
    send.assign(hello_.begin(), hello_.end());
  }
  return {};
}

std::vector<std::byte> Handshake::rejectionFor(Reason reason) {
  return encodeReject(kProtocolMajor, kProtocolMinor, static_cast<uint8_t>(reason));
}

Status Handshake::fail(Status status) {
  failure_ = status;
  ephemeralSecret_ = Secret();
  return status;
}

Status Handshake::refuse(Reason reason, Status status) {
  // Only an acceptor sends the reason: the acceptor at the other end of an initiator is already
  // done and would take a reject for a record.
  if (role_ == Role::kAcceptor) {
    rejection_ = encodeReject(options_.major, options_.minor, static_cast<uint8_t>(reason));
  }
  return status;
}

}  // namespace peerlane
