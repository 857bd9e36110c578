// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/transfer/device_transfer.h"

#include <algorithm>
#include <utility>

#include "peerlane/channel/transfer/captured_post.h"
#include "peerlane/channel/transfer/transfer_core.h"
#include "peerlane/core/recycled_memory.h"
#include "peerlane/core/spare_vector.h"

namespace peerlane {
std::chrono::nanoseconds spinTimeFor(uint64_t bytes) {
  // At 20 GB/s, which is less than any link between two GPUs gives.
  return std::chrono::microseconds(100) + std::chrono::nanoseconds(bytes / 20);
}

Result<Transfer> postOnDevice(const std::shared_ptr<PeerCore>& peer, DeviceExecutor& executor,
                              BlockProgram blocks, OwnedNotify notify, const PostOptions& options) {
  if (options.stream != nullptr)
    return Status(Code::kInvalidArgument,
                  "GPU memory is ordered on PostOptions::deviceStream, not on a host stream");
  PEERLANE_RETURN_IF_ERROR(blocks.checkIdentity());
  if (options.deviceStream && executor.isCapturing(options.deviceStream))
    return CapturedPost::capture(peer, executor, std::move(blocks), std::move(notify), options);
  auto transfer =
      std::allocate_shared<DeviceTransfer>(RecyclingAllocator<DeviceTransfer>(), peer, executor,
                                           std::move(blocks), std::move(notify), options);
  PEERLANE_RETURN_IF_ERROR(DeviceTransfer::begin(transfer));
  return Transfer(std::move(transfer));
}

DeviceTransfer::DeviceTransfer(std::shared_ptr<PeerCore> peer, DeviceExecutor& executor,
                               BlockProgram blocks, OwnedNotify notify, const PostOptions& options)
    : Operation(peer->progress()),
      peer_(std::move(peer)),
      executor_(executor),
      blocks_(std::move(blocks)),
      notify_(std::move(notify)),
      options_(options) {
  options_.notify = {};  // its message is the caller's, and notify_ owns a copy
}

DeviceTransfer::~DeviceTransfer() {
  if (peer_->forked()) return;
  // Dropped by an engine that stopped, or by a post that failed.
  if (state_ == State::kLate) refuseLate();
  leaveGates();
  if (watched_) progress_.deviceStoresSeen();
}

Status DeviceTransfer::begin(const std::shared_ptr<DeviceTransfer>& transfer) {
  DeviceTransfer& self = *transfer;
  if (self.blocks_.imported(*self.peer_)) {
    PEERLANE_RETURN_IF_ERROR(self.enqueue());
    self.state_ = State::kRunning;
  } else if (self.options_.deviceStream) {
    PEERLANE_RETURN_IF_ERROR(self.enqueueLate());
    self.state_ = State::kLate;
  }
  self.watched_ = true;
  self.progress_.expectDeviceStores();
  self.peer_->pendingOperations().fetch_add(1, std::memory_order_relaxed);
  self.progress_.addQuietly(transfer);
  return Status::ok();
}

Status DeviceTransfer::enterGates(bool slab) {
  // A peer that is gone has closed its gates as well, and is the better reason.
  const auto closed = [this](const Status& gate) {
    Status gone = peer_->failure();
    return gone.isOk() ? gate : gone;
  };
  PEERLANE_RETURN_IF_ERROR(blocks_.importFailure());
  if (Status entered = blocks_.enter(); !entered.isOk()) return closed(entered);
  entered_ = true;
  PEERLANE_RETURN_IF_ERROR(blocks_.pin(executor_));
  if (!slab) return Status::ok();
  slabEntered_ = peer_->peerSlab()->gate.enter();
  if (slabEntered_) return Status::ok();
  return closed(Status(Code::kClosed, "the connection to the peer is being closed"));
}

Status DeviceTransfer::enqueueLate() {
  OwnedNotify nothing;
  Program program;
  Binding binding;
  PEERLANE_RETURN_IF_ERROR(
      blocks_.lower(*peer_, nothing, program, binding, nullptr, executor_.device()));
  PEERLANE_ASSIGN(const auto lowered, executor_.prepare(program, binding, {.engine = Engine::kSm}));
  PEERLANE_ASSIGN(late_, executor_.postLate(*lowered, options_.deviceStream));
  post_ = late_.post;
  isLate_ = true;
  return Status::ok();
}

Status DeviceTransfer::enqueue() {
  PEERLANE_RETURN_IF_ERROR(enterGates(notify_.signal.has_value()));
  // The message is the host's affair.
  OwnedNotify byStream;
  byStream.signal = notify_.signal;
  byStream.signalAdd = notify_.signalAdd;
  PEERLANE_ASSIGN(const auto program, prepare(std::move(byStream), true));
  PEERLANE_ASSIGN(post_, executor_.post(*program, options_.deviceStream));
  return Status::ok();
}

// By a turn, which must not stop in the driver.
Status DeviceTransfer::submitDeferred() {
  PEERLANE_RETURN_IF_ERROR(enterGates(false));
  PEERLANE_ASSIGN(auto program, prepare(OwnedNotify(), false));
  deferred_ = executor_.submitDeferred(std::move(program));
  return Status::ok();
}

Result<std::unique_ptr<DeviceProgram>> DeviceTransfer::prepare(OwnedNotify byStream,
                                                               bool isPostedNow) {
  std::byte* window = nullptr;
  if (byStream.signal) {
    PEERLANE_ASSIGN(window, peer_->windows().peers());
  }
  Program program;
  Binding binding;
  PEERLANE_RETURN_IF_ERROR(
      blocks_.lower(*peer_, byStream, program, binding, window, executor_.device()));
  auto lowered = executor_.prepare(
      program, binding,
      {.engine = options_.engine, .ctas = options_.ctas, .isPostedNow = isPostedNow});
  // The next post of this thread takes the room of a long list again.
  for (CopyLayout& list : program.lists) SpareVector<Segment>::giveBack(std::move(list.segments));
  return lowered;
}

// Delivers what the stream has not: messages, and signals of transfers that were late.
Status DeviceTransfer::notifyByHost() {
  if (!hostSignals()) notify_.signal.reset();
  auto core = std::make_shared<TransferCore>(peer_, BlockProgram(), std::move(notify_));
  PEERLANE_RETURN_IF_ERROR(TransferCore::begin(core, nullptr));
  message_ = Transfer(std::move(core));
  return Status::ok();
}

// Its end is near as a rule, and a sleeper would see it late.
Status DeviceTransfer::wait(std::chrono::nanoseconds timeout) {
  const auto longest = std::min<std::chrono::nanoseconds>(timeout, spinTimeFor(blocks_.bytes()));
  (void)progress_.spinFor([this] { return done(); }, longest);
  return Operation::wait(timeout);
}

Task::Turn DeviceTransfer::turn() {
  const bool moved = advance();
  if (state_ == State::kEnded) return Turn::kFinished;
  return moved ? Turn::kMoved : Turn::kIdle;
}

Status DeviceTransfer::outcome() const {
  // When the end of such a post is known here, the stream has already told the peer all of it.
  const bool isTooLate = state_ == State::kRunning && !hostSignals();
  if (cancelled() && !isTooLate)
    return Status(Code::kCancelled,
                  "the transfer was cancelled; its destination bytes are undefined");
  return peer_->failure();
}

// The stream has passed it, or nothing of it will be on a stream.
bool DeviceTransfer::passed() {
  if (!deferred_) return post_.ended();
  if (!outcome().isOk()) deferred_->takeBack();
  return deferred_->ended();
}

bool DeviceTransfer::advance() {
  switch (state_) {
    case State::kImporting: {
      Status stop = outcome();
      if (stop.isOk() && !blocks_.imported(*peer_)) {
        stop = blocks_.importFailure();
        if (stop.isOk()) return false;
      }
      if (stop.isOk()) stop = submitDeferred();
      if (!stop.isOk()) return end(stop), true;
      state_ = State::kRunning;
      return true;
    }
    case State::kLate: {
      Status stop = outcome();
      if (stop.isOk() && !blocks_.imported(*peer_)) {
        stop = blocks_.importFailure();
        if (stop.isOk()) return false;
      }
      if (stop.isOk()) stop = enterGates(false);
      std::byte* base = nullptr;
      if (stop.isOk()) {
        base = blocks_.remotes().front().slot()->region->memory.on(executor_.device());
        if (base == nullptr)
          stop = Status(Code::kNotSupported, "the peer's region could not be opened for " +
                                                 executor_.device().toString());
      }
      if (stop.isOk()) {
        executor_.resolve(late_, base);
        state_ = State::kRunning;
      } else {
        refuseLate();
        refusal_ = stop;
        state_ = State::kRefused;
      }
      return true;
    }
    case State::kRefused:
    case State::kRunning: {
      Status status;
      if (!passed()) {
        status = health_.look(executor_);
        if (!status.isOk()) end(status);
        return state_ == State::kEnded;
      }
      status = state_ == State::kRefused ? refusal_ : outcome();
      if (status.isOk() && deferred_) status = deferred_->status();
      // Still inside the gates: the copies found the memory, but it is its provider's again, and a
      // peer's may have ended under them.
      if (status.isOk() && entered_)
        status = blocks_.whyRevoked().withContext("the bytes of the transfer are undefined");
      const bool tells = notify_.hasMessage || (hostSignals() && notify_.signal);
      if (status.isOk() && tells) status = notifyByHost();
      if (!status.isOk() || !tells) return end(status), true;
      state_ = State::kNotifying;
      return true;
    }
    case State::kNotifying:
      if (!message_.done()) return false;
      end(message_.status());
      return true;
    case State::kEnded: return false;
  }
  return false;
}

// The stream waits for nothing any more, and leaves the copies out.
void DeviceTransfer::refuseLate() {
  executor_.resolve(late_, nullptr);
  peer_->metrics().poisonings().add();
}

void DeviceTransfer::leaveGates() {
  if (std::exchange(entered_, false)) blocks_.leave();
  if (std::exchange(slabEntered_, false)) peer_->peerSlab()->gate.leave();
}

void DeviceTransfer::end(const Status& status) {
  state_ = State::kEnded;
  leaveGates();
  if (std::exchange(watched_, false)) progress_.deviceStoresSeen();
  if (isLate_) {
    executor_.returnWord(late_.gate, post_);
    executor_.returnWord(late_.refusal, post_);
    executor_.waitEnded();
  }
  peer_->metrics().ended(status.code()).add();
  if (status.isOk() && blocks_.bytes() > 0)
    peer_
        ->bytes(peer_->links().mapsDevices(), kCudaEngine,
                blocks_.direction() == Direction::kPut ? "put" : "get")
        .add(blocks_.bytes());
  peer_->pendingOperations().fetch_sub(1, std::memory_order_release);
  markEnded(status);
}

std::string DeviceTransfer::describe() const {
  static constexpr const char* kDoing[] = {"waits for the import of a region",
                                           "waits for its stream to get there", "on its stream",
                                           "delivers its message", "ended"};
  if (state_ == State::kEnded) return {};
  const auto age =
      std::chrono::duration_cast<std::chrono::milliseconds>(Progress::Clock::now() - since_);
  return "transfer to peer " + std::to_string(peer_->number()) + " on " +
         executor_.device().toString() + ", " + std::to_string(blocks_.bytes()) + " bytes, since " +
         std::to_string(age.count()) + " ms: " +
         (deferred_ && deferred_->isToCome() ? "waits for room in the device's queues"
                                             : kDoing[static_cast<size_t>(state_)]);
}

}  // namespace peerlane
