// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/staged/staged_post.h"

#include <algorithm>
#include <map>
#include <utility>

#include "peerlane/channel/message/stream/device_lane.h"
#include "peerlane/channel/operation/operation.h"
#include "peerlane/core/mutex.h"
#include "peerlane/program/device/device_health.h"
#include "peerlane/program/device/poison.h"

namespace peerlane {
namespace {

class StagedPost final : public Operation, public Task {
 public:
  StagedPost(std::shared_ptr<void> owner, std::span<const MessageToStage> messages,
             DeviceExecutor& executor, DeviceStream stream, std::chrono::nanoseconds timeout);
  ~StagedPost() override;

  static Result<Transfer> post(const std::shared_ptr<StagedPost>& self);

  Turn turn() override;
  std::string describe() const override;

 private:
  struct Part {
    StagedLane* lane = nullptr;
    std::shared_ptr<StagedMessage> message;
  };
  // One wait and one copy on the stream.
  struct Piece {
    size_t part = 0;
    size_t chunk = 0;
  };

  Metrics& metrics() const { return parts_.front().lane->peer()->metrics(); }
  StagedMessage::Chunk& chunkOf(const Piece& piece) {
    return parts_[piece.part].message->chunks[piece.chunk];
  }
  uint64_t countOn(const StagedLane* lane) const {
    return static_cast<uint64_t>(std::count_if(
        parts_.begin(), parts_.end(), [&](const Part& part) { return part.lane == lane; }));
  }
  Status hold();
  Status enqueue();
  Status preparePieces();
  void orderPieces();
  Status putOnStream();
  Status trouble() const;
  bool grant();
  Status outcome() const;
  void failLanes(const Status& why);
  void loseStream();
  void letGo();

  const std::shared_ptr<void> owner_;
  DeviceExecutor& executor_;
  const DeviceStream stream_;
  const std::chrono::nanoseconds timeout_;
  const Progress::Clock::time_point deadline_;
  std::vector<Part> parts_;
  std::vector<StagedLane*> lanes_;  // by address: the order in which they are locked
  size_t held_ = 0;                 // gates of so many regions
  std::vector<Piece> pieces_;       // in the order of the stream
  // The word that the stream waits for: so many pieces may go.
  std::atomic<uint64_t>* word_ = nullptr;  // borrowed
  size_t granted_ = 0;
  DevicePost passed_;
  bool isOnStream_ = false;  // something of it is
  bool isStopped_ = false;   // its lanes were ended because of it
  DeviceHealth health_;
};

StagedPost::StagedPost(std::shared_ptr<void> owner, std::span<const MessageToStage> messages,
                       DeviceExecutor& executor, DeviceStream stream,
                       std::chrono::nanoseconds timeout)
    : Operation(messages.front().lane->peer()->progress()),
      owner_(std::move(owner)),
      executor_(executor),
      stream_(stream),
      timeout_(timeout),
      deadline_(Progress::deadlineIn(timeout)) {
  for (const MessageToStage& wanted : messages) {
    auto message = std::make_shared<StagedMessage>();
    message->isSend = wanted.isSend;
    message->region = wanted.region;
    message->offset = wanted.offset;
    message->bytes = wanted.bytes;
    message->part = wanted.part;
    parts_.push_back({wanted.lane, std::move(message)});
    lanes_.push_back(wanted.lane);
  }
  std::sort(lanes_.begin(), lanes_.end());
  lanes_.erase(std::unique(lanes_.begin(), lanes_.end()), lanes_.end());
}

StagedPost::~StagedPost() {
  if (parts_.front().lane->peer()->forked()) return;
  letGo();
}

// Holds the posting locks of several lanes. Not analysed: a loop takes them, and a loop lets go.
class PostingLocks {
 public:
  PostingLocks() = default;
  ~PostingLocks() PEERLANE_NO_THREAD_SAFETY_ANALYSIS {
    for (StagedLane* lane : lanes_) lane->unlockPosting();
  }
  PostingLocks(const PostingLocks&) = delete;
  PostingLocks& operator=(const PostingLocks&) = delete;

  void add(StagedLane& lane) PEERLANE_NO_THREAD_SAFETY_ANALYSIS {
    lanes_.reserve(lanes_.size() + 1);
    lane.lockPosting();
    lanes_.push_back(&lane);
  }

