// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/link_abilities.h"

#include <algorithm>
#include <utility>

namespace peerlane {

std::span<const MemoryExport> allExports() {
  static constexpr std::array<MemoryExport, kMemoryExports> kAll{
      MemoryExport::kNone,         MemoryExport::kDescriptor, MemoryExport::kLegacyHandle,
      MemoryExport::kFabricHandle, MemoryExport::kPool,       MemoryExport::kDmaBuf,
      MemoryExport::kKey};
  return kAll;
}

void LinkAbilities::allow(MemoryPlace place, std::span<const MemoryExport> exports,
                          AbilitySet abilities, Enforcer enforcer) {
  for (const MemoryExport exported : exports) {
    Cell& cell = cellOf(place, exported);
    cell.abilities.add(abilities);
    cell.enforcer = enforcer;
  }
}

void LinkAbilities::refuse(MemoryPlace place, MemoryExport exported, AbilitySet abilities,
                           std::string why) {
  Cell& cell = cellOf(place, exported);
  cell.abilities.remove(abilities);
  cell.whyNot = std::move(why);
}

bool LinkAbilities::canAny(MemoryPlace place, Ability ability) const {
  return std::ranges::any_of(allExports(), [&](MemoryExport exported) {
    return cellOf(place, exported).abilities.has(ability);
  });
}

bool LinkAbilities::areCoveredBy(const LinkAbilities& others) const {
  for (size_t i = 0; i < cells_.size(); ++i)
    if (cells_[i].abilities.has(Ability::kAttaches) &&
        !others.cells_[i].abilities.has(Ability::kAttaches))
      return false;
  return true;
}

void LinkAbilities::add(const LinkAbilities& others) {
  for (size_t i = 0; i < cells_.size(); ++i) cells_[i].abilities.add(others.cells_[i].abilities);
}

}  // namespace peerlane
