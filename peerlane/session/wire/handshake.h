// SPDX-License-Identifier: Apache-2.0
//
// The first bytes of a control connection: both sides prove in one round trip that they know the
// secret, agree on version and features, and derive fresh keys from an ephemeral Diffie-Hellman
// exchange (forward secrecy). No other byte of a peer is parsed before this is done. Bytes in,
// bytes out; no socket, no clock. Confined to one thread per object. The bytes are specified in
// docs/wire.md.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/session/wire/ticket.h"

namespace peerlane {

inline constexpr uint16_t kProtocolMajor = 3;  // must be equal on both sides
inline constexpr uint16_t kProtocolMinor = 0;  // both sides speak the smaller one

// Feature bits.
namespace feature {
inline constexpr uint64_t kRevoked = 1;       // Code::kRevoked may be sent
inline constexpr uint64_t kLinkMessages = 2;  // the ends of a link may talk
inline constexpr uint64_t kTrailers = 4;      // frames with data may have trailers
inline constexpr uint64_t kHeard = 8;         // a staged message that is given up is answered
inline constexpr uint64_t kLending = 16;      // the ring of shm carries records
inline constexpr uint64_t kAll = kRevoked | kLinkMessages | kTrailers | kHeard | kLending;
}  // namespace feature

// The code by which a peer with these features is told of `code`: all that leaves for a peer goes
// through here, for an earlier version takes a code that it does not know for something else.
constexpr Code toldAs(Code code, uint64_t features) {
  return code == Code::kRevoked && (features & feature::kRevoked) == 0 ? Code::kClosed : code;
}

inline constexpr size_t kPrefaceBytes =
    12;  // the part of hello and reject that is the same in every major
inline constexpr size_t kHelloBytes = 120;
inline constexpr size_t kRejectBytes = 16;

// The facts that this side tells of itself, and those that it expects of the other side.
struct HandshakeOptions {
  Secret secret;                      // not empty; the acceptor's context has one
  ContextId self;                     // not null
  uint64_t features = feature::kAll;  // the bits this side understands
  uint64_t hostIdentity = 0;          // see hostIdentityOf()
  uint32_t processHint = 0;           // a pid for reports
  // For the initiator: the context that the ticket names. Another context is refused even when it
  // knows the secret.
  std::optional<ContextId> expectedPeer;
  // The acceptor's has one: keyIdOf(secret), made once, so that a hello for no open secret costs no
  // hash.
  std::optional<uint32_t> keyId;
  // For the acceptor: called once, when the hello names another key than that of `secret`. It looks
  // among the secrets with this key id for one that fits, which then is the secret of this
  // connection. If it has no room for the connection, the handshake tells the other side, which may
  // try again.
  using Fits = std::function<bool(const Secret&)>;
  struct OtherSecret {
    Secret secret;
    bool hasRoom = true;
  };
  std::function<std::optional<OtherSecret>(uint32_t keyId, const Fits& fits)> otherSecret;
  // For the acceptor's connection: how long the hello may take; 0: for ever.
  std::chrono::nanoseconds patience{};
  uint16_t major = kProtocolMajor;  // other values than the defaults are for tests
  uint16_t minor = kProtocolMinor;
};

// The number by which a hello names the secret that it was made with. It reveals nothing of the
// secret, and two secrets may have the same number.
uint32_t keyIdOf(const Secret& secret);

// The other side, as it describes itself. The handshake proves that a holder of the secret sent
// this; host and process remain claims.
struct PeerIdentity {
  ContextId context;
  uint16_t major = 0;
  uint16_t minor = 0;         // the smaller of both
  uint64_t features = 0;      // the bits both have
  uint64_t hostIdentity = 0;  //
  uint32_t processHint = 0;   // for reports only; never a pid to act on
};

// Fresh for one connection: one per direction, and one from which links make theirs.
struct SessionKeys {
  Secret send;
  Secret receive;
  Secret links{};  // from which links derive keys of their own
};

// The outcome of one feed().
struct HandshakeProgress {
  size_t consumed = 0;          // bytes taken; the rest of the input belongs to the secure channel
  std::vector<std::byte> send;  // to be written now; may be empty
  bool done = false;            // keys() and peer() may be called
};

// One side of the handshake, used once: the initiator's start() is fed to the acceptor, the
// acceptor's `send` to the initiator; each is done after one message of the other. An acceptor that
// is done knows that a holder of the secret once made this hello. Only the first record that its
// channel opens proves that the peer is alive and the hello not replayed.
class Handshake {
 public:
  enum class Role : uint8_t { kInitiator = 1, kAcceptor = 2 };  // also the hello's kind on the wire
  // Why a side refused. Wire format: append only.
  enum class Reason : uint8_t {
    kMajor = 1,
    kSecret = 2,
    kSameContext = 3,
    kMalformed = 4,
    kNoRoom =
        5,  // no descriptor is left, or too many have not finished connecting or were not taken
    kOtherUser = 6,  // the two processes of one host belong to different users
    kLate = 7,       // the hello did not come in time
  };

