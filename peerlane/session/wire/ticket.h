// SPDX-License-Identifier: Apache-2.0
//
// A ticket: the text that one process hands to another so that the second can connect. It has the
// id of the context (ContextId), its addresses, and the secret that both sides must prove to know.
// Formats and parsing only; nothing here connects or listens. Values: copy freely; external
// synchronization required. Bytes are specified in docs/wire.md.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/key_bytes.h"
#include "peerlane/core/status.h"
#include "peerlane/os/host_identity.h"

namespace peerlane {

// Names one context for its lifetime: 128 random bits, never reused. Not a secret.
class ContextId {
 public:
  static constexpr size_t kBytes = 16;

  ContextId() = default;  // null: names no context
  explicit ContextId(std::span<const std::byte, kBytes> bytes);
  static ContextId random();
  // 32 hexadecimal digits, either case.
  static Result<ContextId> fromText(std::string_view text);

  std::string toText() const;  // 32 lower-case hexadecimal digits
  std::span<const std::byte, kBytes> bytes() const { return bytes_; }
  bool isNull() const { return *this == ContextId(); }
  friend auto operator<=>(const ContextId&, const ContextId&) = default;

 private:
  std::array<std::byte, kBytes> bytes_{};
};

// A ticket's secret, or a key derived from it. Empty is all zero; no acceptor takes that. It has no
// stream operator and no implicit text, so that it cannot reach a log by accident.
class Secret : public KeyBytes {
 public:
  using KeyBytes::KeyBytes;
  static Secret random();
  // 64 hexadecimal digits, or 43 characters of base64url. Errors never repeat the text.
  static Result<Secret> fromText(std::string_view text);

  // 43 characters of base64url, for the one place where a person asked to see the secret.
  std::string revealText() const;
  bool isEmpty() const;                                  // constant time
  friend bool operator==(const Secret&, const Secret&);  // constant time
};

// The opaque printable string "pl1..." that one side shows and the other side gets.
struct Ticket {
  static constexpr int kVersion = 1;
  static constexpr size_t kMaxAddresses = 16;
  static constexpr size_t kMaxAddressBytes =
      255;                                       // "unix:" and a socket path of 108 bytes fit well
  static constexpr size_t kMaxTextBytes = 8192;  // more is refused unread

  ContextId context;
  Secret secret;
  uint64_t hostIdentity = 0;  // see hostIdentityOf(); 0: unknown, equal to none
  std::vector<std::string>
      addresses;  // best first, e.g. "unix:@name", "tcp:10.0.0.1:4000"; no control characters

  // Errors: kInvalidArgument when the fields break a limit above, or context or secret are empty.
  // The text contains the secret.
  Result<std::string> encode() const;
  // White space around the text is ignored. Errors: kInvalidArgument (not a ticket, another
  // version: both are named), kCorrupt (truncated, bytes too many, checksum, a field outside its
  // limits). Errors never repeat the text: a mistyped argument may be another secret.
  static Result<Ticket> decode(std::string_view text);
};

// Where a program reads a ticket or secret from, because arguments are public on most machines: "-"
// the first line of `standardInput` that is not blank, "@path" such a line of a file, "env:NAME" an
// environment variable; anything else is the text itself. Reads at most Ticket::kMaxTextBytes.
Result<Ticket> readTicket(std::string_view source, std::istream& standardInput);
Result<Ticket> readTicket(std::string_view source);  // "-" is std::cin
Result<Secret> readSecret(std::string_view source, std::istream& standardInput);
Result<Secret> readSecret(std::string_view source);  // "-" is std::cin

// Two hashes: of the kernel's boot id (the upper 32 bits), and of that with the network namespace.
// Where both are equal, two processes can reach each other's Unix sockets. A hint that saves a
// failing connect and finds the right words for one, never a proof. No half is 0 for a non-empty
// boot id.
uint64_t hostIdentityOf(std::string_view bootId, uint64_t netNamespace);
// The same for the calling process, from /proc; 0 where /proc does not have it.
uint64_t localHostIdentity();
// Where the process lives that says `theirs` of itself, as seen from one that would say `mine`.
HostRelation hostRelation(uint64_t theirs, uint64_t mine);

}  // namespace peerlane

template <>
struct std::hash<peerlane::ContextId> {
  size_t operator()(const peerlane::ContextId& id) const noexcept {
    size_t word;  // the bits are random already
    __builtin_memcpy(&word, id.bytes().data(), sizeof word);
    return word;
  }
};
