// SPDX-License-Identifier: Apache-2.0
//
// CommunicatorCore: the state and work of one Communicator. For each other rank it owns the two
// ends of lanes and the area that the peer writes, and exchanges control messages (notes). The
// progress engine turns it until it was closed and everything has ended. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peerlane/channel/communicator/communicator.h"
#include "peerlane/channel/message/host/message_receiver.h"
#include "peerlane/channel/message/host/message_sender.h"
#include "peerlane/channel/message/host/span_cache.h"
#include "peerlane/channel/message/staged/staged_lane.h"
#include "peerlane/channel/message/stream/device_lane.h"
#include "peerlane/channel/message/stream/device_message.h"
#include "peerlane/core/mutex.h"

namespace peerlane {

class CommunicatorCore final : public Task, public std::enable_shared_from_this<CommunicatorCore> {
 public:
  // One message of a post.
  struct Wanted {
    Rank rank = 0;
    bool isSend = false;
    const Region* region = nullptr;  // null: `address` is unregistered memory
    uint64_t offset = 0;
    std::byte* address = nullptr;
    uint64_t bytes = 0;
    Part part{};
    // One message in these pieces, instead of all of the above but rank and direction.
    bool isList = false;
    std::span<const MessageBlock> pieces{};
  };

  CommunicatorCore(const std::vector<Peer>& peers, Rank own, const CommunicatorOptions& options);

  // Exchanges areas with every other rank. Call it once, before anything else.
  Status bootstrap(std::chrono::nanoseconds timeout);

  Rank own() const { return own_; }
  uint32_t size() const { return static_cast<uint32_t>(pairs_.size()); }
  // kNotSupported in a forked child; OK else.
  Status usable() const;
  Peer peer(Rank rank) const;
  Result<Transfer> post(std::span<const Wanted> messages, const MessageOptions& options);
  Status prepare(Rank rank, std::span<const Region> regions, std::chrono::nanoseconds timeout);
  uint64_t stagingRingBytes(Rank rank) const;
  std::string explain(Rank rank) const;
  void close();

  Turn turn() override;
  std::string describe() const override;

 private:
  // The state shared with one other rank. The lanes refer to `env`, so they are destroyed first.
  struct Pair {
    LaneEnvironment env;
    uint32_t channel = 0;  // of the notes
    std::unique_ptr<LaneSender> sender;
    std::unique_ptr<LaneReceiver> receiver;
    std::shared_ptr<DeviceLane> device;  // where both sides have GPUs; else null
    // Where both sides have GPUs and no link between them. During bootstrap() both pointers are
    // written under mutex.
    std::shared_ptr<StagedLane> staged;
    bool finished = false;           // said goodbye; progress turns only
    std::atomic<bool> ready{false};  // has lanes; release after them

    Mutex mutex;
    std::optional<LaneNote> hello PEERLANE_GUARDED_BY(mutex);
    std::vector<LaneNote> early PEERLANE_GUARDED_BY(mutex);  // came before the lanes were made
    std::atomic<bool> answered{false};
    bool hasLinkArea PEERLANE_GUARDED_BY(mutex) = false;
    RegionName stagedArea;  // once hasStagedArea is set
    std::atomic<bool> hasStagedArea{false};
  };

  void claim(Pair& pair);
  Status open(Pair& pair);
  void subscribe(Pair& pair);
  Status openDevice(Pair& pair);
  Status reach(Pair& pair, Progress::Clock::time_point deadline);
  Status reachDevice(Pair& pair, Progress::Clock::time_point deadline);
  // Messages on streams that are staged: communicator_staging.cc.
  uint64_t stagingBytes(const PeerCore& peer) const;
  StagingOffer stagingOffer(const Pair& pair) const;
  std::string whyNotStaged(const Pair& pair) const;
  Status openStaged(Pair& pair);
  Status reachStaged(Pair& pair, Progress::Clock::time_point deadline);
  void deliverToStreams(Pair& pair, const LaneNote& note) PEERLANE_REQUIRES(pair.mutex);
  Result<bool> mustStage(std::span<const Wanted> messages) const;
  Result<Transfer> postStaged(std::span<const Wanted> messages, const MessageOptions& options);
  Status prepareStaged(Pair& pair, std::span<const Region> regions);
  std::string explainStaged(const Pair& pair) const;
  Result<std::shared_ptr<RegionRecord>> streamMemory(const Wanted& wanted) const;
  void onNote(Rank rank, const std::vector<std::byte>& bytes);
  void deliver(Pair& pair, const LaneNote& note) PEERLANE_REQUIRES(pair.mutex);
  void finish(Pair& pair);
  void stirIfRevoked();
  Result<Pair*> pairOf(Rank rank) const;
  Status checkDevice(const Pair& pair) const;
  static Result<bool> isByGet(const Wanted& wanted, Protocol protocol);
  Result<Transfer> postOnHost(std::span<const Wanted> messages, const MessageOptions& options);
  Result<Transfer> postOnStream(std::span<const Wanted> messages, const MessageOptions& options);
  Result<Transfer> postOn(DeviceExecutor* executor, std::span<const Wanted> messages,
                          const MessageOptions& options);
  Result<PostedMessage> single(const Wanted& wanted, DeviceLane& lane, Protocol protocol) const;
  Result<PostedMessage> list(const Wanted& wanted, DeviceLane& lane) const;
  Status addItem(MessageBatch& batch, const Wanted& wanted, const Pair& pair, Protocol protocol);
  Result<MessageKind> kindOf(const Wanted& wanted, const Pair& pair, Protocol protocol,
                             MessageItem& item) const;
  std::vector<std::shared_ptr<PeerCore>> peers() const;

  const Rank own_;
  const CommunicatorOptions options_;
  uint32_t eagerBytes_ = 0;
  std::vector<std::unique_ptr<Pair>> pairs_;  // by rank; null for the own one
  PeerCore* first_ = nullptr;                 // any of the peers, for what belongs to the context
  std::optional<SpanCache> spans_;
  uint64_t revocations_ = 0;  // of the context, when last looked at; in turns
  std::atomic<bool> closed_{false};
};

// Numbers the communicators on one connection, alike at both sides.
class CommunicatorNumbers {
 public:
  uint32_t claim() { return next_.fetch_add(1, std::memory_order_relaxed); }
  static std::shared_ptr<CommunicatorNumbers> of(PeerCore& peer);

 private:
  std::atomic<uint32_t> next_{0};
};

// Message channels that the library itself uses, beyond those of users.
inline constexpr uint32_t kCommunicatorChannels = 0x8000'0000u;
inline constexpr uint32_t kBootstrapChannel = 0xffff'fffeu;

}  // namespace peerlane