 private:
  std::vector<StagedLane*> lanes_;
};

// Also of a post that an engine dropped when it stopped: the stream goes on.
void StagedPost::letGo() {
  Counter* const poisonings = passed_.ended() ? nullptr : &metrics().poisonings();
  for (const Part& part : parts_) {
    if (part.message->abort == nullptr) continue;
    if (!done()) abortWaits(*part.message->abort, poisonings);
  }
  if (word_ != nullptr) {
    poisonWord(*word_, poisonings);
    executor_.returnWord(std::exchange(word_, nullptr), passed_);
  }
  for (const Part& part : parts_)
    if (part.message->abort != nullptr)
      executor_.returnWord(std::exchange(part.message->abort, nullptr), passed_);
  for (; held_ > 0; --held_) parts_[held_ - 1].message->region->gate.leave();
  if (!std::exchange(isOnStream_, false)) return;
  executor_.waitEnded();
  progress_.deviceStoresSeen();
}

// --- Posting ---

Status StagedPost::hold() {
  if (executor_.isCapturing(stream_))
    return Status(Code::kNotSupported, "a message that is staged through host memory (" +
                                           lanes_.front()->why() + ") cannot be part of a graph");
  for (const Part& part : parts_) {
    RegionRecord& region = *part.message->region;
    if (!region.gate.enter()) return region.whyClosed();
    ++held_;
    PEERLANE_RETURN_IF_ERROR(DeviceLane::open(region, executor_));
  }
  // Before any lock is taken: both calls may ask the driver for memory, which blocks while a queue
  // is full.
  for (StagedLane* lane : lanes_) PEERLANE_RETURN_IF_ERROR(lane->prepare(executor_));
  PEERLANE_ASSIGN(word_, executor_.borrowWord());
  for (const Part& part : parts_) {
    PEERLANE_ASSIGN(part.message->abort, executor_.borrowWord());
  }
  return Status::ok();
}

// Round by round, the sends of each round first. So where two groups meet, no stream waits for
// bytes that come after its own wait at the other side.
void StagedPost::orderPieces() {
  std::map<std::pair<StagedLane*, bool>, size_t> counts;
  struct Placed {
    size_t round;
    bool isReceive;
    Piece piece;
  };
  std::vector<Placed> placed;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const StagedMessage& message = *parts_[i].message;
    size_t& count = counts[{parts_[i].lane, message.isSend}];
    for (size_t chunk = 0; chunk < message.chunks.size(); ++chunk)
      placed.push_back({count++, !message.isSend, {i, chunk}});
  }
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.round, a.isReceive) < std::pair(b.round, b.isReceive);
  });
  for (const Placed& each : placed) pieces_.push_back(each.piece);
}

Status StagedPost::preparePieces() {
  for (const Part& part : parts_) {
    part.lane->assertPosting();  // by enqueue()
    part.lane->claim(*part.message);
    for (StagedMessage::Chunk& chunk : part.message->chunks) {
      if (chunk.bytes == 0) continue;
      PEERLANE_ASSIGN(chunk.program, part.lane->programOf(*part.message, chunk, executor_));
    }
  }
  orderPieces();
  return Status::ok();
}

Status StagedPost::putOnStream() {
  std::vector<DeviceExecutor::HeldWork> held;
  for (size_t i = 0; i < pieces_.size(); ++i)
    held.push_back(
        {i + 1, chunkOf(pieces_[i]).program.get(), parts_[pieces_[i].part].message->abort});
  std::vector<DevicePost> posts;
  Status status = executor_.postHeld(stream_, word_, held, posts);
  for (size_t i = 0; i < posts.size(); ++i) chunkOf(pieces_[i]).post = posts[i];
  if (!posts.empty()) {
    isOnStream_ = true;
    passed_ = posts.back();
  }
  if (status.code() != Code::kNotSupported) return status;
  return Status(Code::kNotSupported,
                std::to_string(parts_.size()) + " messages, staged in " +
                    std::to_string(pieces_.size()) + " chunks: " + std::string(status.message()) +
                    "; make several posts, or set PEERLANE_STAGING_BYTES higher at both sides");
}

