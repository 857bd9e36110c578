// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_program.h"

#include <string>
#include <utility>

#include "peerlane/channel/blocks/block_check.h"
#include "peerlane/channel/blocks/block_gates.h"
#include "peerlane/channel/blocks/block_lowering.h"
#include "peerlane/channel/blocks/block_mover.h"
#include "peerlane/os/mappings/mapping_lines.h"
#include "peerlane/os/mappings/nofault_copy.h"

namespace peerlane {
namespace {

// Whether the program still has the memory of a region of this side, mapped with the rights that a
// copy needs. True where that cannot be told.
bool isThere(const RegionRecord& region, bool isWritten) {
  if (region.memory.device.kind != DeviceKind::kHost) return true;
  const auto begin = reinterpret_cast<uintptr_t>(region.base);
  const auto lines = mappingLines(begin, begin + region.bytes);
  if (!lines) return true;
  uint64_t end = begin;
  for (const MappingLine& line : *lines) {
    if (line.start > end || line.rights[0] != 'r' || (isWritten && line.rights[1] != 'w'))
      return false;
    end = line.end;
  }
  return end >= begin + region.bytes && isReadable(region.base, region.bytes);
}

}  // namespace

Status BlockProgram::take(const PeerCore& peer, Direction direction, std::span<const Block> blocks,
                          const OwnedNotify* notify) {
  return checkBlocks(peer, direction, blocks, list_,
                     notify != nullptr ? BlockLowering::firstTargetOf(*notify) : TargetId{0});
}

Status BlockProgram::take(const PeerCore& peer, Direction direction, const StridedBlocks& blocks,
                          const OwnedNotify* /*notify*/) {
  return checkBlocks(peer, direction, blocks, list_);
}

Status BlockProgram::take(const PeerCore& peer, Direction direction, const IndexedBlocks& blocks) {
  return checkBlocks(peer, direction, blocks, list_);
}

void BlockProgram::clear() {
  list_.locals.clear();
  list_.remotes.clear();
  BlockList fresh;
  std::swap(fresh.locals, list_.locals);
  std::swap(fresh.remotes, list_.remotes);
  list_ = std::move(fresh);
  import_ = {};
}

Status BlockProgram::enter() {
  return enterGates(list_);
}

void BlockProgram::leave() {
  leaveGates(list_);
}

Status BlockProgram::whyRevoked() const {
  for (const auto& local : list_.locals)
    if (local->gate.isRevoked()) return local->whyClosed();
  for (const RemoteRegion& remote : list_.remotes)
    if (const auto& region = remote.slot()->region; region->gate.isRevoked())
      return region->whyClosed();
  return Status::ok();
}

Status BlockProgram::whyGone() const {
  // Names of a few, for there may be thousands.
  constexpr size_t kMostNames = 4;
  std::string names;
  size_t count = 0;
  const auto add = [&](const std::string& name) {
    if (count++ < kMostNames) names += (names.empty() ? "" : ", ") + name;
  };
  // So many of this side's regions are looked at, a fraction of a millisecond each.
  constexpr size_t kMostLooks = 64;
  size_t looks = 0;
  for (const auto& local : list_.locals)
    if (looks++ < kMostLooks && !isThere(*local, list_.direction == Direction::kGet))
      add("region " + std::to_string(local->allocation) + " of this side");
  if (count == 0)
    for (const RemoteRegion& remote : list_.remotes)
      add("region " + std::to_string(remote.slot()->region->memory.grant.allocation) +
          " of the peer");
  if (count > kMostNames) names += " and " + std::to_string(count - kMostNames) + " more";
  return Status(
      Code::kRevoked,
      (count > 1 ? "one of " : "") + names +
          ": memory of it was taken back, unmapped, protected or cut off its file; the bytes of "
          "the transfer are undefined");
}

Status BlockProgram::enterLocals() {
  return enterLocalGates(list_);
}

void BlockProgram::leaveLocals() {
  leaveLocalGates(list_);
}

Status BlockProgram::lower(const PeerCore& peer, OwnedNotify& notify, Program& program,
                           Binding& binding, std::byte* slabWindow, Device device) {
  return BlockLowering(peer, notify, slabWindow, device).lower(list_, import_, program, binding);
}

Result<DeviceExecutor*> BlockProgram::executor(const PeerCore& peer, DeviceStream stream) const {
  return executorFor(list_, peer, stream);
}

Status BlockProgram::pin(DeviceExecutor& executor) const {
  return pinFor(executor, list_);
}

Status BlockProgram::checkIdentity() const {
  return peerlane::checkIdentity(list_);
}

const Link* BlockProgram::link(const PeerCore& peer) const {
  if (list_.remotes.empty()) return nullptr;
  const auto& region = list_.remotes.front().slot()->region;
  return region ? &peer.links().of(region->memory) : nullptr;
}

const char* BlockProgram::engine() const {
  return engineOf(list_);
}

std::string BlockProgram::whyStaged(const PeerCore& peer, DeviceStream stream) const {
  return peerlane::whyStaged(list_, peer, stream);
}

}  // namespace peerlane
