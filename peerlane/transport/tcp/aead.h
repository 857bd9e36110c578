// SPDX-License-Identifier: Apache-2.0
//
// Aead: authenticated encryption of one message after the other under one key, for one direction,
// in pieces of any size. The work is done by OpenSSL's libcrypto, which is looked up when it is
// first asked for; docs/decisions.md says why that one and in this way. Confined to one thread at a
// time per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "peerlane/core/key_bytes.h"
#include "peerlane/core/status.h"

namespace peerlane {

// Numbers are wire format: bits of an offer, and bytes of a key derivation.
enum class AeadCipher : uint8_t {
  kChaCha20Poly1305 = 1,
  kAes256Gcm = 2,
};

const char* aeadCipherName(AeadCipher cipher);
// The ciphers that this machine offers, as a set of the bits above: ChaCha20-Poly1305 always,
// AES-256-GCM where the CPU has instructions for it. Errors: kNotSupported (no libcrypto), with the
// reason.
Result<uint8_t> aeadCiphersHere();

// Brackets calls of Aead's functions, create() and the destructor among them. A program that uses
// libcrypto itself has it cleaned up in exit(), while other threads go on. Before that the library
// says its goodbyes, ends all use of libcrypto, and waits for the calls that are under way.
// Thread-safe.
class CryptoUse {
 public:
  CryptoUse();
  ~CryptoUse();
  CryptoUse(const CryptoUse&) = delete;
  CryptoUse& operator=(const CryptoUse&) = delete;
  // False: no more, for ever.
  bool isAllowed() const { return isAllowed_; }

 private:
  bool isCounted_ = false;
  bool isAllowed_ = true;
};

class Aead {
 public:
  enum class Use { kSeal, kOpen };
  static constexpr size_t kTagBytes = 16;

  // Errors: kNotSupported as above, kOutOfMemory.
  static Result<std::unique_ptr<Aead>> create(AeadCipher cipher, Use use, const KeyBytes& key);
  ~Aead();
  Aead(const Aead&) = delete;
  Aead& operator=(const Aead&) = delete;

  void setKey(const KeyBytes& key);

  // One message: begin(), its pieces in order, and seal() or open(). `number` is the nonce, used
  // once under a key; `header` is authenticated with the message.
  void begin(uint64_t number, std::span<const std::byte> header);
  // `out` takes as many bytes as `in` has, and is no part of it.
  void add(std::span<const std::byte> in, std::byte* out);
  // Ends a message that is sealed. False: libcrypto failed, and `tag` means nothing.
  [[nodiscard]] bool seal(std::span<std::byte, kTagBytes> tag);
  // Ends a message that is opened. False: it is not what was sealed, and what add() gave out must
  // not be used.
  [[nodiscard]] bool open(std::span<const std::byte, kTagBytes> tag);

 private:
  struct State;
  explicit Aead(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace peerlane