// With the lanes locked, so that numbers follow the order of work. A poster that a full queue
// blocks here holds up other posters, but no turn.
Status StagedPost::enqueue() {
  PostingLocks locks;
  std::vector<StagedLane::Claims> before;
  Status status;
  for (StagedLane* lane : lanes_) {
    locks.add(*lane);
    lane->assertPosting();
    status = lane->begin(countOn(lane));
    if (!status.isOk()) break;
    before.push_back(lane->claims());
  }
  if (status.isOk()) status = preparePieces();
  if (status.isOk()) status = putOnStream();
  if (!isOnStream_) {
    for (size_t i = 0; i < before.size(); ++i) {
      lanes_[i]->assertPosting();
      lanes_[i]->restore(before[i]);
      lanes_[i]->end(countOn(lanes_[i]));
    }
    return status;
  }
  progress_.expectDeviceStores();
  for (const Part& part : parts_) part.lane->take(part.message);
  return status;
}

Result<Transfer> StagedPost::post(const std::shared_ptr<StagedPost>& self) {
  PEERLANE_RETURN_IF_ERROR(self->hold());
  const Status enqueued = self->enqueue();
  if (!self->isOnStream_) return enqueued;
  self->metrics().fallbacks().add();
  // Some of it is on the stream and has to be passed.
  if (!enqueued.isOk()) self->failLanes(enqueued);
  self->progress_.add(self);
  PEERLANE_RETURN_IF_ERROR(enqueued);
  return Transfer(self);
}

// --- Turns ---

void StagedPost::failLanes(const Status& why) {
  isStopped_ = true;
  for (StagedLane* lane : lanes_) lane->fail(why, /*tellPeer=*/true);
}

Status StagedPost::trouble() const {
  if (cancelled())
    return Status(Code::kCancelled, "a message on a stream was cancelled, which ends its lane");
  if (Progress::Clock::now() < deadline_) return Status::ok();
  const Part& first = parts_.front();
  return Status(Code::kTimeout,
                std::string(first.message->isSend ? "a send to" : "a receive from") + " rank " +
                    std::to_string(first.lane->rank()) + " on a stream was not met within " +
                    durationInWords(timeout_) +
                    ", or waited for the staging memory after one "
                    "that was not. Where both sides receive before they send on one stream, each "
                    "waits for a message that comes after its own wait: post them as a group");
}

bool StagedPost::grant() {
  const size_t before = granted_;
  while (granted_ < pieces_.size() && chunkOf(pieces_[granted_]).mayCopy) ++granted_;
  if (granted_ != before) word_->store(granted_, std::memory_order_release);
  return granted_ != before;
}

// Its GPU is broken: nothing of it will end there any more.
void StagedPost::loseStream() {
  for (const Part& part : parts_) part.message->streamIsLost = true;
}

Status StagedPost::outcome() const {
  for (const Part& part : parts_) PEERLANE_RETURN_IF_ERROR(part.message->outcome);
  return Status::ok();
}

Task::Turn StagedPost::turn() {
  bool moved = false;
  if (!isStopped_) {
    Status why = trouble();
    if (why.isOk()) {
      why = health_.look(executor_);
      if (!why.isOk()) loseStream();
    }
    if (!why.isOk()) {
      failLanes(why);
      moved = true;
    }
  }
  moved |= grant();
  const bool isPassed = passed_.ended() || parts_.front().message->streamIsLost;
  const bool isOver = isPassed && std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
                        return part.message->isOver;
                      });
  if (!isOver) return moved ? Turn::kMoved : Turn::kIdle;
  const Status status = outcome();
  letGo();
  metrics().ended(status.code()).add();
  markEnded(status);
  return Turn::kFinished;
}

std::string StagedPost::describe() const {
  if (done()) return {};
  std::string text = "on a stream of " + executor_.device().toString() + ", staged:";
  for (const Part& part : parts_)
    text += std::string(part.message->isSend ? " send to " : " recv from ") +
            std::to_string(part.lane->rank()) + " (" + std::to_string(part.message->bytes) +
            " bytes)";
  return text + ", " + std::to_string(granted_) + " of " + std::to_string(pieces_.size()) +
         " chunks released";
}

}  // namespace

Result<Transfer> postStagedMessages(std::shared_ptr<void> owner,
                                    std::span<const MessageToStage> messages,
                                    DeviceExecutor& executor, DeviceStream stream,
                                    std::chrono::nanoseconds timeout) {
  return StagedPost::post(
      std::make_shared<StagedPost>(std::move(owner), messages, executor, stream, timeout));
}

}  // namespace peerlane
