// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/transfer/transfer.h"

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/channel/transfer/device_transfer.h"
#include "peerlane/channel/transfer/staged_transfer.h"
#include "peerlane/channel/transfer/transfer_core.h"
#include "peerlane/os/process.h"
#include "peerlane/os/readiness.h"

namespace peerlane {
namespace {

Status usable(const Peer& peer) {
  if (!peer)
    return Status(Code::kInvalidArgument,
                  "an empty Peer; take one from Context::connect or accept");
  return peer.core()->usable();
}

Status roomFor(const OwnedNotify& notify, PeerCore& peer) {
  return notify.hasMessage ? NotifyNumbers::of(peer)->room() : Status::ok();
}

template <typename Blocks>
Result<Transfer> post(const Peer& peer, Direction direction, const Blocks& blocks,
                      const PostOptions& options) {
  PEERLANE_RETURN_IF_ERROR(usable(peer));
  if (direction == Direction::kGet && (options.notify.message || options.notify.signal))
    return Status(Code::kInvalidArgument,
                  "a get cannot carry a notification: the peer's memory is only read");
  PEERLANE_ASSIGN(OwnedNotify owned, ownNotify(options.notify));
  PEERLANE_RETURN_IF_ERROR(roomFor(owned, *peer.core()));
  BlockProgram program;
  PEERLANE_RETURN_IF_ERROR(program.take(*peer.core(), direction, blocks, &owned));
  for (const auto& local : program.locals())
    if (!local->gate.open()) return local->whyClosed();
  if (const std::string why = program.whyStaged(*peer.core(), options.deviceStream); !why.empty())
    return StagedTransfer::post(peer.core(), std::move(program), std::move(owned), options, why);
  PEERLANE_ASSIGN(DeviceExecutor* const executor,
                  program.executor(*peer.core(), options.deviceStream));
  if (executor != nullptr)
    return postOnDevice(peer.core(), *executor, std::move(program), std::move(owned), options);
  if (options.deviceStream)
    return Status(Code::kInvalidArgument,
                  "a device stream was given, and none of the memory is a device's");
  PEERLANE_RETURN_IF_ERROR(program.checkIdentity());
  auto core = std::make_shared<TransferCore>(peer.core(), std::move(program), std::move(owned));
  PEERLANE_RETURN_IF_ERROR(TransferCore::begin(core, options.stream));
  return Transfer(std::move(core));
}

}  // namespace

struct Transfer::EndedDescriptor::Shared {
  std::atomic<uint32_t> holders{1};
  Readiness readiness;  // constant once shared
};

Transfer::EndedDescriptor::Shared* Transfer::EndedDescriptor::holdMore(Shared* shared) {
  shared->holders.fetch_add(1, std::memory_order_relaxed);
  return shared;
}

void Transfer::EndedDescriptor::drop(Shared* shared) {
  if (shared->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
}

Result<int> Transfer::EndedDescriptor::get() const {
  Shared* shared = shared_.load(std::memory_order_acquire);
  if (shared == nullptr) {
    auto made = std::make_unique<Shared>();
    made->readiness.set(true);
    PEERLANE_RETURN_IF_ERROR(made->readiness.fd().status());
    // Another thread may be faster.
    if (shared_.compare_exchange_strong(shared, made.get(), std::memory_order_acq_rel))
      shared = made.release();
  }
  return shared->readiness.fd();
}

bool Transfer::done() const {
  return core_ == nullptr || core_->done();
}
Status Transfer::status() const {
  if (core_ == nullptr) return ended_;
  if (core_->forked()) return Operation::forkedStatus();
  return core_->status();
}
Status Transfer::wait(std::chrono::nanoseconds timeout) const {
  if (core_ == nullptr) return ended_;
  if (core_->forked()) return Operation::forkedStatus();
  return core_->wait(timeout);
}
void Transfer::cancel() const {
  if (core_ == nullptr || core_->done() || core_->forked()) return;
  core_->cancel();
}
Result<int> Transfer::fd() const {
  if (core_ == nullptr) return endedFd_.get();
  if (core_->forked()) return Operation::forkedStatus();
  return core_->fd();
}
void Transfer::onEnd(std::function<void(const Status&)> fn) const {
  if (core_ == nullptr) return fn(ended_);
  if (core_->forked()) return fn(Operation::forkedStatus());
  core_->onEnd(std::move(fn));
}

Result<Transfer> put(const Peer& peer, std::span<const Block> blocks, const PostOptions& options) {
  return post(peer, Direction::kPut, blocks, options);
}
Result<Transfer> get(const Peer& peer, std::span<const Block> blocks, const PostOptions& options) {
  return post(peer, Direction::kGet, blocks, options);
}
Result<Transfer> put(const Peer& peer, const StridedBlocks& blocks, const PostOptions& options) {
  return post(peer, Direction::kPut, blocks, options);
}
Result<Transfer> get(const Peer& peer, const StridedBlocks& blocks, const PostOptions& options) {
  return post(peer, Direction::kGet, blocks, options);
}

Result<Transfer> notify(const Peer& peer, const Notify& what, HostStream* stream) {
  PEERLANE_RETURN_IF_ERROR(usable(peer));
  if (!what.message && !what.signal)
    return Status(Code::kInvalidArgument, "a notification without message and signal");
  PEERLANE_ASSIGN(OwnedNotify owned, ownNotify(what));
  PEERLANE_RETURN_IF_ERROR(roomFor(owned, *peer.core()));
  auto core = std::make_shared<TransferCore>(peer.core(), BlockProgram(), std::move(owned));
  PEERLANE_RETURN_IF_ERROR(TransferCore::begin(core, stream));
  return Transfer(std::move(core));
}

Result<Transfer> notify(const Peer& peer, const Notify& what, DeviceStream stream) {
  PEERLANE_RETURN_IF_ERROR(usable(peer));
  if (!stream) return notify(peer, what, static_cast<HostStream*>(nullptr));
  if (!what.message && !what.signal)
    return Status(Code::kInvalidArgument, "a notification without message and signal");
  PEERLANE_ASSIGN(OwnedNotify owned, ownNotify(what));
  PEERLANE_RETURN_IF_ERROR(roomFor(owned, *peer.core()));
  PEERLANE_ASSIGN(DeviceExecutor* const executor, peer.core()->executorOf(stream));
  PostOptions options;
  options.deviceStream = stream;
  return postOnDevice(peer.core(), *executor, BlockProgram(), std::move(owned), options);
}

Status flush(const Peer& peer, std::chrono::nanoseconds timeout) {
  PEERLANE_RETURN_IF_ERROR(usable(peer));
  PeerCore& core = *peer.core();
  const auto done = [&core] {
    return core.pendingOperations().load(std::memory_order_acquire) == 0;
  };
  // Mapped stores are visible when the call that made them returned; an agent ends a transfer when
  // the peer has it.
  if (done()) return Status::ok();
  const auto words = [&core] {
    return std::to_string(core.pendingOperations().load(std::memory_order_relaxed)) +
           " transfers to " + core.name() + " to end (Context::dump shows them)";
  };
  return core.progress().wait(done, timeout, words);
}

}  // namespace peerlane
