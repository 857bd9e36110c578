// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/triggered_queue.h"

#include <utility>

#include "peerlane/channel/trigger/triggered_core.h"

namespace peerlane {

struct TriggeredQueue::Closed {
  explicit Closed(std::shared_ptr<TriggeredCore> of) : core(std::move(of)) {}
  ~Closed() { core->close(); }
  Closed(const Closed&) = delete;
  Closed& operator=(const Closed&) = delete;
  const std::shared_ptr<TriggeredCore> core;
};

namespace {

Status emptyQueue() {
  return Status(Code::kInvalidArgument,
                "an empty TriggeredQueue; take one from TriggeredQueue::create");
}

template <typename Post>
Status postTo(const std::shared_ptr<TriggeredCore>& core, const Post& post) {
  if (!core) return emptyQueue();
  PEERLANE_ASSIGN(PostedBatch* const batch, core->posting());
  return post(*batch);
}

}  // namespace

TriggeredQueue::TriggeredQueue(std::shared_ptr<TriggeredCore> core)
    : core_(std::move(core)), closed_(std::make_shared<Closed>(core_)) {}

Result<TriggeredQueue> TriggeredQueue::create(const Peer& peer, const TriggerOptions& options) {
  if (!peer)
    return Status(Code::kInvalidArgument,
                  "an empty Peer; take one from Context::connect or accept");
  PEERLANE_ASSIGN(auto core, TriggeredCore::create(peer.core(), options));
  return TriggeredQueue(std::move(core));
}

Status TriggeredQueue::put(std::span<const Block> blocks) {
  return postTo(core_, [&](PostedBatch& batch) { return batch.post(Direction::kPut, blocks); });
}
Status TriggeredQueue::get(std::span<const Block> blocks) {
  return postTo(core_, [&](PostedBatch& batch) { return batch.post(Direction::kGet, blocks); });
}
Status TriggeredQueue::signal(uint32_t number, uint64_t add) {
  return postTo(core_, [&](PostedBatch& batch) { return batch.postSignal(number, add); });
}
Status TriggeredQueue::add(const RemoteRegion& region, uint64_t offset, uint64_t value) {
  return postTo(core_, [&](PostedBatch& batch) { return batch.postAdd(region, offset, value); });
}
Status TriggeredQueue::receive(uint32_t number, uint64_t value) {
  return postTo(core_, [&](PostedBatch& batch) { return batch.postReceive(number, value); });
}
void TriggeredQueue::discard() {
  if (core_) core_->batch().discard();
}

uint32_t TriggeredQueue::commitOps() const {
  return core_ ? core_->batch().ops() : 0;
}
uint32_t TriggeredQueue::peekOps(uint64_t number) const {
  return core_ ? core_->peekOps(number) : 0;
}
Result<TriggerProgram> TriggeredQueue::commit(uint32_t mostOps) {
  return core_ ? core_->commit(mostOps) : emptyQueue();
}
Status TriggeredQueue::rollback(const TriggerId& commit) {
  return core_ ? core_->rollback(commit) : emptyQueue();
}

Result<TriggerProgram> TriggeredQueue::peek(uint64_t number, uint32_t mostOps) {
  return core_ ? core_->peek(number, mostOps) : emptyQueue();
}
Status TriggeredQueue::abortPeek(const TriggerId& peek) {
  return core_ ? core_->abortPeek(peek) : emptyQueue();
}
Status TriggeredQueue::poll(uint64_t number) {
  return core_ ? core_->poll(number) : emptyQueue();
}

Status TriggeredQueue::enqueueCommit(const TriggerId& commit) {
  return core_ ? core_->enqueueCommit(commit) : emptyQueue();
}
Status TriggeredQueue::enqueuePeek(const TriggerId& peek) {
  return core_ ? core_->enqueuePeek(peek) : emptyQueue();
}
Status TriggeredQueue::enqueueCommit(const TriggerId& commit, DeviceStream stream) {
  return core_ ? core_->enqueueCommit(commit, stream) : emptyQueue();
}
Status TriggeredQueue::enqueuePeek(const TriggerId& peek, DeviceStream stream,
                                   std::chrono::nanoseconds timeout) {
  return core_ ? core_->enqueuePeek(peek, stream, timeout) : emptyQueue();
}
std::span<const TriggerRow> TriggeredQueue::targets() const {
  return core_ ? core_->batch().rows() : std::span<const TriggerRow>();
}

Result<TriggerList> TriggeredQueue::resolve(const TriggerProgram& program,
                                            std::span<TriggerOp> room) const {
  if (!core_) return emptyQueue();
  if (program.program == nullptr)
    return Status(Code::kInvalidArgument, "an empty TriggerProgram; take one from commit or peek");
  PEERLANE_ASSIGN(const uint32_t ops, core_->batch().resolve(*program.program, room));
  return TriggerList{ops, core_->statusWord()};
}

Status TriggeredQueue::execute(const TriggerId& commit) {
  return core_ ? core_->execute(commit) : emptyQueue();
}
Status TriggeredQueue::executePeek(const TriggerId& peek, std::chrono::nanoseconds timeout) {
  return core_ ? core_->executePeek(peek, timeout) : emptyQueue();
}
Status TriggeredQueue::wait(uint64_t number, std::chrono::nanoseconds timeout) {
  if (!core_) return emptyQueue();
  PEERLANE_RETURN_IF_ERROR(core_->runsOn(false));
  PEERLANE_ASSIGN(const TriggerProgram made, peek(number));
  Status waited = core_->executePeek(made.id, timeout);
  // The caller has no name for the peek.
  if (waited.code() == Code::kTimeout) core_->peeks().forget(made.id);
  return waited;
}

void TriggeredQueue::cancel() {
  if (core_) core_->fail(Status(Code::kCancelled, "the triggered queue was cancelled"));
}
Status TriggeredQueue::status() const {
  return core_ ? core_->status() : emptyQueue();
}
void TriggeredQueue::wake() {
  if (core_) core_->wake();
}
std::string TriggeredQueue::emitter() const {
  if (!core_) return "";
  switch (core_->batch().emitter()) {
    case TriggerEmitter::kMapped: return "mapped";
    case TriggerEmitter::kDoorbell: return "doorbell";
    case TriggerEmitter::kAuto: break;
  }
  return "undecided";
}
std::string TriggeredQueue::whyNotOther() const {
  return core_ ? core_->batch().whyNotOther() : "";
}

}  // namespace peerlane
