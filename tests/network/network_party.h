// SPDX-License-Identifier: Apache-2.0
//
// NetworkParty: one side of a connection between two hosts of a test: its context, its peer, a
// region here and one there. Confined to one thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/peerlane.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/network/network_host.h"

namespace peerlane::network {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

inline constexpr auto kSoon = 20s;  // a bound, no pace
inline const std::string kSecret(64, '7');
inline constexpr uint32_t kWords = 1;  // a channel for messages of the test

inline std::span<const std::byte> bytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class NetworkParty {
 public:
  explicit NetworkParty(std::vector<std::string> listen = {}, const Config& config = {})
      : context(must(Context::create({config, std::move(listen), kSecret}))) {}

  void connect(const std::string& address) {
    meet(must(context->connect(address, kSecret, kSoon)));
  }
  void connectBy(const std::string& ticket) { meet(must(context->connect(ticket, kSoon))); }
  void accept() { meet(must(context->accept(kSoon))); }
  // Both sides: a region each, known to the other.
  void share(size_t bytes) {
    region = must(context->allocate(bytes, {}));
    const RegionReference::Encoded reference = region.share();
    must(peer.sendMessage(0, reference, kSoon));
    theirs = must(peer.importRegion(must(peer.receiveMessage(0, kSoon))));
  }
  void fill(uint64_t seed) { fillPattern({region.data(), region.bytes()}, seed); }
  void expectFilled(uint64_t seed) const {
    const size_t wrong = firstWrong({region.data(), region.bytes()}, seed);
    require(wrong == region.bytes(), "byte " + std::to_string(wrong) + " is wrong");
  }
  Transfer put(size_t bytes) const {
    const Block block{&region, 0, &theirs, 0, bytes};
    return must(peerlane::put(peer, {&block, 1}));
  }
  // A region is imported when it is first used, over the control connection. From now on a put
  // needs the data connection alone.
  void reach() const { must(put(1).wait(kSoon)); }
  void say(const std::string& text) const { must(peer.sendMessage(kWords, bytesOf(text), kSoon)); }
  void hear(const std::string& text) const {
    const std::vector<std::byte> heard = must(peer.receiveMessage(kWords, kSoon));
    require(std::ranges::equal(heard, bytesOf(text)), "expected the message " + text);
  }

  std::unique_ptr<Context> context;
  Peer peer;
  Region region;
  RemoteRegion theirs;

 private:
  void meet(Peer found) {
    peer = std::move(found);
    require(peer.route().link == "tcp", "the link is " + peer.route().link);
  }
};

}  // namespace peerlane::network
