// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/stream/device_message.h"

#include <algorithm>
#include <memory_resource>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "peerlane/channel/protocol/device_area.h"
#include "peerlane/channel/transfer/device_transfer.h"
#include "peerlane/core/recycled_memory.h"

namespace peerlane {
namespace {

// How long a message waits before the other side is asked about it; then twice as long, and so on.
constexpr std::chrono::milliseconds kAskFirst{20};
constexpr std::chrono::seconds kAskMost{2};

std::span<RegionRecord* const> regionsOf(const PostedMessage& message) {
  if (message.list) return message.list->regions();
  return {&message.region, 1};
}

// The message as far as it is about one of its regions.
DeviceLane::Item itemOf(const PostedMessage& message, const RegionRecord& region) {
  DeviceLane::Item item = message.item;
  item.region = &region;
  return item;
}

// The scratch memory of a post while it is made; each thread keeps one, so that no post allocates.
struct Scratch {
  struct Counted {
    DeviceLane* lane;
    DeviceLane::Sequence sequence;
    uint64_t count;
    size_t lastCall;
  };
  struct Numbered {
    PostedMessage* message = nullptr;
    size_t counted = 0;
    uint64_t number = 0;
    size_t round = 0;
  };
  std::vector<Counted> counted;
  std::vector<Numbered> numbered;
  std::vector<StepCall> calls;
  std::vector<DeviceLane::Numbers> before;

  void clear() {
    counted.clear();
    numbered.clear();
    calls.clear();
  }
  // Of the message's lane and sequence.
  size_t countedOf(const PostedMessage& message) {
    const DeviceLane::Sequence sequence = DeviceLane::sequenceOf(message.item);
    const auto found = std::find_if(counted.begin(), counted.end(), [&](const Counted& known) {
      return known.lane == message.lane && known.sequence == sequence;
    });
    const auto index = static_cast<size_t>(found - counted.begin());
    if (found == counted.end()) counted.push_back({message.lane, sequence, 0, 0});
    return index;
  }
};

class DeviceMessage final : public Operation, public Task {
 public:
  DeviceMessage(std::shared_ptr<void> owner, std::span<const PostedMessage> messages,
                DeviceStream stream, std::chrono::nanoseconds timeout)
      : Operation(messages.front().lane->peer()->progress()),
        owner_(std::move(owner)),
        messages_(messages.begin(), messages.end(), &few_),
        executor_(*messages_.front().runner->executor),
        stream_(stream),
        timeout_(timeout) {
    lane_ = messages_.front().lane;
    if (std::all_of(messages_.begin(), messages_.end(),
                    [this](const PostedMessage& message) { return message.lane == lane_; }))
      return;
    for (const PostedMessage& message : messages_) lanes_.push_back(message.lane);
    std::sort(lanes_.begin(), lanes_.end());
    lanes_.erase(std::unique(lanes_.begin(), lanes_.end()), lanes_.end());
  }
  ~DeviceMessage() override;

  static Result<Transfer> post(const std::shared_ptr<DeviceMessage>& self);

  Status wait(std::chrono::nanoseconds timeout) override;
  Turn turn() override;
  std::string describe() const override;

 private:
  // By address: the order in which they are locked.
  std::span<DeviceLane* const> lanes() const {
    return lanes_.empty() ? std::span(&lane_, 1) : std::span(lanes_);
  }
  Status hold();
  Status holdRegion(const PostedMessage& message, RegionRecord& region);
  Status makeCalls(Scratch& scratch);
  // Not analysed, both: a loop takes the locks of all lanes, and a loop lets go of them.
  void lockLanes(Scratch& scratch) PEERLANE_NO_THREAD_SAFETY_ANALYSIS;
  void unlockLanes(const Scratch& scratch, bool takesBack) PEERLANE_NO_THREAD_SAFETY_ANALYSIS;
  Status enqueue();
  Status trouble() const;
  void askWhenDue();
  Status outcome() const;
  bool isFaulty() const;
  std::string whatWasNotMet() const;
  void letGo();
  uint64_t bytes() const;

