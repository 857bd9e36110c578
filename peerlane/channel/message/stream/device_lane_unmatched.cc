// SPDX-License-Identifier: Apache-2.0
//
// DeviceLane: messages that are not met. Each kind of message has words of its own, so a GPU that
// waits for one kind sees neither another kind nor that a region has gone. So a side whose message
// is not met for a while asks the other side, by a control message, what it has posted in that
// place. None of this holds up messages that are met.
#include <algorithm>

#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/channel/message/stream/device_lane.h"
#include "peerlane/core/mutex.h"

namespace peerlane {
namespace {

// In the number of such a note, above the place.
constexpr uint64_t kIsSend = uint64_t{1} << 63;
constexpr uint64_t kIsTakenBack = uint64_t{1} << 62;
constexpr uint64_t kIsByGet = uint64_t{1} << 61;
constexpr uint64_t kIsList = uint64_t{1} << 60;

bool isLong(uint64_t bytes) {
  return bytes > DeviceArea::kEagerBytes;
}

}  // namespace

void DeviceLane::ask(const Item& item, uint64_t place) {
  const bool isList = item.list != nullptr;
  const bool isTakenBack = item.isReached() && !item.region->gate.open();
  if (isList && !isTakenBack) return;  // it will meet the other side's next list, or none
  LaneNote note{.kind = LaneNote::Kind::kDeviceWaits, .number = place};
  if (isList) note.number |= kIsList;
  if (item.isSend) note.number |= kIsSend;
  if (item.byGet) note.number |= kIsByGet;
  if (isTakenBack) note.number |= kIsTakenBack;
  note.area = nameOf(*item.region);
  note.area.bytes = item.bytes;
  sendNote_(note);
}

void DeviceLane::answer(const LaneNote& note) {
  const bool isSentHere = (note.number & kIsSend) == 0;
  const bool byGet = (note.number & kIsByGet) != 0;
  const bool isList = (note.number & kIsList) != 0;
  const uint64_t place = note.number & ~(kIsSend | kIsTakenBack | kIsByGet | kIsList);
  const std::string rank = "rank " + std::to_string(rank_);
  const std::string message = (isList ? "list " : "message ") + std::to_string(place) +
                              " on streams " + (isSentHere ? "to " : "from ") + rank;
  if ((note.number & kIsTakenBack) != 0 && hasForgotten(note.area, !isSentHere, isList, place))
    return fail(Status(Code::kClosed,
                       rank + " has unregistered the memory of " + message + " before it was met"),
                /*tellPeer=*/true);
  if (isList) return;
  const PostedItems& posted = isSentHere ? sent_ : received_;
  if (posted.isCaptured()) return;  // graphs count by themselves
  const auto found = posted.find(place);
  const bool isLongThere = isLong(note.area.bytes);
  if (found && isLong(found->bytes) != isLongThere)
    return fail(Status(Code::kSizeMismatch,
                       message + " has " + std::to_string(found->bytes) + " bytes here and " +
                           std::to_string(note.area.bytes) + " there; messages of up to " +
                           std::to_string(DeviceArea::kEagerBytes) +
                           " go another way, so neither side has met it"),
                /*tellPeer=*/true);
  if (found && isLongThere && found->byGet != byGet)
    return fail(
        Status(Code::kInvalidArgument, message + " goes by " +
                                           (byGet ? "put here and by get" : "get here and by put") +
                                           " there; both sides name the same protocol"),
        /*tellPeer=*/true);
}

// While a message that needs it is under way here, no region is forgotten.
bool DeviceLane::hasForgotten(const RegionName& name, bool toRead, bool isList, uint64_t place) {
  const MutexLock lock(stateMutex_);
  const auto isIt = [&](const Named& named) {
    return named.name.allocation == name.allocation && named.name.generation == name.generation &&
           named.toRead == toRead;
  };
  const uint64_t before = isList   ? forgottenAt_.next[kListSends]
                          : toRead ? forgottenAt_.receives
                                   : forgottenAt_.sends;
  return std::none_of(named_.begin(), named_.end(), isIt) && place >= before;
}

}  // namespace peerlane
