// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/stream/device_lane.h"

#include <algorithm>
#include <utility>

#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/channel/protocol/device_area.h"
#include "peerlane/channel/protocol/device_protocol.h"
#include "peerlane/program/device/poison.h"

namespace peerlane {
namespace {

constexpr size_t kCursorBytes = 64;

// As offers and answers name it, and as the device finds it.
uint64_t namedAllocation(uint64_t allocation, bool toRead) {
  return toRead ? allocation | DeviceArea::kToRead : allocation;
}

}  // namespace

DeviceLane::DeviceLane(const LaneEnvironment& env, DeviceExecutor& executor)
    : peer_(env.peer), rank_(env.rank), sendNote_(env.sendNote) {
  first_.executor = &executor;
}

DeviceLane::~DeviceLane() {
  if (peer_->forked()) return;
  retire();
  if (abort_ != nullptr) executor().returnWord(abort_);
}

Result<std::shared_ptr<DeviceLane>> DeviceLane::create(const LaneEnvironment& env,
                                                       DeviceExecutor& executor) {
  std::shared_ptr<DeviceLane> lane(new DeviceLane(env, executor));
  PEERLANE_RETURN_IF_ERROR(lane->prepare());
  return lane;
}

Status DeviceLane::prepare() {
  PEERLANE_ASSIGN(auto memory, executor().makeArea(DeviceArea::kBytes));
  PEERLANE_ASSIGN(MemoryDescription description, memory->describe());
  std::byte* const base = memory->data();
  PEERLANE_ASSIGN(area_, peer_->regions().add(base, DeviceArea::kBytes, Access::kRemoteReadWrite,
                                              std::move(description), std::move(memory)));
  PEERLANE_ASSIGN(cursors_, executor().makeArea((kSequences + 1) * kCursorBytes));
  PEERLANE_ASSIGN(first_.names, executor().makeRegionNames());
  PEERLANE_ASSIGN(abort_, executor().borrowWord());
  return Status::ok();
}

RegionName DeviceLane::area() const {
  return nameOf(*area_);
}

Status DeviceLane::health() const {
  if (failed_.load(std::memory_order_acquire)) {
    const MutexLock lock(stateMutex_);
    return failure_;
  }
  return peer_->usable();
}

void DeviceLane::setFailure(const Status& why) {
  failure_ = why;
  failed_.store(true, std::memory_order_release);
}

void DeviceLane::take(const LaneNote& note) {
  switch (note.kind) {
    case LaneNote::Kind::kDeviceArea: return reach(note.area);
    case LaneNote::Kind::kDeviceRegion: return takeRegion(note);
    case LaneNote::Kind::kDeviceReady: return takeReady(note);
    case LaneNote::Kind::kDeviceWaits: return answer(note);
    case LaneNote::Kind::kDeviceEnd: {
      if (const Status own = whyUnreached(); !own.isOk() && own.code() == note.code)
        return fail(own, /*tellPeer=*/false);
      const char* const why = note.code == Code::kSizeMismatch
                                  ? ": one of them is short at one side and long at the other"
                              : note.code == Code::kInvalidArgument
                                  ? ": one of them goes by get at one side and by put at the other"
                                  : "";
      return fail(
          Status(note.code == Code::kOk ? Code::kClosed : note.code,
                 "rank " + std::to_string(rank_) + " has ended its messages on streams" + why),
          /*tellPeer=*/false);
    }
    default: return;
  }
}

void DeviceLane::takeRegion(const LaneNote& note) {
  const auto slot = std::make_shared<ImportSlot>();
  slot->bytes = note.area.bytes;
  const bool toRead = note.number != 0;
  {
    const MutexLock lock(stateMutex_);
    const auto same = [&](const Named& named) {
      return named.name.allocation == note.area.allocation &&
             named.name.generation == note.area.generation && named.toRead == toRead;
    };
    if (std::any_of(named_.begin(), named_.end(), same)) return;
    named_.push_back({slot, note.area, toRead});
  }
  peer_->imports().request(referenceTo(*peer_, note.area), slot);
}

// The caller wakes waiting threads after it has delivered a note. If the memory is being taken
// back, either no message needs it any more, or the messages that do ask for it (ask()).
void DeviceLane::takeReady(const LaneNote& note) {
  const Reached name(namedAllocation(note.area.allocation, note.number != 0), note.area.generation);
  if (note.code != Code::kOk) {
    if (!peer_->regions().isTakenBack(note.area.allocation, note.area.generation))
      return fail(whyNotReached(note), /*tellPeer=*/true);
    const MutexLock lock(stateMutex_);
    announced_.erase(name);
    return;
  }
  const MutexLock lock(stateMutex_);
  if (announced_.contains(name)) reachable_.insert(name);
}

Status DeviceLane::whyUnreached() const {
  const MutexLock lock(stateMutex_);
  return unreached_;
}

void DeviceLane::reach(const RegionName& area) {
  if (arrived()) return;
  if (area.allocation == 0) {
    fail(Status(Code::kNotSupported,
                "rank " + std::to_string(rank_) + " has no GPU for messages on streams"),
         /*tellPeer=*/false);
    settled_.store(true, std::memory_order_release);
    return;
  }
  if (peerArea_->state.load(std::memory_order_acquire) != ImportSlot::State::kNone) return;
  peerArea_->bytes = area.bytes;
  peer_->imports().request(referenceTo(*peer_, area), peerArea_);
}

// The other side takes its area back, or is gone, and may not hear of the end of this lane. Nothing
// else here lets go of the area, and the other side would wait for that for ever.
bool DeviceLane::leaveArea() {
  {
    // Not every turn may hold up posters.
    const MutexLock lock(stateMutex_);
    if (!mustLeave()) return false;
  }
  if (!mutex_.tryLock()) return false;
  const bool hasLeft = leaveAreaBesideNoPost();
  mutex_.unlock();
  return hasLeft;
}

bool DeviceLane::leaveAreaBesideNoPost() {
  const MutexLock lock(stateMutex_);
  if (!mustLeave()) return false;
  if (failure_.isOk())
    setFailure(
        Status(Code::kClosed, "rank " + std::to_string(rank_) + " has closed its communicator"));
  areaEntered_ = false;
  peerArea_->region->gate.leave();
  return true;
}

bool DeviceLane::turn() {
  bool moved = takeImports();
  moved = forgetRegions() || moved;
  moved = leaveArea() || moved;
  if (settled_.load(std::memory_order_relaxed) || !arrived()) return moved;
  const auto state = peerArea_->state.load(std::memory_order_acquire);
  Status status = state == ImportSlot::State::kFailed ? peerArea_->failure : Status::ok();
  if (status.isOk() && peerArea_->region->memory.grant.bytes < DeviceArea::kBytes)
    status = Status(Code::kCorrupt, "its area for messages on streams is too small");
  if (status.isOk()) {
    const MutexLock lock(stateMutex_);
    areaEntered_ = peerArea_->region->gate.enter();
    if (!areaEntered_) status = Status(Code::kClosed, "its area is being taken back");
  }
  if (status.isOk()) status = makeRunner(first_);
  if (!status.isOk())
    fail(status.withContext("messages on streams with rank " + std::to_string(rank_)),
         /*tellPeer=*/true);
  settled_.store(true, std::memory_order_release);
  peer_->progress().notifyWaiters();
  return true;
}

// The regions that the device may find by name. They are opened without a lock that posters want,
// because pinning memory takes time.
bool DeviceLane::takeImports() {
  std::vector<Named> come;
  {
    const MutexLock lock(stateMutex_);
    if (!failure_.isOk()) return false;
    for (Named& named : named_) {
      const auto state = named.slot->state.load(std::memory_order_acquire);
      if (state == ImportSlot::State::kFailed) come.push_back(named);
      if (state != ImportSlot::State::kReady || named.entered) continue;
      named.entered = named.slot->region->gate.enter();
      come.push_back(named);
    }
  }
  for (const Named& named : come) {
    Status known = checkImport(named);
    const bool isLeftOut = !known.isOk();
    if (isLeftOut)
      leaveOut(named, known);
    else
      known = makeKnown(named);
    sendNote_({.kind = LaneNote::Kind::kDeviceReady,
               .code = known.code(),
               .number = named.toRead ? uint64_t{1} : 0,
               .area = named.name});
    if (known.isOk() || isLeftOut) continue;
    fail(known, /*tellPeer=*/true);
    break;
  }
  return !come.empty();
}

// Whether a message misses it, the other side knows: it ends the lane, or has taken the memory
// back.
void DeviceLane::leaveOut(const Named& named, const Status& why) {
  const MutexLock lock(stateMutex_);
  const bool isTakenBack = why.code() == Code::kClosed || why.code() == Code::kRevoked ||
                           why.code() == Code::kInvalidArgument;
  if (!isTakenBack) unreached_ = why;
  std::erase_if(named_, [&](const Named& each) {
    if (each.slot != named.slot || each.toRead != named.toRead) return false;
    if (each.entered) each.slot->region->gate.leave();
    return true;
  });
}

Status DeviceLane::checkImport(const Named& named) const {
  if (named.slot->state.load(std::memory_order_acquire) == ImportSlot::State::kFailed)
    return named.slot->failure;
  if (!named.entered)
    return named.slot->region->whyClosed().withContext("rank " + std::to_string(rank_));
  PEERLANE_RETURN_IF_ERROR(openImport(*named.slot->region));
  if (!allows(named.slot->region->memory.grant.access,
              named.toRead ? Access::kRemoteRead : Access::kRemoteWrite))
    return Status(Code::kPermissionDenied,
                  named.toRead ? "a send names memory that this side may not read"
                               : "a receive names memory that this side may not write to");
  const MutexLock lock(stateMutex_);
  PEERLANE_RETURN_IF_ERROR(addressFor(first_, named).status());
  for (const auto& other : others_) PEERLANE_RETURN_IF_ERROR(addressFor(*other, named).status());
  return Status::ok();
}

Status DeviceLane::makeKnown(const Named& named) {
  const MutexLock lock(stateMutex_);
  PEERLANE_RETURN_IF_ERROR(addName(first_, named));
  for (const auto& other : others_) PEERLANE_RETURN_IF_ERROR(addName(*other, named));
  for (Named& each : named_) each.known = each.known || each.slot == named.slot;
  return Status::ok();
}

Result<std::byte*> DeviceLane::addressFor(const Runner& runner, const Named& named) const {
  const Device device = runner.executor->device();
  std::byte* const address = named.slot->region->memory.on(device);
  if (address != nullptr) return address;
  return Status(Code::kNotSupported, "region " + std::to_string(named.name.allocation) +
                                         " of rank " + std::to_string(rank_) +
                                         " could not be opened for " + device.toString());
}

Status DeviceLane::addName(const Runner& runner, const Named& named) const {
  PEERLANE_ASSIGN(std::byte* const address, addressFor(runner, named));
  return runner.names->add(namedAllocation(named.name.allocation, named.toRead),
                           named.name.generation, address, named.slot->region->memory.grant.bytes);
}

// Regions that their owner wants back. It has no receive under way with them; but a send of this
// side may still be looking, or just be posted: so not beside a post.
bool DeviceLane::forgetRegions() {
  {
    const MutexLock lock(stateMutex_);
    if (!idle() || std::none_of(named_.begin(), named_.end(), isWantedBack)) return false;
  }
  if (!mutex_.tryLock()) return false;
  const bool hasForgotten = forgetBesideNoPost();
  mutex_.unlock();
  return hasForgotten;
}

bool DeviceLane::forgetBesideNoPost() {
  const MutexLock lock(stateMutex_);
  if (!idle()) return false;
  forgottenAt_ = numbers_;
  return std::erase_if(named_, [this](Named& named) PEERLANE_REQUIRES(stateMutex_) {
           if (!isWantedBack(named)) return false;
           if (named.entered) {
             const uint64_t allocation = namedAllocation(named.name.allocation, named.toRead);
             first_.names->remove(allocation, named.name.generation);
             for (const auto& other : others_)
               other->names->remove(allocation, named.name.generation);
             named.slot->region->gate.leave();
           }
           return true;
         }) > 0;
}

void DeviceLane::announce(const RegionRecord& region, bool toRead) {
  {
    const MutexLock lock(stateMutex_);
    const Reached name(namedAllocation(region.allocation, toRead), region.generation);
    if (announced_.contains(name)) return;  // an insertion allocates before it looks
    announced_.insert(name);
  }
  sendNote_({.kind = LaneNote::Kind::kDeviceRegion,
             .number = toRead ? uint64_t{1} : 0,
             .area = nameOf(region)});
}

bool DeviceLane::isReachable(const RegionRecord& region, bool toRead) const {
  const MutexLock lock(stateMutex_);
  return reachable_.contains({namedAllocation(region.allocation, toRead), region.generation});
}

Status DeviceLane::checkPrepared(const Item& item) const {
  if (!item.isReached() || isReachable(*item.region, item.isSend)) return Status::ok();
  return Status(Code::kNotPrepared, "region " + std::to_string(item.region->allocation) +
                                        " is not known to rank " + std::to_string(rank_) +
                                        " yet, and a graph cannot wait for that; call " +
                                        "Communicator::prepare before the capture");
}

Status DeviceLane::claim(const Item& item, bool captured, uint64_t& number) {
  PEERLANE_RETURN_IF_ERROR(health());  // once more: leaveArea() may have come before the lock
  Mode& mode = item.isSend ? numbers_.sendMode : numbers_.receiveMode;
  const Mode wanted = captured ? Mode::kCaptured : Mode::kLive;
  if (mode == Mode::kUnused) mode = wanted;
  if (mode != wanted)
    return Status(Code::kInvalidArgument,
                  std::string(item.isSend ? "sends to" : "receives from") + " rank " +
                      std::to_string(rank_) +
                      (captured ? " were posted on streams before" : " are part of a graph") +
                      "; make a second communicator for " + (captured ? "graphs" : "live posts"));
  PostedItems& posted = item.isSend ? sent_ : received_;
  number = 0;
  if (captured) {
    posted.setCaptured();
    return Status::ok();
  }
  number = numbers_.next[sequenceOf(item)]++;
  // A list meets nothing but a list, whatever is posted between.
  if (item.list != nullptr) return Status::ok();
  posted.add((item.isSend ? numbers_.sends : numbers_.receives)++, {item.bytes, item.byGet});
  return Status::ok();
}

StepCall DeviceLane::callOf(const std::unique_ptr<StepList>& steps, uint64_t number, bool captured,
                            Sequence sequence) const {
  StepCall call;
  call.steps = steps.get();
  call.cursor = number;
  if (captured) call.cursorWord = cursors_->data() + sequence * kCursorBytes;
  call.abort = abort_;
  call.ended = cursors_->data() + kSequences * kCursorBytes;
  call.faultValue = 1;
  return call;
}

void DeviceLane::add(const Item& item, const Runner& runner, uint64_t number, bool captured,
                     Part part, std::atomic<uint64_t>* fault, std::vector<StepCall>& calls) {
  if (item.list != nullptr) return addList(item, runner, number, captured, part, fault, calls);
  const bool eager = item.isEager();
  if (item.byGet && !eager) return addGet(item, runner, number, captured, part, fault, calls);
  const Sequence sequence = sequenceOf(item);
  const auto size = static_cast<int64_t>(item.bytes);
  if (part == Part::kSend && item.isSend) {
    StepCall call = callOf(eager ? runner.eagerSend : runner.putSend, number, captured, sequence);
    if (eager) {
      call.patch({.op = EagerSendOps::kCopy, .address = item.address, .bytes = item.bytes});
    } else {
      call.patch({.op = PutSendOps::kCopy, .address = item.address, .bytes = item.bytes});
      call.patch({.op = PutSendOps::kBytes, .value = size});
      call.patch({.op = PutSendOps::kExpectedBytes, .value = size});
    }
    call.fault = fault;
    calls.push_back(call);
  } else if (part == Part::kHead && !item.isSend && !eager) {
    StepCall call = callOf(runner.putHead, number, captured, sequence);
    const auto word = [](uint64_t value) { return static_cast<int64_t>(value); };
    call.patch({.op = PutHeadOps::kAllocation, .value = word(item.region->allocation)});
    call.patch({.op = PutHeadOps::kGeneration, .value = word(item.region->generation)});
    call.patch({.op = PutHeadOps::kOffset,
                .value = static_cast<int64_t>(item.address - item.region->base)});
    call.patch({.op = PutHeadOps::kBytes, .value = size});
    calls.push_back(call);
  } else if (part == Part::kReceive && !item.isSend) {
    StepCall call = callOf(eager ? runner.eagerRecv : runner.putTail, number, captured, sequence);
    if (eager) {
      call.patch({.op = EagerRecvOps::kCopy, .address = item.address, .bytes = item.bytes});
    } else {
      call.patch({.op = PutTailOps::kExpectedBytes, .value = size});
    }
    call.fault = fault;
    calls.push_back(call);
  }
}

void DeviceLane::fail(const Status& why, bool tellPeer) {
  {
    const MutexLock lock(stateMutex_);
    if (!failure_.isOk()) return;
    setFailure(why);
  }
  // Before wake().
  abortWaits(*abort_, idle() ? nullptr : &peer_->metrics().poisonings());
  if (tellPeer) sendNote_({.kind = LaneNote::Kind::kDeviceEnd, .code = why.code()});
  peer_->progress().wake();
}

void DeviceLane::retire() {
  const MutexLock lock(stateMutex_);
  if (std::exchange(retired_, true)) return;
  for (Named& named : named_)
    if (std::exchange(named.entered, false)) named.slot->region->gate.leave();
  named_.clear();
  if (std::exchange(areaEntered_, false)) peerArea_->region->gate.leave();
  if (area_) retireRegion(area_, {peer_});
}

std::string DeviceLane::describe() const {
  const uint64_t pending = pending_.value();
  if (pending == 0) return {};
  return "streams, rank " + std::to_string(rank_) + ": " + std::to_string(pending) +
         " posts under way";
}

}  // namespace peerlane
