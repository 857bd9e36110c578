// SPDX-License-Identifier: Apache-2.0
//
// DeviceLane: messages between this rank and another that streams of a GPU send and receive, in
// both directions. A post enqueues the whole message at once. Where the other side names memory in
// a message that is not imported yet, the device waits for it while the progress thread imports it.
// Messages that were sent on streams meet those received on streams, in the order of posting.
//
// A stream cannot leave out work that is ahead of other work, so a message that is cancelled, or
// not met in time, ends the lane: everything under way is released, at the other side as well, and
// later posts are refused with the reason. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "peerlane/channel/message/host/message_format.h"
#include "peerlane/channel/message/host/message_lane.h"
#include "peerlane/channel/message/stream/posted_items.h"
#include "peerlane/channel/message/stream/posted_list.h"
#include "peerlane/channel/protocol/device_area.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/split_count.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/progress/turn_mutex.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class DeviceLane {
 public:
  struct Item {
    bool isSend = false;
    bool byGet = false;  // a long message is copied by the receiver
    const RegionRecord* region = nullptr;
    std::byte* address = nullptr;
    uint64_t bytes = 0;
    // Of a list, which goes by put: `bytes` are those of all pieces, `address` is null, and
    // `region` is any of its regions.
    const PostedList* list = nullptr;
    bool isEager() const { return list == nullptr && bytes <= DeviceArea::kEagerBytes; }
    // The other side's GPU reads or writes its memory, which must be known there.
    bool isReached() const { return !isEager() && isSend == byGet; }
  };
  // Messages of one direction and kind, which are counted together.
  enum Sequence : uint8_t {
    kEagerSends,
    kEagerReceives,
    kPutSends,
    kPutReceives,
    kGetSends,
    kGetReceives,
    kListSends,
    kListReceives,
    kSequences
  };
  // The most messages of a sequence that may be under way before the other side has taken any of
  // them.
  static uint32_t slotsOf(Sequence sequence) {
    return sequence == kListSends || sequence == kListReceives ? DeviceArea::kListSlots
                                                               : DeviceArea::kSlots;
  }
  static Sequence sequenceOf(const Item& item) {
    if (item.list != nullptr) return item.isSend ? kListSends : kListReceives;
    if (item.isEager()) return item.isSend ? kEagerSends : kEagerReceives;
    if (item.byGet) return item.isSend ? kGetSends : kGetReceives;
    return item.isSend ? kPutSends : kPutReceives;
  }
  // One GPU of this side, and its lowered Programs for messages.
  struct Runner {
    DeviceExecutor* executor = nullptr;
    std::unique_ptr<RegionNames> names;  // before the programs that refer to it
    std::unique_ptr<StepList> eagerSend, eagerRecv, putSend, putHead, putTail;
    std::unique_ptr<StepList> getHead, getTail, getRecv;
    std::unique_ptr<StepList> listHead, listTail, listSend;
  };
  enum class Mode : uint8_t { kUnused, kLive, kCaptured };
  struct Numbers {
    std::array<uint64_t, kSequences> next{};
    uint64_t sends = 0;  // posted live, of all kinds but lists, as the next
    uint64_t receives = 0;
    Mode sendMode = Mode::kUnused;
    Mode receiveMode = Mode::kUnused;
  };
  // The parts of messages, in the order in which a group enqueues them: first all that only store,
  // then those that wait for the peer's stores, at the end those that wait for the peer's receives.
  enum class Part : uint8_t { kHead, kSend, kReceive, kTail };

  // Makes this side's area. The caller, which owns the control messages (notes), must tell the
  // other side where it is.
  static Result<std::shared_ptr<DeviceLane>> create(const LaneEnvironment& env,
                                                    DeviceExecutor& executor);
  ~DeviceLane();

  RegionName area() const;
  // Of the GPU where the area lies.
  DeviceExecutor& executor() const { return *first_.executor; }
  const std::shared_ptr<PeerCore>& peer() const { return peer_; }
  uint32_t rank() const { return rank_; }

  // kDeviceArea, kDeviceRegion, kDeviceReady, kDeviceWaits and kDeviceEnd. Progress thread.
  void take(const LaneNote& note);
  // Imports that have come, and regions that their owner wants back. One thread at a time.
  bool turn();

  // --- Any thread ---
  // The other side's area has come, or will never: after the next turn() see health().
  bool arrived() const {
    const auto state = peerArea_->state.load(std::memory_order_acquire);
    return settled_.load(std::memory_order_acquire) || state == ImportSlot::State::kReady ||
           state == ImportSlot::State::kFailed;
  }
  // OK while messages can be posted. Without a lock as long as it is.
  Status health() const;
  // Tells the other side where `region` is, which its GPU will read or write, so that it need not
  // wait for that.
  void announce(const RegionRecord& region, bool toRead);
  // The other side has said that its GPU can reach it: messages need not wait for that any more.
  bool isReachable(const RegionRecord& region, bool toRead) const;
  // Memory that the peer's GPU has to write to, or read from: kPermissionDenied where it may not,
  // kNotSupported where it cannot.
  Status check(const Item& item) const;
  // The runner of one of this side's GPUs; that of another GPU than the first is made when it is
  // first asked for. Errors: kNotSupported (that GPU cannot reach the first one's memory), and
  // those of DeviceExecutor.
  Result<const Runner*> runnerOn(DeviceExecutor& executor);
  // Makes memory of this side reachable for a GPU of this side: pins host memory and opens memory
  // of another GPU, once; does nothing for memory of the GPU itself. Errors: kNotSupported (the
  // GPUs have no path to each other), those of DeviceExecutor::pin and open, kClosed.
  static Status open(RegionRecord& region, DeviceExecutor& executor);
  // kNotPrepared for a message in a graph whose memory the other side cannot reach yet.
  Status checkPrepared(const Item& item) const;

  // Locked from the first claim until the launches are enqueued: numbers are in the order of work.
  void lock() PEERLANE_ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() PEERLANE_RELEASE(mutex_) { mutex_.unlock(); }
  void assertLocked() const PEERLANE_ASSERT_HELD(mutex_) {}
  // Gives the message the next number. `captured`: from now on the device's memory keeps the
  // numbers, and `number` is 0. One side of a direction must do only the one or only the other.
  Status claim(const Item& item, bool captured, uint64_t& number) PEERLANE_REQUIRES(mutex_);
  // numbers() and restore(): restore the sequence numbers after a post that failed before anything
  // was enqueued.
  Numbers numbers() const PEERLANE_REQUIRES(mutex_) { return numbers_; }
  void restore(const Numbers& numbers) PEERLANE_REQUIRES(mutex_) {
    numbers_ = numbers;
    sent_.rewind(numbers.sends);
    received_.rewind(numbers.receives);
  }
  // The place of the message that was claimed last: in its direction, whatever its kind; of a list,
  // among the lists. For live posts.
  uint64_t placeOf(const Item& item) const PEERLANE_REQUIRES(mutex_) {
    if (item.list != nullptr) return numbers_.next[sequenceOf(item)] - 1;
    return (item.isSend ? numbers_.sends : numbers_.receives) - 1;
  }
  // The launches of one part of a message. `fault` becomes 1 when the lengths differ, and
  // kReleasedFault when the message was let go.
  void add(const Item& item, const Runner& runner, uint64_t number, bool captured, Part part,
           std::atomic<uint64_t>* fault, std::vector<StepCall>& calls);
  void began(uint32_t posts = 1) { pending_.begin(posts); }
  void ended() { pending_.end(); }
  bool idle() const { return pending_.none(); }

  // The message at `place` of its direction has not been met for a while: asks the other side why.
  // If it can never be met, the lane ends at both sides: kSizeMismatch (one side has it short and
  // one long), kInvalidArgument (one by get and one by put), kClosed (its region, or the one of a
  // list that `item` names, is being unregistered).
  void ask(const Item& item, uint64_t place);

  // Ends the lane, at both sides.
  void fail(const Status& why, bool tellPeer);
  // Nothing is under way any more; the area goes.
  void retire();

  std::string describe() const;

 private:
  struct Named {
    std::shared_ptr<ImportSlot> slot;
    RegionName name;
    bool toRead = false;
    bool entered = false;  // its gate is held
    bool known = false;    // the devices find it
  };
  DeviceLane(const LaneEnvironment& env, DeviceExecutor& executor);
  Status prepare();
  void reach(const RegionName& area);
  void takeRegion(const LaneNote& note);
  void takeReady(const LaneNote& note);
  void answer(const LaneNote& note);
  bool hasForgotten(const RegionName& name, bool toRead, bool isList, uint64_t place);
  bool takeImports();
  Status checkImport(const Named& named) const;
  Status makeKnown(const Named& named);
  Result<std::byte*> addressFor(const Runner& runner, const Named& named) const;
  void leaveOut(const Named& named, const Status& why);
  Status whyUnreached() const;
  Status addName(const Runner& runner, const Named& named) const PEERLANE_REQUIRES(stateMutex_);
  bool forgetRegions();
  static bool isWantedBack(const Named& named) {
    return named.slot->state.load(std::memory_order_acquire) == ImportSlot::State::kReady &&
           !named.slot->region->gate.open();
  }
  bool forgetBesideNoPost() PEERLANE_REQUIRES(mutex_);
  bool leaveAreaBesideNoPost() PEERLANE_REQUIRES(mutex_);
  // The area is to be left.
  bool mustLeave() const PEERLANE_REQUIRES(stateMutex_) {
    return areaEntered_ && idle() && !peerArea_->region->gate.open();
  }
  bool leaveArea();
  void setFailure(const Status& why) PEERLANE_REQUIRES(stateMutex_);
  // Memory: device_lane_memory.cc.
  Status openImport(ImportedRegion& region) const;
  Status whyNotReached(const LaneNote& note) const;
  Status outOfReach(const Item& item, const std::string& why) const;
  // Runners: device_lane_runner.cc.
  Status makeRunner(Runner& runner) const;
  Result<std::unique_ptr<Runner>> makeOther(DeviceExecutor& executor) const;
  // Null: none was made. Not analysed: others_ is written under both mutexes, so either is enough.
  const Runner* otherOn(const DeviceExecutor& executor) const
      PEERLANE_REQUIRES(runnersMutex_) PEERLANE_NO_THREAD_SAFETY_ANALYSIS;
  // Direct gets: device_lane_get.cc.
  static Status makeGets(Runner& runner, std::byte* mine, std::byte* theirs);
  void addGet(const Item& item, const Runner& runner, uint64_t number, bool captured, Part part,
              std::atomic<uint64_t>* fault, std::vector<StepCall>& calls);
  // Lists: device_lane_list.cc.
  static Status makeLists(Runner& runner, std::byte* mine, std::byte* theirs);
  void addList(const Item& item, const Runner& runner, uint64_t number, bool captured, Part part,
               std::atomic<uint64_t>* fault, std::vector<StepCall>& calls);
  StepCall callOf(const std::unique_ptr<StepList>& steps, uint64_t number, bool captured,
                  Sequence sequence) const;

  const std::shared_ptr<PeerCore> peer_;
  const uint32_t rank_;
  const std::function<void(const LaneNote&)> sendNote_;

  std::shared_ptr<RegionRecord> area_;
  // A word of each sequence on a line of its own, and one of the lane's end (StepCall::ended).
  std::unique_ptr<Allocation> cursors_;
  std::atomic<uint64_t>* abort_ = nullptr;  // borrowed
  const std::shared_ptr<ImportSlot> peerArea_ = std::make_shared<ImportSlot>();
  Runner first_;
  std::atomic<bool> settled_{false};  // release after all of the above
  SplitCount pending_;                // posts whose streams have not passed them

  Mutex runnersMutex_;  // taken before stateMutex_; no turn takes it
  // Taken before stateMutex_. A poster holds it for as long as the driver blocks it, and a turn may
  // have to end that.
  TurnMutex mutex_{peer_->progress()};
  Numbers numbers_ PEERLANE_GUARDED_BY(mutex_);
  PostedItems sent_, received_;  // written under mutex_

  std::atomic<bool> failed_{false};  // release after failure_; acquire by health()
  mutable Mutex stateMutex_;
  Status failure_ PEERLANE_GUARDED_BY(stateMutex_);
  bool retired_ PEERLANE_GUARDED_BY(stateMutex_) = false;
  bool areaEntered_ PEERLANE_GUARDED_BY(stateMutex_) = false;
  using Reached = std::pair<uint64_t, uint64_t>;  // as messages name it: allocation, generation
  std::set<Reached> announced_ PEERLANE_GUARDED_BY(stateMutex_);
  std::set<Reached> reachable_ PEERLANE_GUARDED_BY(stateMutex_);
  std::vector<Named> named_ PEERLANE_GUARDED_BY(stateMutex_);  // regions of the peer
  Status unreached_
      PEERLANE_GUARDED_BY(stateMutex_);  // why one of them that is still there could not be reached
  // Of other GPUs, from their first use on; written under runnersMutex_, too.
  std::vector<std::unique_ptr<Runner>> others_ PEERLANE_GUARDED_BY(stateMutex_);
  Numbers forgottenAt_ PEERLANE_GUARDED_BY(stateMutex_);  // when one of them was last forgotten
};

}  // namespace peerlane
