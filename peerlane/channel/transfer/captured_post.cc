// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/transfer/captured_post.h"

#include <utility>

#include "peerlane/channel/transfer/transfer_core.h"
#include "peerlane/program/device/poison.h"

namespace peerlane {

CapturedPost::~CapturedPost() {
  if (peer_->forked()) return;
  // Dropped by an engine that stopped, or by a capture that failed. Everything that replays use
  // stays theirs: the graph may outlive the context, and words that it reads are never lent again.
  stopWaits();
  if (!kept_ || gone_->load(std::memory_order_acquire)) {
    letGo();
    return;
  }
  for (auto& work : work_) (void)work.release();
  (void)program_.release();
  if (entered_) blocks_.leave();
  if (slabEntered_) peer_->peerSlab()->gate.leave();
}

void CapturedPost::letGo() {
  work_.clear();
  program_.reset();
  plan_.reset();
  for (std::atomic<uint64_t>** word : {&abort_, &fault_, &bell_})
    if (*word != nullptr) executor_.returnWord(std::exchange(*word, nullptr));
  if (std::exchange(entered_, false)) blocks_.leave();
  if (std::exchange(slabEntered_, false)) peer_->peerSlab()->gate.leave();
  if (std::exchange(waits_, false)) executor_.waitEnded();
  if (message_.hasMessage && std::exchange(kept_, false)) progress_.deviceStoresSeen();
}

Status CapturedPost::borrow() {
  PEERLANE_ASSIGN(abort_, executor_.borrowWord());
  PEERLANE_ASSIGN(fault_, executor_.borrowWord());
  return Status::ok();
}

Status CapturedPost::enter(BlockProgram blocks, bool slab) {
  blocks_ = std::move(blocks);
  PEERLANE_RETURN_IF_ERROR(peer_->usable());
  if (!blocks_.imported(*peer_)) {
    PEERLANE_RETURN_IF_ERROR(blocks_.importFailure());
    return Status(Code::kNotPrepared,
                  "a remote region is not imported yet, and a graph cannot wait for it: call "
                  "RemoteRegion::prepare before the capture");
  }
  PEERLANE_RETURN_IF_ERROR(blocks_.enter());
  entered_ = true;
  PEERLANE_RETURN_IF_ERROR(blocks_.pin(executor_));
  if (!slab) return Status::ok();
  slabEntered_ = peer_->peerSlab()->gate.enter();
  if (slabEntered_) return Status::ok();
  return Status(Code::kClosed, "the connection to the peer is being closed");
}

Result<Transfer> CapturedPost::keep(const std::shared_ptr<CapturedPost>& post,
                                    DeviceStream stream) {
  // A post that somebody's graph holds must not be ended by the thread that tells of the graph's
  // end: that one must not call CUDA. So it only leaves a word.
  PEERLANE_RETURN_IF_ERROR(post->executor_.keepByGraph(
      stream, [gone = post->gone_] { gone->store(true, std::memory_order_release); }));
  post->kept_ = true;
  if (post->message_.hasMessage) post->progress_.expectDeviceStores();
  post->progress_.add(post);
  return Transfer(post);
}

Result<Transfer> CapturedPost::capture(const std::shared_ptr<PeerCore>& peer,
                                       DeviceExecutor& executor, BlockProgram blocks,
                                       OwnedNotify notify, const PostOptions& options) {
  auto post = std::make_shared<CapturedPost>(peer, executor,
                                             blocks.direction() == Direction::kPut ? "put" : "get");
  const bool copies = !blocks.empty();
  PEERLANE_RETURN_IF_ERROR(post->enter(std::move(blocks), notify.signal.has_value()));
  std::byte* window = nullptr;
  if (notify.signal) {
    PEERLANE_ASSIGN(window, peer->windows().peers());
  }
  PEERLANE_RETURN_IF_ERROR(post->borrow());
  if (copies || notify.signal) {
    OwnedNotify byGraph;
    byGraph.signal = notify.signal;
    byGraph.signalAdd = notify.signalAdd;
    Program program;
    Binding binding;
    PEERLANE_RETURN_IF_ERROR(
        post->blocks_.lower(*peer, byGraph, program, binding, window, executor.device()));
    // A graph of copies is slow (and cannot be told to do nothing), so a kernel is the choice.
    const Engine engine = options.engine == Engine::kAuto ? Engine::kSm : options.engine;
    PEERLANE_ASSIGN(post->program_,
                    executor.prepare(program, binding,
                                     {.engine = engine, .ctas = options.ctas, .repeated = true}));
    PEERLANE_ASSIGN(auto work, executor.capture(*post->program_, options.deviceStream, {},
                                                post->abort_, post->fault_));
    post->work_.push_back(std::move(work));
  }
  if (notify.hasMessage) {
    notify.signal.reset();
    PEERLANE_RETURN_IF_ERROR(post->captureMessage(std::move(notify), options.deviceStream));
  }
  return keep(post, options.deviceStream);
}

Status CapturedPost::captureMessage(OwnedNotify notify, DeviceStream stream) {
  PEERLANE_ASSIGN(bell_, executor_.borrowWord());
  PEERLANE_ASSIGN(auto work, executor_.captureBell(stream, bell_, abort_));
  work_.push_back(std::move(work));
  message_ = std::move(notify);
  return Status::ok();
}

Result<Transfer> CapturedPost::capturePlan(const std::shared_ptr<PeerCore>& peer,
                                           DeviceExecutor& executor, std::shared_ptr<void> plan,
                                           const BlockProgram& blocks, bool addsToSignal,
                                           DeviceProgram& program, DeviceStream stream,
                                           const DeviceIndices& indices) {
  auto post = std::make_shared<CapturedPost>(peer, executor, "post of a plan");
  post->plan_ = std::move(plan);
  PEERLANE_RETURN_IF_ERROR(post->enter(blocks, addsToSignal));
  PEERLANE_RETURN_IF_ERROR(post->borrow());
  PEERLANE_ASSIGN(auto work,
                  executor.capture(program, stream, indices, post->abort_, post->fault_));
  post->work_.push_back(std::move(work));
  return keep(post, stream);
}

Result<Transfer> CapturedPost::captureWait(const std::shared_ptr<PeerCore>& peer,
                                           DeviceExecutor& executor, DeviceStream stream,
                                           uint64_t offset, uint64_t value, uint64_t perReplay,
                                           const std::string& what) {
  PEERLANE_RETURN_IF_ERROR(peer->usable());
  PEERLANE_ASSIGN(std::byte* const slab, peer->windows().own());
  auto post = std::make_shared<CapturedPost>(peer, executor, "wait for " + what);
  PEERLANE_RETURN_IF_ERROR(post->borrow());
  PEERLANE_ASSIGN(auto work,
                  executor.captureWait(stream, slab + offset, value, perReplay, post->abort_));
  post->waits_ = true;
  post->work_.push_back(std::move(work));
  return keep(post, stream);
}

Status CapturedPost::wait(std::chrono::nanoseconds /*timeout*/) {
  if (done()) return status();
  return Status(Code::kNotSupported, "the " + what_ +
                                         " is part of a CUDA graph, which ends it at every replay: "
                                         "synchronise the stream that the graph was launched on");
}

Status CapturedPost::endOfReplays() const {
  if (cancelled()) return Status(Code::kCancelled, "cancelled: replays of its graph leave it out");
  if (Status failure = peer_->failure(); !failure.isOk()) return failure;
  if (fault_->load(std::memory_order_acquire) != 0)
    return Status(Code::kInvalidArgument,
                  "a block number in device memory was out of range; its block was left out");
  return Status::ok();
}

void CapturedPost::stopReplays(const Status& why) {
  stopped_ = true;
  stopWaits();
  markEnded(why);
}

void CapturedPost::stopWaits() {
  if (abort_ == nullptr) return;
  const bool hasGraph = kept_ && !gone_->load(std::memory_order_acquire);
  abortWaits(*abort_, hasGraph ? &peer_->metrics().poisonings() : nullptr);
}

bool CapturedPost::owesMessages() const {
  if (!message_.hasMessage || stopped_) return false;
  return !underWay_.empty() || begun_ != bell_->load(std::memory_order_acquire);
}

// One message for each replay that has come by.
bool CapturedPost::deliverMessages() {
  if (!message_.hasMessage || stopped_) return false;
  const uint64_t rung = bell_->load(std::memory_order_acquire);
  const size_t waited = underWay_.size();
  for (; !underWay_.empty() && underWay_.front().done(); underWay_.pop_front())
    if (Status ended = underWay_.front().status(); !ended.isOk()) return stopReplays(ended), true;
  bool moved = underWay_.size() != waited;
  // Replays are not refused: messages for which the peer has no room are counted here until there
  // is some.
  for (; begun_ != rung && NotifyNumbers::of(*peer_)->room().isOk(); ++begun_) {
    auto core = std::make_shared<TransferCore>(peer_, BlockProgram(), message_);
    if (Status begun = TransferCore::begin(core, nullptr); !begun.isOk()) {
      stopReplays(begun);
      return true;
    }
    underWay_.push_back(Transfer(std::move(core)));
    moved = true;
  }
  return moved;
}

Task::Turn CapturedPost::turn() {
  // Before the bell, which nobody rings once they are gone.
  const bool isGone = gone_->load(std::memory_order_acquire);
  const bool moved = deliverMessages();
  if (isGone && !owesMessages()) {
    if (!stopped_) stopReplays(endOfReplays());
    letGo();
    return Turn::kFinished;
  }
  if (stopped_) return moved ? Turn::kMoved : Turn::kIdle;
  if (Status end = endOfReplays(); !end.isOk()) {
    stopReplays(end);
    return Turn::kMoved;
  }
  return moved ? Turn::kMoved : Turn::kIdle;
}

std::string CapturedPost::describe() const {
  if (gone_->load(std::memory_order_acquire) && (bell_ == nullptr || !owesMessages())) return {};
  return what_ + " of peer " + std::to_string(peer_->number()) + ", captured into a graph of " +
         executor_.device().toString() + ": " + std::to_string(blocks_.bytes()) +
         " bytes at each replay" + (stopped_ ? ", left out from now on" : "");
}

}  // namespace peerlane
