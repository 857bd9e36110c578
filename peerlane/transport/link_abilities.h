// SPDX-License-Identifier: Apache-2.0
//
// LinkAbilities: what a link, or all links that a transport could make, can do with memory of each
// kind: a table by place and export. Routes are found in such tables; no name of a link decides
// anything. Plain value.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "peerlane/memory/device.h"
#include "peerlane/memory/memory_kind.h"

namespace peerlane {

// The reach of a transport's links.
enum class LinkScope : uint8_t {
  kProcess,  // between contexts of one process
  kHost,     // between processes of one host: fails only with the other process
  kNetwork,  // may fail while both processes live
};

enum class Ability : uint8_t {
  kGrants = 1 << 0,     // the owner's side can tell the other side how to reach the memory
  kAttaches = 1 << 1,   // the other side can make a RemoteMemory of that
  kMaps = 1 << 2,       // attached, loads and stores reach it: of the CPU, or of a GPU where it is
                        // a GPU's
  kByDevice = 1 << 3,   // attached, GPUs of this side reach it
  kByAgent = 1 << 4,    // attached, the link's agent copies to and from it
  kFromHere = 1 << 5,   // the agent copies to and from such memory of this side
  kMapsWords = 1 << 6,  // words in it are written by loads and stores, and the peer is woken
  kSendsWords = 1 << 7  // words in it are written by the agent
};

class AbilitySet {
 public:
  constexpr AbilitySet() = default;
  constexpr AbilitySet(std::initializer_list<Ability> all) {
    for (const Ability ability : all) bits_ |= static_cast<uint8_t>(ability);
  }
  constexpr bool has(Ability ability) const { return (bits_ & static_cast<uint8_t>(ability)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr void add(AbilitySet more) { bits_ |= more.bits_; }
  constexpr void remove(AbilitySet less) { bits_ &= static_cast<uint8_t>(~less.bits_); }

 private:
  uint8_t bits_ = 0;
};

// Every export, in the order of their numbers.
std::span<const MemoryExport> allExports();

class LinkAbilities {
 public:
  // Adds abilities for memory at `place` that is exported in one of these ways.
  void allow(MemoryPlace place, std::span<const MemoryExport> exports, AbilitySet abilities,
             Enforcer enforcer);
  void allow(MemoryPlace place, std::initializer_list<MemoryExport> exports, AbilitySet abilities,
             Enforcer enforcer) {
    allow(place, std::span(exports.begin(), exports.size()), abilities, enforcer);
  }
  // Takes abilities away, for a reason.
  void refuse(MemoryPlace place, MemoryExport exported, AbilitySet abilities, std::string why);

  bool can(const MemoryKind& kind, Ability ability) const {
    return cellOf(kind.place, kind.exported).abilities.has(ability);
  }
  // Memory at `place`, however it is exported.
  bool canAny(MemoryPlace place, Ability ability) const;
  Enforcer enforcer(const MemoryKind& kind) const {
    return cellOf(kind.place, kind.exported).enforcer;
  }
  // The reason that refuse() was given, or empty.
  const std::string& whyNot(const MemoryKind& kind) const {
    return cellOf(kind.place, kind.exported).whyNot;
  }
  // Whether `others` attach whatever these attach.
  bool areCoveredBy(const LinkAbilities& others) const;
  void add(const LinkAbilities& others);

 private:
  struct Cell {
    AbilitySet abilities;
    Enforcer enforcer = Enforcer::kInitiator;
    std::string whyNot;
  };
  const Cell& cellOf(MemoryPlace place, MemoryExport exported) const {
    return cells_[static_cast<size_t>(place) * kMemoryExports + static_cast<size_t>(exported)];
  }
  Cell& cellOf(MemoryPlace place, MemoryExport exported) {
    return cells_[static_cast<size_t>(place) * kMemoryExports + static_cast<size_t>(exported)];
  }
  std::array<Cell, kMemoryPlaces * kMemoryExports> cells_;
};

}  // namespace peerlane
