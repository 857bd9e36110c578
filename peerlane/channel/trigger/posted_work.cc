// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/posted_work.h"

#include <algorithm>
#include <string>
#include <utility>

namespace peerlane {

Status PostedWork::take(Direction direction, std::span<const Block> blocks,
                        Progress::Clock::time_point deadline, DeviceExecutor* executor) {
  PEERLANE_RETURN_IF_ERROR(blocks_.take(*peer_, direction, blocks));
  if (blocks_.empty())
    return Status(Code::kInvalidArgument, "no blocks; a put or get of a queue moves at least one");
  if (const std::string why = blocks_.whyStaged(*peer_, {}); !why.empty())
    return Status(Code::kNotSupported, "a triggered queue moves nothing in stages: " + why);
  (void)blocks_.imported(*peer_);  // asks for all at once, so that not each waits for an answer
  for (const RemoteRegion& remote : blocks_.remotes())
    PEERLANE_RETURN_IF_ERROR(remote.prepare(deadline - Progress::Clock::now()));
  PEERLANE_RETURN_IF_ERROR(blocks_.importFailure());
  PEERLANE_RETURN_IF_ERROR(blocks_.enter());
  entered_ = true;
  // Null also where an agent moves the memory of a GPU.
  PEERLANE_ASSIGN(DeviceExecutor* const byDevice, blocks_.executor(*peer_, {}));
  if (byDevice != nullptr && byDevice != executor)
    return Status(Code::kNotSupported, "memory of " + byDevice->device().toString() +
                                           "; a queue for " +
                                           (executor == nullptr ? std::string("threads of the CPU")
                                                                : executor->device().toString()) +
                                           " does not reach it (TriggerOptions::device)");
  OwnedNotify nobody;
  const bool isAgents = std::ranges::any_of(blocks_.remotes(), [](const RemoteRegion& remote) {
    return remote.slot()->region->memory.mapped == nullptr;
  });
  if (executor == nullptr || isAgents) return blocks_.lower(*peer_, nobody, program_, binding_);
  PEERLANE_RETURN_IF_ERROR(blocks_.pin(*executor));
  return blocks_.lower(*peer_, nobody, program_, binding_, nullptr, executor->device());
}

Status PostedWork::takeSlab() {
  slabEntered_ = peer_->peerSlab()->gate.enter();
  if (slabEntered_) return Status::ok();
  const Status gone = peer_->failure();
  return gone.isOk() ? Status(Code::kClosed, "the connection to the peer is being closed") : gone;
}

Result<const RemoteMemory*> PostedWork::takeWord(const RemoteRegion& region, uint64_t offset,
                                                 Progress::Clock::time_point deadline) {
  if (!region || region.peer() != peer_)
    return Status(Code::kInvalidArgument,
                  region ? "the region is not of this queue's peer" : "an empty RemoteRegion");
  if (region.bytes() < sizeof(uint64_t) || offset > region.bytes() - sizeof(uint64_t))
    return Status(Code::kInvalidArgument, "the word at offset " + std::to_string(offset) +
                                              " lies outside the region's " +
                                              std::to_string(region.bytes()) + " bytes");
  const RemoteRegion current = region.current();
  PEERLANE_RETURN_IF_ERROR(current.prepare(deadline - Progress::Clock::now()));
  const std::shared_ptr<ImportedRegion>& imported = current.slot()->region;
  const RemoteMemory& memory = imported->memory;
  const std::string name = "region " + std::to_string(memory.grant.allocation) + " of the peer";
  if (!allows(memory.grant.access, Access::kRemoteWrite))
    return Status(Code::kPermissionDenied, "the owner grants " +
                                               std::string(accessName(memory.grant.access)) +
                                               " to " + name + "; an addition writes");
  if (memory.grant.kind.place != MemoryPlace::kHost)
    return Status(Code::kNotSupported, name + " is memory of " + memory.grant.device.toString() +
                                           "; a queue adds to words of host memory");
  // Agents add to memory that stays for certain: it was given by Context::allocate.
  if (memory.mapped == nullptr && memory.grant.kind != MemoryKind::kShared)
    return Status(Code::kNotSupported,
                  name + " is reached by " + memory.engine +
                      ", which adds only to memory that its owner took from Context::allocate");
  if (memory.mapped != nullptr && memory.mayBeCut)
    return Status(Code::kNotSupported,
                  name +
                      " lies in a file that another process may cut, and an addition to what was "
                      "cut would end this process; a queue adds to memory of Context::allocate");
  if (!imported->gate.enter()) return imported->whyClosed();
  word_ = imported;
  return &memory;
}

Status PostedWork::whyRevoked() const {
  if (word_ != nullptr && word_->gate.isRevoked()) return word_->whyClosed();
  return blocks_.whyRevoked();
}

Status PostedWork::whyRefused(Code code) const {
  if (Status revoked = whyRevoked(); !revoked.isOk())
    return revoked.withContext("the bytes of what was launched with it are undefined");
  return code == Code::kRevoked && !blocks_.empty() ? blocks_.whyGone() : Status::ok();
}

void PostedWork::count() const {
  if (entered_ && blocks_.bytes() != 0)
    peer_
        ->bytes(blocks_.link(*peer_), blocks_.engine(),
                blocks_.direction() == Direction::kPut ? "put" : "get")
        .add(blocks_.bytes());
}

void PostedWork::leave() {
  // The locks below may be held for ever by threads that are not here.
  if (peer_->forked()) return;
  if (std::exchange(entered_, false)) blocks_.leave();
  if (!blocks_.empty()) {
    blocks_.clear();
    program_ = {};
    binding_ = {};
    pieces_.clear();
  }
  if (word_ != nullptr) std::exchange(word_, nullptr)->gate.leave();
  if (std::exchange(slabEntered_, false)) peer_->peerSlab()->gate.leave();
}

const BoundTarget* PostedWork::agentTarget() const {
  for (const BoundTarget& target : binding_.targets)
    if (target.address == nullptr) return &target;
  return nullptr;
}

bool PostedWork::mayBeCut() const {
  return std::ranges::any_of(binding_.targets, &BoundTarget::mayBeCut);
}

}  // namespace peerlane
