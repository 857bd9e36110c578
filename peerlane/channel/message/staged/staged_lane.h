// SPDX-License-Identifier: Apache-2.0
//
// StagedLane: messages on streams between this rank and another where no link joins their GPUs.
// They are staged through rings of pinned host memory, one at each side for each direction:
//
//   a GPU copies into its ring | any link, from ring to ring | the other GPU copies out of its ring
//
// Chunks of one message, and those of the next ones, are in all three steps at once. The bytes go
// from ring to ring as messages of a pair of lanes that belong to it alone (LaneSender,
// LaneReceiver): for each message on a stream a header, then its chunks. So they never hold up
// messages that are on no stream, and any link will do. Not a post: StagedPost has the stream.
//
// Both directions keep the order of posting, whatever the streams do meanwhile: a message whose
// stream has not come to it holds up the later ones of its direction. A message that is cancelled,
// or not met in time, ends the lane, as with DeviceLane, and so does a message in another number of
// pieces; lengths that differ end the message alone. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/channel/message/host/message_receiver.h"
#include "peerlane/channel/message/host/message_sender.h"
#include "peerlane/channel/message/staged/staged_message.h"
#include "peerlane/core/mutex.h"

namespace peerlane {

class StagedLane {
 public:
  // Makes the area of its lanes. `ringBytes`: of the side that has less; `why`: the reason for
  // staging.
  static Result<std::shared_ptr<StagedLane>> create(const LaneEnvironment& env, uint64_t ringBytes,
                                                    std::string why);
  ~StagedLane();
  StagedLane(const StagedLane&) = delete;
  StagedLane& operator=(const StagedLane&) = delete;

  RegionName area() const;
  // Call it once, when the other side's area is there, before anything is posted.
  Status open(std::shared_ptr<ImportedRegion> peerArea);
  const std::shared_ptr<PeerCore>& peer() const { return env_.peer; }
  uint32_t rank() const { return env_.rank; }
  uint64_t ringBytes() const { return ringBytes_; }
  const std::string& why() const { return why_; }

  // --- Any thread ---
  // OK while messages can be posted.
  Status health() const;
  // Makes the rings and pins them, unless that was done before. Call it outside of every lock that
  // a turn takes: pinning blocks while the queue of a GPU is full.
  Status prepare(DeviceExecutor& executor);
  // Announces so many messages, before which the lane is not over: as many must follow by take(),
  // or by end() where nothing was enqueued. Errors: as health().
  Status begin(uint64_t messages);
  void end(uint64_t messages) { pending_.fetch_sub(messages, std::memory_order_acq_rel); }
  // The poster holds it from claim() until it has enqueued the stream's work and called take(), so
  // that numbers follow the order of work. No turn takes it.
  void lockPosting() PEERLANE_ACQUIRE(postingMutex_) { postingMutex_.lock(); }
  void unlockPosting() PEERLANE_RELEASE(postingMutex_) { postingMutex_.unlock(); }
  void assertPosting() const PEERLANE_ASSERT_HELD(postingMutex_) {}
  struct Claims {
    std::array<uint64_t, 2> numbers{};
    std::array<uint64_t, 2> positions{};
  };
  Claims claims() const PEERLANE_REQUIRES(postingMutex_);
  void restore(const Claims& claims) PEERLANE_REQUIRES(postingMutex_);
  // Gives the message its number, its chunks and their places.
  void claim(StagedMessage& message) PEERLANE_REQUIRES(postingMutex_);
  Result<std::unique_ptr<DeviceProgram>> programOf(const StagedMessage& message,
                                                   const StagedMessage::Chunk& chunk,
                                                   DeviceExecutor& executor);
  void take(std::shared_ptr<StagedMessage> message);
  // Ends the lane at both sides: nothing more is sent, and no stream is held up any more.
  void fail(const Status& why, bool tellPeer);
  // kDeviceEnd.
  void takeEnd(const LaneNote& note);

  // --- Turns, one thread at a time ---
  bool turn();
  // Whether the lane has failed, and nothing of this side touches the peer's memory.
  bool over() const { return idle() && sender_->over() && receiver_->over(); }
  bool idle() const { return pending_.load(std::memory_order_acquire) == 0; }
  // Gives up area and ring. Requires: nothing is under way any more.
  void retire();

  std::string describe() const;

 private:
  // A position in the order of a direction: a message, and one of its items. The items of a message
  // are its header and its chunks.
  struct Place {
    uint64_t number = 0;
    size_t item = 0;
  };
  struct Flow {
    std::deque<std::shared_ptr<StagedMessage>> messages;  // not over, by number
    uint64_t first = 0;                                   // the number of the first of them
    Place used;                                           // the first chunk that is not done
    Place room;                                           // the next chunk to get room in the ring
    Place wire;                                           // the next item to go on the wire
    uint64_t end() const { return first + messages.size(); }
    StagedMessage& at(uint64_t number) { return *messages[number - first]; }
  };

  StagedLane(const LaneEnvironment& env, uint64_t ringBytes, std::string why);
  ChunkRing& ringOf(bool isSend) { return rings_[isSend ? 0 : 1]; }
  std::byte* placeOf(const StagedMessage& message, const StagedMessage::Chunk& chunk);
  bool takeIncoming();
  bool failLanes();
  bool advance(Flow& flow, bool isSend);
  bool giveRoom(Flow& flow, bool isSend);
  uint64_t usedFrom(Flow& flow, uint64_t otherwise);
  bool putOnWire(Flow& flow, bool isSend);
  bool send(StagedMessage& message, size_t item);
  bool receive(StagedMessage& message, size_t item);
  bool takeHeader(StagedMessage& message);
  bool lookAtWire(Flow& flow);
  bool lookAtChunk(StagedMessage& message, StagedMessage::Chunk& chunk);
  bool dropOver(Flow& flow);
  bool failAll(Flow& flow, const Status& why);
  static bool isReceived(const StagedMessage& message, bool orOnTheWire);
  void endMessage(StagedMessage& message, const Status& why);
  std::shared_ptr<MessageBatch> transmit(LaneEnd& lane, const MessageItem& item,
                                         uint64_t count = 1);
  std::string nameOfMessage(const StagedMessage& message) const;

  LaneEnvironment env_;  // the lanes refer to it
  const uint64_t ringBytes_;
  const std::string why_;
  const std::function<void(const LaneNote&)> sendNote_;
  Metrics partMetrics_;  // chunks are no transfers: they are counted here, for nobody
  std::unique_ptr<LaneSender> sender_;
  std::unique_ptr<LaneReceiver> receiver_;

  Mutex ringMutex_;
  std::shared_ptr<RegionRecord> ring_;  // under ringMutex_ until it is there: sends, then receives
  bool isLogged_ = false;

  Mutex postingMutex_;
  std::array<uint64_t, 2> next_ PEERLANE_GUARDED_BY(postingMutex_){};  // numbers
  // Claims and rewinds under postingMutex_; fits() and placeOf() read no state.
  std::array<ChunkRing, 2> rings_;

  std::atomic<uint64_t> pending_{0};  // messages that are not over; grows under stateMutex_
  std::atomic<bool> hasIncoming_{false};
  std::atomic<bool> failed_{false};  // release after failure_
  mutable Mutex stateMutex_;         // held shortly
  std::vector<std::shared_ptr<StagedMessage>> incoming_ PEERLANE_GUARDED_BY(stateMutex_);
  Status failure_ PEERLANE_GUARDED_BY(stateMutex_);

  Flow sends_, receives_;  // turns, as the next
  bool areLanesFailed_ = false;
  Progress::Clock::time_point failedAt_{};
};

}  // namespace peerlane
