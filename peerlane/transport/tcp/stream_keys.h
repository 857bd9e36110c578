// SPDX-License-Identifier: Apache-2.0
//
// The keys of an encrypted data socket: where they begin, and how one follows the other. Pure
// functions; docs/wire.md, "Sealed records", is the specification.
#pragma once

#include <cstdint>

#include "peerlane/core/key_bytes.h"
#include "peerlane/transport/tcp/aead.h"
#include "peerlane/transport/tcp/tcp_offer.h"

namespace peerlane {

// A chain gives one key after the other; of a key that was dropped neither the chain nor a later
// key tells anything.
class KeyChain {
 public:
  explicit KeyChain(const KeyBytes& start) : chain_(start) {}
  // The next key. The first one is that of the first records.
  KeyBytes next();

 private:
  KeyBytes chain_;
};

// Of one socket, as one of its two ends holds them.
struct StreamKeys {
  AeadCipher cipher = AeadCipher::kChaCha20Poly1305;
  KeyBytes send;     // starts of chains
  KeyBytes receive;  //
};

// Known to both ends of a link once the offers were exchanged, and to nobody else.
struct LinkSecrets {
  KeyBytes linkKey;  // of the connection (PeerFacts)
  TcpToken dialler;  // from the offer of the side that dials
  TcpToken listener;
};

// `socket` counts the sockets of the link; `dials`: as the dialling end holds them.
StreamKeys streamKeys(const LinkSecrets& secrets, AeadCipher cipher, uint32_t socket, bool dials);

}  // namespace peerlane
