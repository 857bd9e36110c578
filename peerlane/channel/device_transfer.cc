// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/device_transfer.h"

#include <utility>

#include "peerlane/channel/transfer_core.h"

namespace peerlane {
namespace {

constexpr std::chrono::milliseconds kHealthInterval{100};

}  // namespace

Result<Transfer> postOnDevice(const std::shared_ptr<PeerCore>& peer, Device device,
                              BlockProgram blocks, OwnedNotify notify, const PostOptions& options) {
  if (options.stream != nullptr)
    return Status(Code::kInvalidArgument,
                  "GPU memory is ordered on PostOptions::deviceStream, not on a host stream");
  PEERLANE_ASSIGN(DeviceExecutor* const executor, peer->executor(device));
  if (options.deviceStream && !executor->owns(options.deviceStream))
    return Status(Code::kInvalidArgument,
                  "the stream is not one of " + device.toString() + ", where the memory lies");
  PEERLANE_RETURN_IF_ERROR(blocks.checkIdentity());
  auto transfer = std::make_shared<DeviceTransfer>(peer, *executor, std::move(blocks),
                                                   std::move(notify), options);
  PEERLANE_RETURN_IF_ERROR(DeviceTransfer::begin(transfer));
  return Transfer(std::move(transfer));
}

DeviceTransfer::DeviceTransfer(std::shared_ptr<PeerCore> peer, DeviceExecutor& executor,
                               BlockProgram blocks, OwnedNotify notify, const PostOptions& options)
    : Pending(peer->progress()),
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
  openGate();
  if (entered_) blocks_.leave();
  if (slabEntered_) peer_->peerSlab()->gate.leave();
  if (watched_) progress_.deviceStoresSeen();
}

Status DeviceTransfer::begin(const std::shared_ptr<DeviceTransfer>& transfer) {
  DeviceTransfer& self = *transfer;
  if (self.blocks_.imported(*self.peer_)) {
    PEERLANE_RETURN_IF_ERROR(self.enqueue(self.options_.deviceStream));
    self.state_ = State::kRunning;
  } else if (self.options_.deviceStream) {
    PEERLANE_RETURN_IF_ERROR(self.closeGate());
  }
  self.watched_ = true;
  self.progress_.expectDeviceStores();
  self.peer_->pendingOperations().fetch_add(1, std::memory_order_relaxed);
  self.progress_.add(transfer);
  return Status::ok();
}

Status DeviceTransfer::closeGate() {
  PEERLANE_ASSIGN(gate_, executor_.borrowWord());
  auto reached = executor_.borrowWord();
  if (!reached.isOk()) {
    executor_.returnWord(std::exchange(gate_, nullptr));
    return reached.status();
  }
  reached_ = *reached;
  auto waiting = executor_.waitGate(options_.deviceStream, reached_, gate_);
  if (waiting.isOk()) {
    gatePost_ = *waiting;
    return Status::ok();
  }
  executor_.returnWord(std::exchange(gate_, nullptr));
  executor_.returnWord(std::exchange(reached_, nullptr));
  if (waiting.status().code() == Code::kNotPrepared)
    return waiting.status().withContext("a region is not imported yet (RemoteRegion::prepare)");
  return waiting.status();
}

// Its words are handed back once the stream has passed them.
void DeviceTransfer::openGate() {
  if (gate_ != nullptr) gate_->store(1, std::memory_order_release);
}

