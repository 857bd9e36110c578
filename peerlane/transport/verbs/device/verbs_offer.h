// SPDX-License-Identifier: Apache-2.0
//
// The offer of one side of a verbs link, through the authenticated control connection: all that the
// other side needs to make its queue pair of the two. Plain value and its byte format; docs/wire.md
// is the specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/status.h"
#include "peerlane/os/verbs/verbs_device.h"

namespace peerlane {

struct VerbsOffer {
  static constexpr size_t kMostGids = 16;
  static constexpr uint32_t kMostNameBytes = 64;

  std::string device;       // and its port, for people: "mlx5_0:1"
  bool isEthernet = false;  // RoCE; else InfiniBand
  bool adds = false;        // its device's additions to 64-bit words are atomic
  bool ordersWrites =
      false;                 // writes of one pair are placed in the order in which they were posted
  bool mailsWords = false;   // it sends words as mails where a grant asks for that
  uint8_t mtu = 0;           // the port's, as ibv_mtu
  uint8_t mostReads = 0;     // reads and additions of the peer that it serves at a time
  uint16_t lid = 0;          // InfiniBand
  uint32_t pair = 0;         // the number of its queue pair
  uint32_t firstPacket = 0;  // the number of the first packet that it sends
  uint32_t receives = 0;     // news that it can take before it has confirmed any
  uint64_t control = 0;      // the address of its control block, and the key for it
  uint32_t controlKey = 0;
  uint8_t pairs = 0;  // that it makes at most for one peer; 0: it does not speak of pairs
                      // (PairWords)
  std::vector<verbs::Gid> gids;  // of the port; the ones that it prefers come first
};

std::vector<std::byte> encodeVerbsOffer(const VerbsOffer& offer);
// Errors: kCorrupt (not an offer, values that no device has), kNotSupported (another version,
// naming both).
Result<VerbsOffer> parseVerbsOffer(std::span<const std::byte> bytes);

// The addresses by which two ports reach each other: those of one kind and family, in one network
// where there are any. The same pair on both sides: `dialler` made the connection. Errors:
// kNotSupported naming the addresses of both.
struct GidPair {
  verbs::Gid dialler;
  verbs::Gid listener;
};
Result<GidPair> agreeOnGids(const VerbsOffer& dialler, const VerbsOffer& listener);

}  // namespace peerlane