  // Errors: kInvalidArgument for an empty secret, a null context id, or an acceptor without the key
  // id of its secret.
  static Result<std::unique_ptr<Handshake>> create(Role role, HandshakeOptions options);

  // The first bytes to write: the initiator's hello; nothing for the acceptor.
  std::vector<std::byte> start() const;
  // Takes bytes in pieces of any size and never keeps more than one hello. The first error is final
  // and answers each later call: kCorrupt (not this protocol, malformed), kNotSupported (majors
  // differ; both are named), kPermissionDenied (wrong secret; reflected hello; unexpected context).
  // When done: kInvalidArgument.
  Result<HandshakeProgress> feed(std::span<const std::byte> input);
  // Bytes of the peer's message that are still missing, as far as its length is known. A caller
  // that reads no more than these leaves the bytes after the message in the socket.
  size_t wanted() const;
  // Bytes of the peer's message taken so far.
  size_t bytesTaken() const { return message_.size(); }
  // After a failed feed(): the message that tells the peer the reason, to be written before
  // closing. Empty when the peer does not speak this protocol, or is the one that refused.
  const std::vector<std::byte>& rejection() const { return rejection_; }

  // The bytes that an acceptor writes to a connection that it closes without waiting for a hello.
  static std::vector<std::byte> rejectionFor(Reason reason);

  // Requires: done.
  const SessionKeys& keys() const;
  const PeerIdentity& peer() const;

 private:
  Handshake(Role role, HandshakeOptions options);

  void makeHello(std::span<const std::byte> transcript);
  size_t messageBytes() const;
  Status checkPreface();
  Status readReject() const;
  Status checkHello();
  bool isAuthentic(const Secret& secret) const;
  Status findSecret();
  Status finish(std::vector<std::byte>& send);
  Status fail(Status status);
  Status refuse(Reason reason, Status status);

  const Role role_;
  HandshakeOptions options_;
  Secret ephemeralSecret_;                      // wiped when the keys are derived, and on failure
  std::array<std::byte, kHelloBytes> hello_{};  // this side's own
  std::vector<std::byte> message_;              // the bytes of the peer so far
  std::vector<std::byte> rejection_;
  std::optional<Status> failure_;
  bool done_ = false;
  SessionKeys keys_;
  PeerIdentity peer_;
};

namespace internal {

// The fields of a hello, for the tests of the byte layout.
struct Hello {
  Handshake::Role role = Handshake::Role::kInitiator;
  uint16_t major = kProtocolMajor;
  uint16_t minor = kProtocolMinor;
  uint64_t features = 0;
  ContextId context;
  uint64_t hostIdentity = 0;
  std::array<std::byte, 32> ephemeralPublic{};
  uint32_t processHint = 0;
};
// `transcript` is the initiator's whole hello when the acceptor speaks, else empty.
std::array<std::byte, kHelloBytes> encodeHello(const Hello& hello, const Secret& secret,
                                               std::span<const std::byte> transcript);
// Keys as the initiator holds them.
SessionKeys initiatorKeys(const Secret& secret, std::span<const std::byte, 32> sharedPoint,
                          std::span<const std::byte> initiatorHello,
                          std::span<const std::byte> acceptorHello);

}  // namespace internal
}  // namespace peerlane
