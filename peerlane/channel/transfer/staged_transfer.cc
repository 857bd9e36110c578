// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/transfer/staged_transfer.h"

#include <algorithm>
#include <utility>

#include "peerlane/channel/transfer/transfer_core.h"
#include "peerlane/program/device/poison.h"
#include "peerlane/session/staging/staging_copy.h"

namespace peerlane {
namespace {

constexpr const char* kStagedEngine = "staged";

}  // namespace

Status StagedTransfer::allowed(const PeerCore& peer, const std::string& why) {
  if (!peer.config().strict) return Status::ok();
  return Status(
      Code::kNotSupported,
      "PEERLANE_STRICT: the transfer would be staged through host memory, because " + why);
}

Result<Transfer> StagedTransfer::post(const std::shared_ptr<PeerCore>& peer, BlockProgram blocks,
                                      OwnedNotify notify, const PostOptions& options,
                                      const std::string& why, std::span<const uint32_t> localIndex,
                                      std::span<const uint32_t> remoteIndex) {
  PEERLANE_RETURN_IF_ERROR(allowed(*peer, why));
  if (options.stream != nullptr)
    return Status(Code::kInvalidArgument,
                  "GPU memory is ordered on PostOptions::deviceStream, not on a host stream");
  PEERLANE_RETURN_IF_ERROR(blocks.checkIdentity());
  auto transfer =
      std::make_shared<StagedTransfer>(peer, std::move(blocks), std::move(notify), options);
  StagedTransfer& self = *transfer;
  PEERLANE_RETURN_IF_ERROR(self.prepare(localIndex, remoteIndex));
  Status enqueued;
  if (options.deviceStream) {
    enqueued = self.enqueue();
    // The stream must pass the work that is on it already.
    if (!enqueued.isOk() && !self.isOnStream_) return enqueued;
    self.failure_ = enqueued;
  }
  self.peerStaging_->logOnce(*peer, why);
  peer->metrics().fallbacks().add();
  self.watched_ = true;
  self.progress_.expectDeviceStores();
  peer->pendingOperations().fetch_add(1, std::memory_order_relaxed);
  if (options.deviceStream)
    self.progress_.addQuietly(transfer);
  else
    self.progress_.add(transfer);
  PEERLANE_RETURN_IF_ERROR(enqueued);
  return Transfer(std::move(transfer));
}

StagedTransfer::StagedTransfer(std::shared_ptr<PeerCore> peer, BlockProgram blocks,
                               OwnedNotify notify, const PostOptions& options)
    : Operation(peer->progress()),
      peer_(std::move(peer)),
      blocks_(std::move(blocks)),
      notify_(std::move(notify)),
      options_(options),
      peerStaging_(PeerStaging::of(*peer_)) {
  options_.notify = {};  // its message is the caller's, and notify_ owns a copy
}

StagedTransfer::~StagedTransfer() {
  if (peer_->forked()) return;
  // Dropped by an engine that stopped, or by a post that failed.
  if (word_ != nullptr) {
    poisonWord(*word_, poisoningsOfWait());
    executor_->returnWord(word_, passed_);
  }
  if (entered_) blocks_.leaveLocals();
  if (watched_) progress_.deviceStoresSeen();
}

// Null when the stream has passed its waits.
Counter* StagedTransfer::poisoningsOfWait() const {
  return passed_.ended() ? nullptr : &peer_->metrics().poisonings();
}

// --- Posting ---

Status StagedTransfer::prepare(std::span<const uint32_t> localIndex,
                               std::span<const uint32_t> remoteIndex) {
  PEERLANE_RETURN_IF_ERROR(chooseSteps());
  if (options_.deviceStream && executor_->isCapturing(options_.deviceStream))
    return Status(Code::kNotSupported,
                  "a transfer that is staged through host memory cannot be part of a graph");
  if (Status entered = blocks_.enterLocals(); !entered.isOk()) {
    const Status gone = peer_->failure();
    return gone.isOk() ? entered : gone;
  }
  entered_ = true;
  PEERLANE_ASSIGN(auto memory, peerStaging_->memory(*peer_));
  cut(blocks_.pieces(localIndex, remoteIndex));
  if (!localIsDevice()) return Status::ok();
  memory_ = std::move(memory);
  return prepareLocalSteps();
}

Status StagedTransfer::chooseSteps() {
  std::optional<Device> local;
  for (const auto& record : blocks_.locals()) {
    const Device device = record->memory.device;
    if (local && *local != device)
      return Status(Code::kNotSupported, "local memory of " + local->toString() + " and of " +
                                             device.toString() + " in one staged post; make two");
    local = device;
  }
  const auto& remotes = blocks_.remotes();
  const auto isOfDevice = [](const RemoteRegion& remote) {
    return remote.reference().device.kind != DeviceKind::kHost;
  };
  const bool remoteIsDevice = isOfDevice(remotes.front());
  if (!std::all_of(remotes.begin(), remotes.end(), [&](const RemoteRegion& remote) {
        return isOfDevice(remote) == remoteIsDevice;
      }))
    return Status(Code::kNotSupported,
                  "memory of the peer's host and of its GPUs in one staged post; make two");
  const bool isDevice = local && local->kind != DeviceKind::kHost;
  if (isDevice) {
    PEERLANE_ASSIGN(executor_, peer_->executor(*local));
  } else if (options_.deviceStream) {
    PEERLANE_ASSIGN(executor_, peer_->executorOf(options_.deviceStream));
  }
  if (isDevice) steps_.push_back(Step::kLocal);
  steps_.push_back(Step::kWire);
  if (remoteIsDevice) steps_.push_back(Step::kRemote);
  if (!isPut()) std::reverse(steps_.begin(), steps_.end());
  return Status::ok();
}

void StagedTransfer::cut(const std::vector<Piece>& pieces) {
  const uint64_t most = peerStaging_->slotBytes();
  for (Piece piece : pieces) {
    while (piece.bytes > 0) {
      if (groups_.empty() || groups_.back().bytes == most ||
          groups_.back().pieces.size() == control::kMaxPieces)
        groups_.emplace_back();
      Group& group = groups_.back();
      Piece part = piece;
      part.bytes = std::min(piece.bytes, most - group.bytes);
      group.pieces.push_back(part);
      group.bytes += part.bytes;
      piece.localOffset += part.bytes;
      piece.remoteOffset += part.bytes;
      piece.bytes -= part.bytes;
    }
  }
}

// On streams by kernels: copies of the copy engine go through one queue of it, whatever streams
// they are of, so that one of a transfer whose turn has not come would hold up those of the one
// whose it is (seen on H200: eight threads posting stood still).
Status StagedTransfer::prepareLocalSteps() {
  Engine engine = options_.engine;
  if (options_.deviceStream) {
    if (engine == Engine::kCe)
      return Status(Code::kNotSupported,
                    "transfers that are staged do not go by engine ce on a stream, where its "
                    "copies would hold up one another; sm, inline and auto do");
    if (engine == Engine::kAuto) engine = Engine::kSm;
  }
  for (size_t i = 0; i < groups_.size(); ++i) {
    std::vector<Segment> segments;
    uint64_t at = offsetOf(i);
    for (const Piece& piece : groups_[i].pieces) {
      const auto local = static_cast<TargetId>(kFirstRegionTarget + piece.local);
      segments.push_back(isPut()
                             ? Segment{kStagingTarget, local, at, piece.localOffset, piece.bytes}
                             : Segment{local, kStagingTarget, piece.localOffset, at, piece.bytes});
      at += piece.bytes;
    }
    PEERLANE_ASSIGN(
        groups_[i].program,
        prepareStagingCopy(*executor_, *memory_->record(), blocks_.locals(), std::move(segments),
                           {.engine = engine, .ctas = options_.ctas}));
  }
  return Status::ok();
}

// Enqueues everything on the user's stream. The word says: for a put, how many groups may be copied
// into staging memory; for a get, how many may be copied out of it; one more than there are groups:
// all is done.
Status StagedTransfer::enqueue() {
  PEERLANE_ASSIGN(word_, executor_->borrowWord());
  std::vector<DeviceExecutor::HeldWork> held(1);  // tells that the stream has come to it
  if (localIsDevice())
    for (size_t i = 0; i < groups_.size(); ++i) held.push_back({i + 1, groups_[i].program.get()});
  if (!localIsDevice() || isPut()) held.push_back({groups_.size() + 1});
  std::vector<DevicePost> posts;
  Status status = executor_->postHeld(options_.deviceStream, word_, held, posts);
  if (!posts.empty()) {
    isOnStream_ = true;
    reached_ = posts.front();
    passed_ = posts.back();
  }
  if (localIsDevice())
    for (size_t i = 0; i < groups_.size() && i + 1 < posts.size(); ++i)
      groups_[i].post = posts[i + 1];
  if (status.code() != Code::kNotSupported) return status;
  return Status(Code::kNotSupported,
                "staged in " + std::to_string(groups_.size()) +
                    " groups: " + std::string(status.message()) +
                    "; make several posts, post without a stream, or set PEERLANE_STAGING_BYTES (" +
                    std::to_string(peer_->config().stagingBytes) + ") higher at both sides");
}

// --- Moving ---

Task::Turn StagedTransfer::turn() {
  const bool moved = advance();
  if (state_ == State::kEnded) return Turn::kFinished;
  return moved ? Turn::kMoved : Turn::kIdle;
}

Status StagedTransfer::stopReason() const {
  if (cancelled())
    return Status(Code::kCancelled,
                  "the transfer was cancelled; its destination bytes are undefined");
  return peer_->failure();
}

bool StagedTransfer::deviceFailed() {
  if (executor_ == nullptr) return false;
  const Status health = health_.look(*executor_);
  if (health.isOk()) return false;
  failure_ = health;
  return true;
}

void StagedTransfer::fail(const Status& status) {
  if (!failure_.isOk()) return;
  failure_ = status;
  for (const Group& group : groups_) {
    if (group.deferred) group.deferred->takeBack();
    if (group.busy) group.wire.cancel();
  }
}

bool StagedTransfer::advance() {
  if (state_ == State::kEnded) return false;
  if (state_ < State::kPassing && failure_.isOk())
    if (Status stop = stopReason(); !stop.isOk()) fail(stop);
  if (deviceFailed()) return end(failure_), true;
  switch (state_) {
    case State::kReaching:
      if (!reached_.ended()) return false;
      peerStaging_->enter(half(), this);
      queued_ = true;
      state_ = State::kQueued;
      [[fallthrough]];
    case State::kQueued:
      if (!peerStaging_->isServed(half(), this)) return false;
      if (failure_.isOk() && !remoteReady()) return false;
      state_ = State::kMoving;
      if (failure_.isOk()) grant();
      return true;
    case State::kMoving: return advanceMoving();
    case State::kPassing: {
      if (!passed_.ended()) return false;
      const bool tells = notify_.hasMessage || notify_.signal;
      if (failure_.isOk() && tells) {
        auto core = std::make_shared<TransferCore>(peer_, BlockProgram(), std::move(notify_),
                                                   /*isPart=*/true);
        const Status begun = TransferCore::begin(core, nullptr);
        if (!begun.isOk()) return end(begun), true;
        message_ = Transfer(std::move(core));
        state_ = State::kNotifying;
        return true;
      }
      end(failure_);
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

// The peer's staging memory, where it is needed, is imported here.
bool StagedTransfer::remoteReady() {
  if (std::find(steps_.begin(), steps_.end(), Step::kRemote) == steps_.end()) return true;
  if (!remoteStaging_) {
    const auto reference = peerStaging_->remote(*peer_);
    if (!reference) return false;
    auto region = reference->isOk() ? Peer(peer_).importRegion((*reference)->encode())
                                    : Result<RemoteRegion>(reference->status());
    if (!region.isOk()) return fail(region.status()), true;
    remoteStaging_ = std::move(*region);
  }
  const auto& slot = remoteStaging_.slot();
  switch (slot->state.load(std::memory_order_acquire)) {
    case ImportSlot::State::kNone:
      peer_->imports().request(remoteStaging_.reference(), slot);
      return false;
    case ImportSlot::State::kPending: return false;
    case ImportSlot::State::kFailed: return fail(slot->failure), true;
    case ImportSlot::State::kReady: break;
  }
  peerStaging_->keep(slot->region);
  return true;
}

void StagedTransfer::grant() {
  if (!onStream()) return;
  if (isPut() && localIsDevice())
    word_->store(std::min(groups_.size(), done_ + PeerStaging::kSlots), std::memory_order_release);
}

bool StagedTransfer::advanceMoving() {
  bool moved = false;
  const size_t last = std::min(groups_.size(), done_ + PeerStaging::kSlots);
  for (size_t i = done_; i < last; ++i) moved |= advanceGroup(i);
  const size_t before = done_;
  while (done_ < last && groups_[done_].step == steps_.size()) ++done_;
  if (done_ != before && failure_.isOk()) grant();
  const bool idle =
      std::none_of(groups_.begin(), groups_.end(), [](const Group& group) { return group.busy; });
  if (done_ < groups_.size() && (failure_.isOk() || !idle)) return moved;
  // All is done, or no group goes on any more, except for copies through which the stream is let
  // go.
  if (onStream()) {
    if (failure_.isOk())
      word_->store(groups_.size() + 1, std::memory_order_release);
    else
      poisonWord(*word_, poisoningsOfWait());
  }
  state_ = State::kPassing;
  return true;
}

bool StagedTransfer::stepEnded(Group& group, Status& status) {
  switch (steps_[group.step]) {
    case Step::kLocal:
      if (onStream()) return group.post.ended();
      if (!group.deferred->ended()) return false;
      status = group.deferred->status();
      return true;
    case Step::kWire:
      if (!group.wire.done()) return false;
      status = group.wire.status();
      return true;
    case Step::kRemote:
      if (!group.move->ended.load(std::memory_order_acquire)) return false;
      status = group.move->status;
      return true;
  }
  return true;
}

bool StagedTransfer::advanceGroup(size_t index) {
  Group& group = groups_[index];
  if (group.step == steps_.size()) return false;
  if (!group.busy) return failure_.isOk() && start(index);
  Status status;
  if (!stepEnded(group, status)) return false;
  group.busy = false;
  ++group.step;
  if (!status.isOk()) fail(status);
  if (group.step < steps_.size() && failure_.isOk()) (void)start(index);
  return true;
}

// False: not yet.
bool StagedTransfer::start(size_t index) {
  Group& group = groups_[index];
  Status status;
  switch (steps_[group.step]) {
    case Step::kLocal:
      if (onStream()) {
        // The stream takes the groups in their order; a put's may go as soon as it is granted.
        if (!isPut() && index != fetched_) return false;
        if (!isPut()) word_->store(++fetched_, std::memory_order_release);
      } else {
        group.deferred = executor_->submitDeferred(group.program);
      }
      break;
    case Step::kWire: status = startWire(index); break;
    case Step::kRemote: startRemote(index); break;
  }
  group.busy = status.isOk();
  if (!status.isOk()) fail(status);
  return true;
}

Status StagedTransfer::startWire(size_t index) {
  Group& group = groups_[index];
  std::vector<Region> locals;
  if (localIsDevice())
    locals.emplace_back(memory_->record(), std::array<uint8_t, 16>{});
  else
    for (const auto& local : blocks_.locals())
      locals.emplace_back(local, std::array<uint8_t, 16>{});
  std::vector<Block> blocks;
  uint64_t at = offsetOf(index);
  for (const Piece& piece : group.pieces) {
    Block block{.bytes = piece.bytes};
    block.local = localIsDevice() ? &locals.front() : &locals[piece.local];
    block.localOffset = localIsDevice() ? at : piece.localOffset;
    block.remote = remoteStaging_ ? &remoteStaging_ : &blocks_.remotes()[piece.remote];
    block.remoteOffset = remoteStaging_ ? at : piece.remoteOffset;
    blocks.push_back(block);
    at += piece.bytes;
  }
  // From staging to staging they lie side by side.
  if (localIsDevice() && remoteStaging_) {
    blocks.resize(1);
    blocks.front().bytes = group.bytes;
  }
  BlockProgram program;
  PEERLANE_RETURN_IF_ERROR(program.take(*peer_, blocks_.direction(), blocks));
  auto core = std::make_shared<TransferCore>(peer_, std::move(program), OwnedNotify(),
                                             /*isPart=*/true);
  PEERLANE_RETURN_IF_ERROR(TransferCore::begin(core, nullptr));
  group.wire = Transfer(std::move(core));
  return Status::ok();
}

void StagedTransfer::startRemote(size_t index) {
  Group& group = groups_[index];
  control::StagedMove move;
  move.outOfStaging = isPut();
  move.offset = offsetOf(index);
  for (const Piece& piece : group.pieces) {
    const RegionReference& region = blocks_.remotes()[piece.remote].reference();
    move.pieces.push_back({region.allocation, region.generation, piece.remoteOffset, piece.bytes});
  }
  group.move = std::make_shared<RemoteMove>();
  peer_->staging().askForMove(std::move(move),
                              [asked = group.move, &progress = progress_](Status status) {
                                asked->status = std::move(status);
                                asked->ended.store(true, std::memory_order_release);
                                progress.nudge();
                              });
}

void StagedTransfer::end(const Status& status) {
  state_ = State::kEnded;
  if (word_ != nullptr) {
    poisonWord(*word_, poisoningsOfWait());
    executor_->returnWord(word_, passed_);
    if (std::exchange(isOnStream_, false)) executor_->waitEnded();
    word_ = nullptr;
  }
  if (std::exchange(queued_, false)) peerStaging_->leave(half(), this);
  if (std::exchange(entered_, false)) blocks_.leaveLocals();
  if (std::exchange(watched_, false)) progress_.deviceStoresSeen();
  peer_->metrics().ended(status.code()).add();
  if (status.isOk()) {
    uint64_t bytes = 0;
    for (const Group& group : groups_) bytes += group.bytes;
    peer_->bytes(nullptr, kStagedEngine, isPut() ? "put" : "get").add(bytes);
  }
  peer_->pendingOperations().fetch_sub(1, std::memory_order_release);
  markEnded(status);
}

std::string StagedTransfer::describe() const {
  static constexpr const char* kDoing[] = {"waits for its stream to get there",
                                           "waits for the staging memory",
                                           "is staged through host memory",
                                           "waits for its stream to pass it",
                                           "delivers its message",
                                           "ended"};
  if (state_ == State::kEnded) return {};
  const auto age =
      std::chrono::duration_cast<std::chrono::milliseconds>(Progress::Clock::now() - since_);
  return "transfer to peer " + std::to_string(peer_->number()) + ", since " +
         std::to_string(age.count()) + " ms: " + kDoing[static_cast<size_t>(state_)] + ", " +
         std::to_string(done_) + " of " + std::to_string(groups_.size()) + " groups done";
}

}  // namespace peerlane
