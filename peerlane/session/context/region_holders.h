// SPDX-License-Identifier: Apache-2.0
//
// RegionHolders: who holds imports of a region of this context: peers, and absentees, which left
// without a goodbye. It asks them to let go and says in words who they are. No state of its own.
// Threads: as each call says. Owner: RegionLife.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "peerlane/memory/region_table.h"
#include "peerlane/session/context/region_revocation.h"

namespace peerlane {

class Absentees;
class PeerCore;
class PeerTable;

class RegionHolders {
 public:
  RegionHolders(const RegionTable& regions, const PeerTable& peers, Absentees& absentees)
      : regions_(regions), peers_(peers), absentees_(absentees) {}

  // Who reaches the region, for people, down to each peer's state. Any thread.
  std::string inWords(const RegionRevocation& revocation) const;

  // --- Progress thread ---
  // The peers that have something to be asked for; they are asked when this ends.
  class Asking {
   public:
    Asking() = default;
    ~Asking();
    Asking(const Asking&) = delete;
    Asking& operator=(const Asking&) = delete;

   private:
    friend class RegionHolders;
    std::set<std::shared_ptr<PeerCore>> peers_;
  };
  // Asks each holder to let go: `holders` grows by one for it, and `done` is called when it has
  // confirmed, or its end is proven. `freed`: the memory has gone already.
  void ask(const RegionRecord& region, bool freed, std::atomic<size_t>& holders,
           const std::function<void()>& done, Asking& asking) const;
  // A holder of which nothing is heard, or that left without a goodbye; null: none.
  struct Silent {
    uint64_t peer = 0;
    bool isAbsent = false;
  };
  std::optional<Silent> whoIsSilent(uint64_t allocation) const;

 private:
  std::string peersInWords(uint64_t allocation) const;

  const RegionTable& regions_;
  const PeerTable& peers_;
  Absentees& absentees_;
};

}  // namespace peerlane
