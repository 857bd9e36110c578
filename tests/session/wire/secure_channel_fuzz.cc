// SPDX-License-Identifier: Apache-2.0
//
// The record layer. First byte even: the rest is the wire as it is. Odd: the rest says how an
// honest sender's bytes are cut, altered, repeated and dropped on their way. Messages that come out
// must be a prefix of what the honest side sent; a channel that failed stays failed.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "peerlane/session/wire/secure_channel.h"

namespace {

using namespace peerlane;
using Bytes = std::vector<std::byte>;

SessionKeys fixedKeys() {
  SessionKeys keys;
  for (size_t i = 0; i < Secret::kBytes; ++i) {
    keys.send.writableBytes()[i] = static_cast<std::byte>(200 - i);
    keys.receive.writableBytes()[i] = static_cast<std::byte>(i + 1);
  }
  return keys;
}

// False when the channel refused.
bool receive(SecureChannel& channel, std::span<const std::byte> wire,
             std::vector<Bytes>& messages) {
  for (;;) {
    auto taken = channel.feed(wire);
    if (!taken.isOk()) break;
    wire = wire.subspan(*taken);
    auto message = channel.next();
    if (!message.isOk()) break;
    if (*message) messages.push_back(std::move(**message));
    if (!*message && *taken == 0) return wire.empty() ? true : (std::abort(), false);
  }
  if (channel.feed({}).isOk() || channel.next().isOk() || channel.seal({}).isOk()) std::abort();
  return false;
}

// Two bytes an action: what to do with the next record, and an amount.
Bytes tampered(std::span<const uint8_t> script, std::vector<Bytes>& sent) {
  auto sender = SecureChannel::create({fixedKeys().receive, fixedKeys().send}).value();
  Bytes wire;
  Bytes last;
  for (size_t i = 0; i + 1 < script.size() && i < 64; i += 2) {
    const size_t amount = script[i + 1];
    if (script[i] % 8 != 1) {
      sent.emplace_back(amount * (script[i] % 4), std::byte{script[i]});
      last = sender->seal(sent.back()).value();
    }
    switch (script[i] % 8) {
      case 2: last[amount % last.size()] ^= std::byte{1}; break;
      case 3: last.resize(amount % last.size()); break;
      case 4: continue;  // dropped
      default: break;    // 1: the last record again
    }
    wire.insert(wire.end(), last.begin(), last.end());
  }
  return wire;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  auto channel = SecureChannel::create(fixedKeys()).value();
  std::vector<Bytes> sent;
  std::vector<Bytes> received;
  const std::span<const uint8_t> rest(bytes + 1, size - 1);
  if (bytes[0] % 2 == 0) {
    (void)receive(*channel, std::as_bytes(rest), received);
    return 0;
  }
  const Bytes wire = tampered(rest, sent);
  const size_t middle = wire.size() / (bytes[0] / 2 + size_t{1});
  if (receive(*channel, std::span(wire).first(middle), received)) {
    (void)receive(*channel, std::span(wire).subspan(middle), received);
  }
  if (received.size() > sent.size() || !std::equal(received.begin(), received.end(), sent.begin()))
    std::abort();
  (void)channel->finish();
  return 0;
}
