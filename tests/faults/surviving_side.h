// SPDX-License-Identifier: Apache-2.0
//
// SurvivingSide: the half of a fault test that lives: a context, one other process connected to it
// over a route, and a region on each side. External synchronization required.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/channel/context_pair.h"
#include "tests/core/soon.h"
#include "tests/faults/footprint.h"
#include "tests/faults/peer_process.h"
#include "tests/faults/two_sides.h"

namespace peerlane {

// A copy of them is under way. Looked at away from the ends: it may begin or end with both.
inline bool isCut(const volatile std::byte* bytes, size_t count) {
  return bytes[count / 8] != bytes[count / 8 * 7];
}

// After so long without a word a peer counts as silent; one that is slow must not.
inline constexpr std::chrono::milliseconds kImpatience{1000};
inline Config impatient(const std::string& route) {
  Config config = configOfRoute(route);
  config.peerTimeout = kImpatience;
  config.tcpSockets = 1;  // the buffers of several hold all that is put here
  return config;
}

struct SurvivingSide {
  // `options` are those of fault_peer behind its route.
  SurvivingSide(const Config& config, const std::string& route, size_t bytes,
                std::vector<std::string> options = {})
      : context(MUST(Context::create({config, {}, ""}))) {
    meet(route, bytes, std::move(options));
  }
  void meet(const std::string& route, size_t bytes, std::vector<std::string> options = {}) {
    options.insert(options.begin(), {route, std::to_string(bytes)});
    other = std::make_unique<PeerProcess>(options);
    other->tell(context->ticket());
    peer = MUST(context->accept(kSoon));
    const bool isPrivate = std::count(options.begin(), options.end(), "private") != 0;
    memory = std::make_unique<SideMemory>(*context, isPrivate ? "ring" : route, bytes);
    tellReference(peer, 1, memory->region());
    theirs = hearReference(peer, 1);
    EXPECT_EQ(other->line(), "ready");
  }
  // The other process is frozen while its put has moved some of these bytes and not all.
  void freezeInTheMiddle(const std::byte* bytes, size_t count) const {
    ASSERT_EQ(other->ask("put for ever"), "moving");
    for (int tries = 0; tries < 1000; ++tries) {
      ASSERT_TRUE(soon([&] { return isCut(bytes, count); }));
      other->freeze();
      if (isCut(bytes, count)) return;
      other->thaw();
    }
    FAIL() << "never in the middle of a put";
  }
  Block whole() const { return {&memory->region(), 0, &theirs, 0, memory->size()}; }
  // Our region to or from theirs.
  Status move(Direction direction) const {
    const Block block = whole();
    const auto posted =
        direction == Direction::kPut ? put(peer, {&block, 1}) : get(peer, {&block, 1});
    return posted.isOk() ? posted->wait(kSoon) : posted.status();
  }

  std::unique_ptr<Context> context;
  std::unique_ptr<PeerProcess> other;  // ends before the context
  Peer peer;
  std::unique_ptr<SideMemory> memory;
  RemoteRegion theirs;
};

inline bool isFilledWith(const std::byte* from, size_t bytes, int value) {
  return bytes == 0 || (from[0] == static_cast<std::byte>(value) &&
                        firstDifference(from, from + 1, bytes - 1) == bytes - 1);
}

}  // namespace peerlane