Status DeviceTransfer::enqueue(DeviceStream stream) {
  const auto closed = [this](const Status& gate) {
    Status gone = peer_->failure();
    return gone.isOk() ? gate : gone;
  };
  PEERLANE_RETURN_IF_ERROR(blocks_.importFailure());
  if (Status entered = blocks_.enter(); !entered.isOk()) return closed(entered);
  entered_ = true;
  std::byte* window = nullptr;
  if (notify_.signal) {
    PEERLANE_ASSIGN(window, peer_->devicePeerSlab());
    slabEntered_ = peer_->peerSlab()->gate.enter();
    if (!slabEntered_)
      return closed(Status(Code::kClosed, "the connection to the peer is being closed"));
  }
  // The message is the host's affair.
  OwnedNotify byStream;
  byStream.signal = notify_.signal;
  byStream.signalAdd = notify_.signalAdd;
  Program program;
  Binding binding;
  PEERLANE_RETURN_IF_ERROR(blocks_.lower(*peer_, byStream, program, binding, window));
  PEERLANE_ASSIGN(program_, executor_.prepare(program, binding,
                                              {.engine = options_.engine, .ctas = options_.ctas}));
  PEERLANE_ASSIGN(post_, executor_.post(*program_, stream));
  return Status::ok();
}

void DeviceTransfer::cancel() {
  cancelled_.store(true, std::memory_order_release);
  progress_.wake();
}

Task::Turn DeviceTransfer::turn() {
  const bool moved = advance();
  if (state_ == State::kEnded) return Turn::kFinished;
  return moved ? Turn::kMoved : Turn::kIdle;
}

Status DeviceTransfer::outcome() const {
  if (cancelled_.load(std::memory_order_acquire))
    return Status(Code::kCancelled,
                  "the transfer was cancelled; its destination bytes are undefined");
  return peer_->failure();
}

bool DeviceTransfer::deviceFailed(Status& why) {
  const auto now = Progress::Clock::now();
  if (now - looked_ < kHealthInterval) return false;
  looked_ = now;
  why = executor_.health();
  return !why.isOk();
}

bool DeviceTransfer::advance() {
  Status broken;
  switch (state_) {
    case State::kImporting: {
      Status stop = outcome();
      if (stop.isOk()) stop = blocks_.importFailure();
      if (!stop.isOk()) return end(stop), true;
      if (!blocks_.imported(*peer_)) return false;
      state_ = State::kGated;
      return true;
    }
    case State::kGated: {
      if (Status stop = outcome(); !stop.isOk()) return end(stop), true;
      if (reached_ != nullptr && reached_->load(std::memory_order_acquire) == 0) return false;
      if (Status enqueued = enqueue({}); !enqueued.isOk()) return end(enqueued), true;
      state_ = State::kRunning;
      return true;
    }
    case State::kRunning:
      if (!post_.ended()) {
        if (deviceFailed(broken)) end(broken);
        return state_ == State::kEnded;
      }
      if (!notify_.hasMessage || !outcome().isOk()) return end(outcome()), true;
      notify_.signal.reset();
      {
        auto core = std::make_shared<TransferCore>(peer_, BlockProgram(), std::move(notify_));
        if (Status begun = TransferCore::begin(core, nullptr); !begun.isOk())
          return end(begun), true;
        message_ = Transfer(std::move(core));
      }
      state_ = State::kNotifying;
      return true;
    case State::kNotifying:
      if (!message_.done()) return false;
      end(message_.status());
      return true;
    case State::kEnded: return false;
  }
  return false;
}

void DeviceTransfer::end(const Status& status) {
  state_ = State::kEnded;
  openGate();
  if (std::exchange(entered_, false)) blocks_.leave();
  if (std::exchange(slabEntered_, false)) peer_->peerSlab()->gate.leave();
  if (std::exchange(watched_, false)) progress_.deviceStoresSeen();
  if (gate_ != nullptr) {
    executor_.returnWord(std::exchange(gate_, nullptr), gatePost_);
    executor_.returnWord(std::exchange(reached_, nullptr), gatePost_);
    executor_.waitEnded();
  }
  peer_->metrics().ended(status.code()).add();
  if (status.isOk() && blocks_.bytes() > 0)
    peer_->bytes(blocks_.engine(), blocks_.direction() == Direction::kPut ? "put" : "get")
        .add(blocks_.bytes());
  peer_->pendingOperations().fetch_sub(1, std::memory_order_release);
  markEnded(1, status);
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
         std::to_string(age.count()) + " ms: " + kDoing[static_cast<size_t>(state_)];
}

}  // namespace peerlane
