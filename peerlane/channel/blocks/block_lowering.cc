// SPDX-License-Identifier: Apache-2.0
//
// What orders the parts of a post. The payload comes first. The peer may read it once it has read
// the word that tells of it, so each such word is written by a release, and after the payload:
//
//   put            payload                        the end of the transfer is told here alone
//   put, signal    payload, add (release)         the peer reads the counter with acquire
//   put, message   payload, wait for the slot, header and message, number (release)
//   with both      payload, wait for the slot, header and message, add (release), number (release)
//   nothing        flush                          a place on a stream, after which the host tells
//
// Where an agent moves the payload, the executor holds a release back until the agent has confirmed
// what went to another region (CpuRun::runWord).
#include "peerlane/channel/blocks/block_lowering.h"

#include <algorithm>
#include <string>
#include <utility>

#include "peerlane/channel/blocks/block_overlap.h"
#include "peerlane/channel/protocol/notify_protocol.h"
#include "peerlane/program/device/device_executor.h"

namespace peerlane {

TargetId BlockLowering::firstTargetOf(const OwnedNotify& notify) {
  if (notify.hasMessage) return kNotifySenderFirstData;
  return notify.signal ? TargetId{kSignalSenderFirstData} : TargetId{0};
}

Status BlockLowering::lower(BlockList& blocks, BlockImport& import, Program& program,
                            Binding& binding) {
  if (peer_.link().traits().scope == LinkScope::kProcess)
    PEERLANE_RETURN_IF_ERROR(checkSources(blocks));
  base_ = firstTargetOf(notify_);
  data_.reserve(blocks.locals.size() + blocks.remotes.size());
  payload_.targets.reserve(data_.capacity());
  for (const auto& local : blocks.locals) bindLocal(*local);
  PEERLANE_RETURN_IF_ERROR(bindRemotes(blocks, import));
  if (!blocks.empty()) takeLayout(blocks);
  binding.targets.clear();
  binding.targets.reserve(base_ + data_.size());
  if (notify_.hasMessage)
    emitNotify(program, binding);
  else if (notify_.signal)
    emitSignal(blocks.empty(), program, binding);
  else
    emitPlain(blocks, program, binding);
  return Status::ok();
}

// --- Binding ---

void BlockLowering::bindLocal(const RegionRecord& region) {
  payload_.targets.push_back({.name = "local", .side = Side::kLocal});
  const bool isOfDevice = isCuda(region.memory.kind);
  data_.push_back({.address = region.base,
                   .bytes = region.bytes,
                   .mayBeCut = !isOfDevice && region.memory.mayBeCut});
  hasLocalOfDevice_ |= isOfDevice;
}

Status BlockLowering::bindRemotes(const BlockList& blocks, BlockImport& import) {
  // Before the regions are looked at: its acquire makes visible what the imports wrote.
  if (!import.reaches(blocks)) return bindLate(blocks, import);
  for (const RemoteRegion& remote : blocks.remotes)
    PEERLANE_RETURN_IF_ERROR(bindRemote(remote, blocks.wantedAccess()));
  return Status::ok();
}

Status BlockLowering::bindRemote(const RemoteRegion& remote, Access wanted) {
  const RemoteMemory& memory = remote.slot()->region->memory;
  // Again after the check of the list: the owner's answer counts, not what the reference says.
  if (!allows(memory.grant.access, wanted))
    return Status(Code::kPermissionDenied, std::string("the owner grants ") +
                                               accessName(memory.grant.access) + ", this needs " +
                                               accessName(wanted));
  std::byte* const address = memory.on(device_);
  if (address == nullptr && memory.mapped != nullptr)
    return Status(Code::kNotSupported, "the peer's region " +
                                           std::to_string(memory.grant.allocation) +
                                           " could not be opened for " + device_.toString());
  // The executor was chosen before the import, or before another link took over.
  const bool isOfDevice = isCuda(memory.grant.kind) || hasLocalOfDevice_;
  if (device_.kind == DeviceKind::kHost && address != nullptr && isOfDevice)
    return Status(Code::kTryAgain, "the peer's region " + std::to_string(memory.grant.allocation) +
                                       " has just come over another link; post again");
  payload_.targets.push_back({.name = "remote", .side = Side::kRemote});
  data_.push_back({.address = address,
                   .bytes = memory.grant.bytes,
                   .remote = &memory,
                   .mayBeCut = memory.mayBeCut});
  return Status::ok();
}

// The stream waits until the executor is told the address (DeviceExecutor::postLate), one for all.
Status BlockLowering::bindLate(const BlockList& blocks, BlockImport& import) {
  if (blocks.remotes.size() != 1)
    return Status(Code::kNotPrepared,
                  "several remote regions, not all of them imported (RemoteRegion::prepare)");
  payload_.targets.push_back({.name = "remote", .side = Side::kRemote});
  data_.push_back({.address = lateBase(), .bytes = blocks.remotes.front().bytes()});
  // Before takeLayout() moves the segments away.
  import.keepTouched(blocks);
  return Status::ok();
}

// The layout with the numbers of the program's targets.
void BlockLowering::takeLayout(BlockList& blocks) {
  const TargetId firstLocal = blocks.firstLocal, firstRemote = blocks.firstRemote;
  const auto remoteBase = static_cast<TargetId>(base_ + blocks.locals.size());
  // By value, here and below: stores of segments might change a member.
  const auto renumber = [=, base = base_](Segment& segment) {
    for (TargetId* const target : {&segment.to, &segment.from})
      *target = static_cast<TargetId>(*target >= firstRemote ? remoteBase + (*target - firstRemote)
                                                             : base + (*target - firstLocal));
  };
  // Moved, not copied: lists may be long.
  std::vector<Segment> segments = std::move(blocks.layout.segments);
  std::vector<uint32_t> toNumbers = std::move(blocks.layout.toNumbers);
  std::vector<uint32_t> fromNumbers = std::move(blocks.layout.fromNumbers);
  blocks.layout.segments.clear();
  blocks.layout.toNumbers.clear();
  blocks.layout.fromNumbers.clear();
  payload_.layout = blocks.layout;
  payload_.layout.toNumbers = std::move(toNumbers);
  payload_.layout.fromNumbers = std::move(fromNumbers);
  if (blocks.layout.kind != CopyLayout::Kind::kScattered) return renumber(payload_.layout.first);
  // Mostly the list has these numbers already.
  if (firstLocal != base_ || firstRemote != remoteBase)
    std::for_each(segments.begin(), segments.end(), renumber);
  payload_.layout.segments = std::move(segments);
  splitForAgent();
}

// Leaves in the layout what is mapped, unless nothing is. movePayload() emits the agent's part
// last, so that the CPU copies while nothing of the agent's is awaited. The order between the two
// parts is free: no two blocks of a list write the same bytes.
void BlockLowering::splitForAgent() {
  const auto isHere = [](const BoundTarget& target) { return target.address != nullptr; };
  if (std::all_of(data_.begin(), data_.end(), isHere)) return;
  const auto isMapped = [base = base_, data = data_.data()](const Segment& segment) {
    return data[segment.to - base].address != nullptr &&
           data[segment.from - base].address != nullptr;
  };
  std::vector<Segment>& segments = payload_.layout.segments;
  if (std::none_of(segments.begin(), segments.end(), isMapped)) return;
  const auto byAgent = std::stable_partition(segments.begin(), segments.end(), isMapped);
  if (byAgent == segments.end()) return;
  payload_.byAgent.assign(byAgent, segments.end());
  segments.erase(byAgent, segments.end());
}

BoundTarget BlockLowering::slabTarget(uint64_t offset, uint64_t bytes) const {
  const RemoteMemory& memory = peer_.slabs().peersMemory();
  BoundTarget target{.bytes = bytes, .remote = &memory, .remoteOffset = offset};
  if (slabWindow_ != nullptr) {
    // A device's store wakes nobody, so there is no waker: the peer polls what devices write.
    target.address = slabWindow_ + offset;
  } else if (memory.mapped != nullptr) {
    // The executor rings after the store and a full fence, because the peer says that it falls
    // asleep and then looks at the word once more (Waker).
    target.address = memory.mapped + offset;
    target.waker = &peer_.links().of(memory).traits().waker;
  }
  return target;
}

BoundTarget BlockLowering::signalTarget() const {
  const uint64_t offset = slab::kSignalsOffset + uint64_t{*notify_.signal} * slab::kWordStrideBytes;
  BoundTarget target = slabTarget(offset, sizeof(uint64_t));
  if (target.waker != nullptr)
    target.waker = &peer_.links().of(*target.remote).traits().signalWaker;
  return target;
}

// --- Programs ---

void BlockLowering::emitNotify(Program& program, Binding& binding) {
  const bool isVoid = notify_.header[0] == OwnedNotify::kVoid;
  const NotifyShape shape{slab::kNotifySlots, slab::kInboxStrideBytes,
                          isVoid ? 0 : notify_.header[0]};
  program = notifySender(shape, std::move(payload_));
  auto* const header = reinterpret_cast<std::byte*>(notify_.header);
  auto& targets = binding.targets;
  targets.push_back({.address = header, .bytes = sizeof(notify_.header), .isOurs = true});
  // An empty message still needs an address to be bound to.
  targets.push_back({.address = notify_.message.empty() ? header : notify_.message.data(),
                     .bytes = notify_.message.size(),
                     .isOurs = true});
  targets.push_back(
      slabTarget(slab::kInboxOffset, uint64_t{slab::kNotifySlots} * slab::kInboxStrideBytes));
  targets.push_back({.address = peer_.slab() + slab::kCreditsOffset,
                     .bytes = uint64_t{slab::kNotifySlots} * slab::kWordStrideBytes});
  targets.insert(targets.end(), data_.begin(), data_.end());
  if (!notify_.signal) return;
  program.targets.push_back({.name = "counter", .side = Side::kRemote});
  targets.push_back(signalTarget());
  // After the payload: the addition is a release, because the peer may wait for the counter alone
  // and then read the bytes. Before the slot's number, which stays the last op: a run that is given
  // up in the middle has published nothing, so the slot can be published as void.
  program.ops.insert(program.ops.end() - 1,
                     {.code = OpCode::kAdd64,
                      .order = Order::kRelease,
                      .to = {.target = static_cast<TargetId>(program.targets.size() - 1)},
                      .operand = {.delta = static_cast<int64_t>(notify_.signalAdd)}});
}

// The protocol adds last, with release: the peer that has read the counter reads the bytes.
void BlockLowering::emitSignal(bool isEmpty, Program& program, Binding& binding) {
  program =
      isEmpty ? signalSender(notify_.signalAdd) : putSignal(std::move(payload_), notify_.signalAdd);
  binding.targets.push_back(signalTarget());
  binding.targets.insert(binding.targets.end(), data_.begin(), data_.end());
}

// No word tells the peer, so nothing here orders the bytes for it: the transfer ends when mapped
// copies are made and the agent has confirmed the others.
void BlockLowering::emitPlain(const BlockList& blocks, Program& program, Binding& binding) {
  ProgramBuilder plain(blocks.isPut() ? "put" : "get");
  if (!blocks.empty()) {
    declarePayload(plain, payload_);
    movePayload(plain, std::move(payload_));
    binding.targets = std::move(data_);
  } else {
    // Nothing to move, and nothing that this program tells: a message on a stream, which the host
    // delivers after the stream has passed this program. A program needs an op; this one is free.
    plain.flush(plain.remote("slab"));
    binding.targets.push_back(slabTarget(0, slab::kBytes));
  }
  program = plain.build();
}

}  // namespace peerlane
