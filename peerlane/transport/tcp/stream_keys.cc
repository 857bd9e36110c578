// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/stream_keys.h"

#include <sodium.h>

#include <array>
#include <initializer_list>
#include <span>
#include <string_view>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

using ByteView = std::span<const std::byte>;

const unsigned char* raw(ByteView bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// BLAKE2b, keyed, of a purpose and what follows it. One purpose per kind of value, so that none can
// stand for another.
KeyBytes derive(const KeyBytes& key, std::string_view purpose, ByteView rest = {}) {
  crypto_generichash_state state;
  crypto_generichash_init(&state, raw(key.bytes()), KeyBytes::kBytes, KeyBytes::kBytes);
  crypto_generichash_update(&state, raw(std::as_bytes(std::span(purpose))), purpose.size());
  crypto_generichash_update(&state, raw(rest), rest.size());
  KeyBytes out;
  crypto_generichash_final(&state, reinterpret_cast<unsigned char*>(out.writableBytes().data()),
                           KeyBytes::kBytes);
  sodium_memzero(&state, sizeof state);
  return out;
}

enum class Direction : uint8_t { kFromDialler = 0, kFromListener = 1 };

KeyBytes startOf(const LinkSecrets& secrets, AeadCipher cipher, uint32_t socket,
                 Direction direction) {
  std::array<std::byte, 2 * kTcpTokenBytes + 6> context;
  ByteWriter writer(context);
  writer.raw(secrets.dialler);
  writer.raw(secrets.listener);
  writer.u32(socket);
  writer.u8(static_cast<uint8_t>(direction));
  writer.u8(static_cast<uint8_t>(cipher));
  PEERLANE_CHECK(writer.ok() && writer.size() == context.size());
  return derive(secrets.linkKey, "peerlane tcp stream", context);
}

}  // namespace

KeyBytes KeyChain::next() {
  KeyBytes key = derive(chain_, "peerlane tcp key");
  chain_ = derive(chain_, "peerlane tcp chain");
  return key;
}

StreamKeys streamKeys(const LinkSecrets& secrets, AeadCipher cipher, uint32_t socket, bool dials) {
  const KeyBytes fromDialler = startOf(secrets, cipher, socket, Direction::kFromDialler);
  const KeyBytes fromListener = startOf(secrets, cipher, socket, Direction::kFromListener);
  return {.cipher = cipher,
          .send = dials ? fromDialler : fromListener,
          .receive = dials ? fromListener : fromDialler};
}

}  // namespace peerlane