  const std::shared_ptr<void> owner_;
  // One message, as most are, lies in the object.
  alignas(PostedMessage) std::byte room_[2 * sizeof(PostedMessage)];
  std::pmr::monotonic_buffer_resource few_{room_, sizeof(room_)};
  std::pmr::vector<PostedMessage> messages_;
  DeviceExecutor& executor_;
  const DeviceStream stream_;
  const std::chrono::nanoseconds timeout_;
  // From the first turn on, which spares the poster a look at the clock.
  mutable std::optional<Progress::Clock::time_point> deadline_;
  Progress::Clock::time_point askAt_{};  // of turns, as the next two
  Progress::Clock::duration askAgain_{};
  bool isTakenBack_ = false;
  DeviceLane* lane_ = nullptr;
  std::vector<DeviceLane*> lanes_;  // if they are several
  bool isCaptured_ = false;
  size_t held_ = 0;  // gates of so many regions
  bool began_ = false;
  bool failed_ = false;
  DevicePost post_;
  std::unique_ptr<CapturedWork> work_;
  std::atomic<uint64_t>* fault_ = nullptr;  // borrowed
  // The graph's word that it and its executables are gone; there is one if it is captured.
  std::shared_ptr<std::atomic<bool>> gone_;
};

DeviceMessage::~DeviceMessage() {
  if (messages_.front().lane->peer()->forked()) return;
  // Dropped by an engine that stopped: streams must not hang for it.
  if (began_ && !done())
    for (DeviceLane* lane : lanes())
      lane->fail(Status(Code::kClosed, "the context is gone"), /*tellPeer=*/false);
  if (isCaptured_ && began_ && !gone_->load(std::memory_order_acquire)) (void)work_.release();
  letGo();
}

void DeviceMessage::letGo() {
  work_.reset();
  for (const PostedMessage& message : messages_)
    for (RegionRecord* region : regionsOf(message)) {
      if (held_ == 0) break;
      region->gate.leave();
      --held_;
    }
  if (fault_ != nullptr) executor_.returnWord(std::exchange(fault_, nullptr), post_);
  if (!std::exchange(began_, false)) return;
  for (DeviceLane* lane : lanes()) lane->ended();
  executor_.waitEnded();
  if (!isCaptured_) progress_.deviceStoresSeen();
}

Status DeviceMessage::hold() {
  for (const PostedMessage& message : messages_)
    for (RegionRecord* region : regionsOf(message))
      PEERLANE_RETURN_IF_ERROR(holdRegion(message, *region));
  PEERLANE_ASSIGN(fault_, executor_.borrowWord());
  return Status::ok();
}

Status DeviceMessage::holdRegion(const PostedMessage& message, RegionRecord& region) {
  const DeviceLane::Item item = itemOf(message, region);
  PEERLANE_RETURN_IF_ERROR(message.lane->check(item));
  if (isCaptured_) PEERLANE_RETURN_IF_ERROR(message.lane->checkPrepared(item));
  if (!region.gate.enter()) return region.whyClosed();
  ++held_;
  return item.isReached() ? Status::ok() : DeviceLane::open(region, executor_);
}

bool DeviceMessage::isFaulty() const {
  return fault_ != nullptr && fault_->load(std::memory_order_acquire) != 0;
}

// First everything that only stores, then everything that waits for the peer's stores: so no order
// of posting of the two sides can leave both waiting.
Status DeviceMessage::makeCalls(Scratch& scratch) {
  scratch.clear();
  size_t rounds = 0;
  for (PostedMessage& message : messages_) {
    Scratch::Numbered one{.message = &message, .counted = scratch.countedOf(message)};
    message.lane->assertLocked();  // by enqueue()
    PEERLANE_RETURN_IF_ERROR(message.lane->claim(message.item, isCaptured_, one.number));
    const uint64_t count = scratch.counted[one.counted].count++;
    if (isCaptured_) one.number = count;  // from the cursor on
    message.place = isCaptured_ ? 0 : message.lane->placeOf(message.item);
    one.round = count / DeviceLane::slotsOf(DeviceLane::sequenceOf(message.item));
    rounds = std::max(rounds, one.round + 1);
    scratch.numbered.push_back(one);
  }
  using Part = DeviceLane::Part;
  for (size_t round = 0; round < rounds; ++round)
    for (const Part part : {Part::kHead, Part::kSend, Part::kReceive, Part::kTail})
      for (const Scratch::Numbered& one : scratch.numbered) {
        if (one.round != round) continue;
        const size_t before = scratch.calls.size();
        one.message->lane->add(one.message->item, *one.message->runner, one.number, isCaptured_,
                               part, fault_, scratch.calls);
        if (scratch.calls.size() != before) scratch.counted[one.counted].lastCall = before;
      }
  if (!isCaptured_) return Status::ok();
  // The last launch of each sequence moves its cursor: all others count from where it was.
  for (const Scratch::Counted& counted : scratch.counted)
    scratch.calls[counted.lastCall].advance = counted.count;
  return Status::ok();
}

void DeviceMessage::lockLanes(Scratch& scratch) {
  for (DeviceLane* lane : lanes()) {
    lane->lock();
    scratch.before.push_back(lane->numbers());
  }
}

void DeviceMessage::unlockLanes(const Scratch& scratch, bool takesBack) {
  size_t i = 0;
  for (DeviceLane* lane : lanes()) {
    if (began_) lane->began();
    if (takesBack) lane->restore(scratch.before[i]);
    ++i;
    lane->unlock();
  }
}

Status DeviceMessage::enqueue() {
  if (isCaptured_) gone_ = std::make_shared<std::atomic<bool>>(false);
  thread_local Scratch scratch;
  std::vector<StepCall>& calls = scratch.calls;
  scratch.before.clear();
  lockLanes(scratch);
  Status status = makeCalls(scratch);
  if (status.isOk() && isCaptured_) {
    auto captured = executor_.captureSteps(stream_, calls);
    status = captured.status();
    if (captured.isOk()) work_ = std::move(*captured);
  } else if (status.isOk()) {
    auto posted = executor_.postSteps(stream_, calls);
    status = posted.status();
    if (posted.isOk()) post_ = *posted;
  }
  const bool isBroken = status.code() == Code::kSystem;  // some launches may be enqueued
  began_ = status.isOk();
  unlockLanes(scratch, /*takesBack=*/!began_ && !isBroken);
  if (isBroken)
    for (DeviceLane* lane : lanes()) lane->fail(status, /*tellPeer=*/true);
  return status;
}

Result<Transfer> DeviceMessage::post(const std::shared_ptr<DeviceMessage>& self) {
  self->isCaptured_ = self->executor_.isCapturing(self->stream_);
  PEERLANE_RETURN_IF_ERROR(self->hold());
  for (const PostedMessage& message : self->messages_)
    for (const RegionRecord* region : regionsOf(message))
      if (message.item.isReached()) message.lane->announce(*region, /*toRead=*/message.item.isSend);
  PEERLANE_RETURN_IF_ERROR(self->enqueue());
  if (self->isCaptured_) {
    PEERLANE_RETURN_IF_ERROR(self->executor_.keepByGraph(
        self->stream_, [gone = self->gone_] { gone->store(true, std::memory_order_release); }));
    self->progress_.add(self);
  } else {
    self->progress_.expectDeviceStores();
    self->progress_.addQuietly(self);
  }
  return Transfer(self);
}

uint64_t DeviceMessage::bytes() const {
  uint64_t sum = 0;
  for (const PostedMessage& message : messages_) sum += message.item.bytes;
  return sum;
}

Status DeviceMessage::wait(std::chrono::nanoseconds timeout) {
  if (isCaptured_ && !done())
    return Status(Code::kNotSupported,
                  "the message is part of a CUDA graph, which ends it at every replay: synchronise "
                  "the stream that the graph was launched on");
  const auto longest = std::min<std::chrono::nanoseconds>(timeout, spinTimeFor(bytes()));
  (void)progress_.spinFor([this] { return done(); }, longest);
  return Operation::wait(timeout);
}

std::string DeviceMessage::whatWasNotMet() const {
  const PostedMessage& first = messages_.front();
  return std::string(first.item.isSend ? "a send to" : "a receive from") + " rank " +
         std::to_string(first.lane->rank()) + " on a stream was not met within " +
         durationInWords(timeout_) +
         ". Where both sides receive before they send on one "
         "stream, or both send a long message before they receive, each waits for a message that "
         "comes after its own wait: post them as a group";
}

// Why the lanes are to be ended although the stream is still there.
Status DeviceMessage::trouble() const {
  if (cancelled())
    return Status(Code::kCancelled, "a message on a stream was cancelled, which ends its lane");
  for (const PostedMessage& message : messages_) PEERLANE_RETURN_IF_ERROR(message.lane->health());
  if (isCaptured_) return Status::ok();
  if (!deadline_) deadline_ = Progress::deadlineIn(timeout_);
  if (Progress::Clock::now() >= *deadline_) return Status(Code::kTimeout, whatWasNotMet());
  return Status::ok();
}

// It may be that the other side's streams cannot meet it, which their GPUs do not see.
void DeviceMessage::askWhenDue() {
  const auto now = Progress::Clock::now();
  const auto isGoing = [](const RegionRecord* region) { return !region->gate.open(); };
  const bool isTakenBack =
      std::any_of(messages_.begin(), messages_.end(), [&](const PostedMessage& message) {
        const auto regions = regionsOf(message);
        return message.item.isReached() && std::any_of(regions.begin(), regions.end(), isGoing);
      });
  if (askAgain_ == Progress::Clock::duration{} || isTakenBack != isTakenBack_) {
    isTakenBack_ = isTakenBack;
    askAgain_ = kAskFirst;
    askAt_ = now + askAgain_;
  }
  if (now < askAt_) return;
  askAgain_ = std::min<Progress::Clock::duration>(2 * askAgain_, kAskMost);
  askAt_ = now + askAgain_;
  for (const PostedMessage& message : messages_)
    for (const RegionRecord* region : regionsOf(message))
      message.lane->ask(itemOf(message, *region), message.place);
}

// Call it once the stream has passed the messages. A message that was met has happened, even if the
// lane has ended since. Once a message on a stream was abandoned, later sends on that stream to
// that peer fail.
Status DeviceMessage::outcome() const {
  const uint64_t fault = fault_ == nullptr ? 0 : fault_->load(std::memory_order_acquire);
  if (fault == 0) return Status::ok();
  for (const PostedMessage& message : messages_) PEERLANE_RETURN_IF_ERROR(message.lane->health());
  if (fault == kReleasedFault) return Status(Code::kClosed, "a message on a stream was abandoned");
  const bool hasList = std::any_of(messages_.begin(), messages_.end(),
                                   [](const PostedMessage& message) { return message.list; });
  return Status(Code::kSizeMismatch,
                hasList ? "sender and receiver of a list differ in the number or the sizes of its "
                          "pieces"
                        : "sender and receiver of a message differ in its length");
}

Task::Turn DeviceMessage::turn() {
  const bool isOver = isCaptured_ ? gone_->load(std::memory_order_acquire) : post_.ended();
  if (isOver) {
    const Status status = outcome();
    letGo();
    if (!done()) markEnded(status);  // a captured message that failed has been told so
    return Turn::kFinished;
  }
  if (failed_) return Turn::kIdle;
  Status why = trouble();
  if (why.isOk() && isCaptured_ && isFaulty()) why = outcome();
  if (why.isOk() && !isCaptured_) askWhenDue();
  if (why.isOk()) return Turn::kIdle;
  failed_ = true;
  for (DeviceLane* lane : lanes()) lane->fail(why, /*tellPeer=*/true);
  if (isCaptured_) markEnded(why);
  return Turn::kMoved;
}

std::string DeviceMessage::describe() const {
  if (isCaptured_ ? gone_->load(std::memory_order_acquire) : post_.ended()) return {};
  std::string text = isCaptured_ ? "captured into a graph of " : "on a stream of ";
  text += executor_.device().toString() + ":";
  for (const PostedMessage& message : messages_)
    text += std::string(message.item.isSend ? " send to " : " recv from ") +
            std::to_string(message.lane->rank()) + " (" + std::to_string(message.item.bytes) +
            " bytes" +
            (message.list ? " in " + std::to_string(message.list->count()) + " pieces)" : ")");
  return text;
}

}  // namespace

Result<Transfer> postMessages(std::shared_ptr<void> owner, std::span<const PostedMessage> messages,
                              DeviceStream stream, std::chrono::nanoseconds timeout) {
  return DeviceMessage::post(std::allocate_shared<DeviceMessage>(
      RecyclingAllocator<DeviceMessage>(), std::move(owner), messages, stream, timeout));
}

}  // namespace peerlane
