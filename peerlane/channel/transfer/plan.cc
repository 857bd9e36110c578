// SPDX-License-Identifier: Apache-2.0
//
// Posting path: Plan::post of a prepared plan allocates nothing, takes no lock and enters the
// kernel only to wake a sleeper. Keep it that way; tests/channel/transfer/posting_path_test.cc
// counts.
#include "peerlane/channel/transfer/plan.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/channel/blocks/index_check.h"
#include "peerlane/channel/blocks/plan_gates.h"
#include "peerlane/channel/transfer/device_plan.h"
#include "peerlane/channel/transfer/plan_post.h"
#include "peerlane/channel/transfer/staged_plan.h"
#include "peerlane/channel/transfer/transfer_core.h"
#include "peerlane/program/cpu/cpu_program.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

// One post at a time.
class PlanCore final : public Task, public std::enable_shared_from_this<PlanCore> {
 public:
  PlanCore(std::shared_ptr<PeerCore> peer, BlockProgram blocks)
      : peer_(std::move(peer)), blocks_(std::move(blocks)) {}
  ~PlanCore() override;

  Status prepare(const PlanOptions& options, std::chrono::nanoseconds timeout);
  Result<Transfer> post();
  Result<Transfer> post(std::span<const uint32_t> local, std::span<const uint32_t> remote);

  Turn turn() override;
  std::string describe() const override;

 private:
  // Raises the flag; on a refusal it is down again.
  // Inline as count(): calls would be a tenth of what a post of a few bytes takes.
  Status raise() {
    // The flag falls before the end is told, so that a caller that was told may post.
    if (gates_.raised()) [[unlikely]]
      return stillRuns();
    return gates_.raise() ? Status::ok() : lowerAndSay();
  }
  [[gnu::cold]] static Status stillRuns();
  [[gnu::cold]] Status lowerAndSay();
  void lower() { gates_.lower(); }
  Result<Transfer> run(cpu::Indices indices);
  // The metrics are shared by all threads; a plan adds to them once in a while, for a locked
  // instruction costs as much as moving a small block.
  void count(uint64_t bytes) {
    uncountedBytes_ += bytes;
    if (++uncountedPosts_ >= kPostsPerCount) [[unlikely]]
      tellMetrics();
  }
  void tellMetrics();
  Status outcome(Code code);

  const std::shared_ptr<PeerCore> peer_;
  BlockProgram blocks_;
  OwnedNotify notify_;
  cpu::CpuProgram program_;
  cpu::CpuRun run_;
  Mailbox* mailbox_ = nullptr;
  PlanGates gates_{*peer_};
  std::shared_ptr<PlanPost> running_;  // from the poster to the turning thread
  IndexCheck indexCheck_;
  std::vector<uint32_t> toIndex_;  // copies, for posts that go on after the call returned
  std::vector<uint32_t> fromIndex_;
  static constexpr uint64_t kPostsPerCount = 64;
  uint64_t uncountedBytes_ = 0;
  uint64_t uncountedPosts_ = 0;
  Counter* bytesCounter_ = nullptr;
  Counter* endedCounter_ = nullptr;
};

PlanCore::~PlanCore() {
  // The locks below may be held for ever by threads that are not here.
  if (peer_->forked()) return;
  tellMetrics();
  if (mailbox_ != nullptr && mailbox_->idle()) peer_->mailboxes().giveBack(mailbox_);
}

Status PlanCore::prepare(const PlanOptions& options, std::chrono::nanoseconds timeout) {
  if (options.signal) {
    Notify notify;
    notify.signal = options.signal;
    notify.signalAdd = options.signalAdd;
    PEERLANE_ASSIGN(notify_, ownNotify(notify));
    if (blocks_.direction() == Direction::kGet)
      return Status(Code::kInvalidArgument,
                    "a get cannot carry a signal: the peer's memory is only read");
  }
  const auto deadline = Progress::deadlineIn(timeout);
  (void)blocks_.imported(*peer_);  // asks for all at once, so that not each waits for an answer
  for (const RemoteRegion& remote : blocks_.remotes())
    PEERLANE_RETURN_IF_ERROR(remote.prepare(deadline - Progress::Clock::now()));
  PEERLANE_RETURN_IF_ERROR(blocks_.importFailure());
  Program program;
  Binding binding;
  PEERLANE_RETURN_IF_ERROR(blocks_.lower(*peer_, notify_, program, binding));
  for (const BoundTarget& target : binding.targets)
    if (target.address == nullptr && mailbox_ == nullptr) mailbox_ = peer_->mailboxes().borrow();
  binding.mailbox = mailbox_;
  PEERLANE_RETURN_IF_ERROR(
      program_.prepare(std::move(program), std::move(binding), &peer_->copier()));
  if (blocks_.layout().kind == CopyLayout::Kind::kIndexed) {
    indexCheck_ = IndexCheck(blocks_.layout());
    toIndex_.reserve(blocks_.layout().count);
    fromIndex_.reserve(blocks_.layout().count);
  }
  PEERLANE_RETURN_IF_ERROR(gates_.enroll(blocks_, notify_.signal.has_value()));
  // Made and given back: the first two posts that go on after their call find them.
  (void)std::pair(PlanPost::make(peer_), PlanPost::make(peer_));
  bytesCounter_ = &peer_->bytes(blocks_.link(*peer_), blocks_.engine(),
                                blocks_.direction() == Direction::kPut ? "put" : "get");
  endedCounter_ = &peer_->metrics().ended(Code::kOk);
  return Status::ok();
}

Status PlanCore::stillRuns() {
  return Status(Code::kTryAgain, "the plan's last post still runs");
}

// The flag first: an owner that takes a region back looks at it, and finds it down between two
// refusals.
Status PlanCore::lowerAndSay() {
  gates_.lower();
  return gates_.refusal();
}

void PlanCore::tellMetrics() {
  if (uncountedPosts_ == 0) return;
  bytesCounter_->add(std::exchange(uncountedBytes_, 0));
  endedCounter_->add(std::exchange(uncountedPosts_, 0));
}

Result<Transfer> PlanCore::post() {
  if (blocks_.layout().kind == CopyLayout::Kind::kIndexed)
    return Status(Code::kInvalidArgument, "an indexed plan is posted with block numbers");
  PEERLANE_RETURN_IF_ERROR(raise());
  if (program_.isStraight()) {
    program_.runStraight();
    lower();
    count(blocks_.bytes());
    return Result<Transfer>(std::in_place, Status::ok());
  }
  return run({});
}

Result<Transfer> PlanCore::post(std::span<const uint32_t> local, std::span<const uint32_t> remote) {
  if (blocks_.layout().kind != CopyLayout::Kind::kIndexed)
    return Status(Code::kInvalidArgument,
                  "this plan has fixed blocks; it is posted without block numbers");
  PEERLANE_RETURN_IF_ERROR(indexCheck_.counts(local.size(), remote.size()));
  const bool isPut = blocks_.direction() == Direction::kPut;
  PEERLANE_RETURN_IF_ERROR(raise());
  const auto to = isPut ? remote : local;
  const auto from = isPut ? local : remote;
  if (Status bad = indexCheck_.check(to, from); !bad.isOk()) {
    lower();
    return bad;
  }
  if (mailbox_ == nullptr) return run({to, from});
  toIndex_.assign(to.begin(), to.end());
  fromIndex_.assign(from.begin(), from.end());
  return run({toIndex_, fromIndex_});
}

Result<Transfer> PlanCore::run(cpu::Indices indices) {
  const uint64_t cursor = 0;  // plans have no lanes: their words only grow by additions
  run_.start(program_, {&cursor, program_.program().cursorAdvance.size()}, indices);
  if (run_.advance(std::numeric_limits<uint64_t>::max()) == cpu::Step::kEnded) {
    const Code code = run_.code();
    if (code != Code::kOk) [[unlikely]] {
      Status failed = outcome(code);
      lower();
      return Transfer(std::move(failed));
    }
    const uint64_t moved = run_.bytesMoved();
    lower();
    count(moved);
    return Result<Transfer>(std::in_place, Status::ok());
  }
  peer_->pendingOperations().fetch_add(1, std::memory_order_relaxed);
  const std::shared_ptr<PlanPost> post = running_ = PlanPost::make(peer_);
  peer_->progress().addFor(shared_from_this(), mailbox_);
  return Transfer(post);
}

Task::Turn PlanCore::turn() {
  if (running_->cancelled()) run_.cancel(Code::kCancelled);
  if (const Code failed = peer_->failureCode(); failed != Code::kOk) run_.cancel(failed);
  const uint64_t before = run_.bytesMoved();
  if (run_.advance(uint64_t{8} << 20) != cpu::Step::kEnded)
    return run_.bytesMoved() != before ? Turn::kMoved : Turn::kIdle;
  peer_->pendingOperations().fetch_sub(1, std::memory_order_release);
  const Status status = outcome(run_.code());
  if (status.isOk()) count(run_.bytesMoved());
  // From where the flag falls on, the next post may have all the rest.
  const std::shared_ptr<PlanPost> post = std::move(running_);
  lower();
  post->markEnded(status);
  return Turn::kFinished;
}

// How the run has ended, in words.
Status PlanCore::outcome(Code code) {
  if (code == Code::kOk) return Status::ok();
  peer_->metrics().ended(code).add();
  if (code == Code::kCancelled)
    return Status(code, "the post was cancelled; its destination bytes are undefined");
  if (Status failure = peer_->failure(); !failure.isOk()) return failure;
  if (code == Code::kRevoked || code == Code::kPermissionDenied)
    if (const Status revoked = gates_.whyRevoked(); !revoked.isOk())
      return revoked.withContext("the bytes of the post are undefined");
  if (code == Code::kRevoked) return blocks_.whyGone();
  return Status(code, "the post to " + peer_->name() + " failed at " + describeRun(program_, run_));
}

std::string PlanCore::describe() const {
  if (run_.ended()) return {};
  return "plan to peer " + std::to_string(peer_->number()) + ", " +
         std::to_string(blocks_.bytes()) + " bytes: " + describeRun(program_, run_);
}

namespace {

Status emptyPlan() {
  return Status(Code::kInvalidArgument, "an empty Plan; take one from Plan::create");
}

Status hostPlan() {
  return Status(Code::kInvalidArgument,
                "this plan moves host memory; it is posted without a device stream");
}

}  // namespace

Result<Transfer> Plan::post() {
  if (core_) [[likely]]
    return core_->post();
  return post(DeviceStream());
}
Result<Transfer> Plan::post(std::span<const uint32_t> localIndex,
                            std::span<const uint32_t> remoteIndex) {
  if (core_) [[likely]]
    return core_->post(localIndex, remoteIndex);
  return post(localIndex, remoteIndex, DeviceStream());
}
Result<Transfer> Plan::post(DeviceStream stream) {
  if (device_) [[likely]]
    return device_->post(stream);
  if (staged_) return staged_->post(stream);
  return core_ ? hostPlan() : emptyPlan();
}
Result<Transfer> Plan::post(std::span<const uint32_t> localIndex,
                            std::span<const uint32_t> remoteIndex, DeviceStream stream) {
  if (device_) [[likely]]
    return device_->post(localIndex, remoteIndex, stream);
  if (staged_) return staged_->post(localIndex, remoteIndex, stream);
  return core_ ? hostPlan() : emptyPlan();
}
Result<Transfer> Plan::post(const DeviceIndexList& indices, DeviceStream stream) {
  if (device_) [[likely]]
    return device_->post(indices, stream);
  if (staged_)
    return Status(Code::kNotSupported,
                  "block numbers in device memory, for a plan whose blocks are staged by the host");
  return core_ ? hostPlan() : emptyPlan();
}

template <typename Blocks>
Result<Plan> Plan::make(const Peer& peer, Direction direction, const Blocks& blocks,
                        const PlanOptions& options) {
  if (!peer)
    return Status(Code::kInvalidArgument,
                  "an empty Peer; take one from Context::connect or accept");
  PEERLANE_RETURN_IF_ERROR(peer.core()->usable());
  BlockProgram program;
  PEERLANE_RETURN_IF_ERROR(program.take(*peer.core(), direction, blocks));
  Plan plan;
  if (std::string why = program.whyStaged(*peer.core(), {}); !why.empty()) {
    PEERLANE_ASSIGN(plan.staged_,
                    StagedPlan::create(peer.core(), std::move(program), options, std::move(why)));
    return plan;
  }
  PEERLANE_ASSIGN(DeviceExecutor* const executor, program.executor(*peer.core(), {}));
  if (executor != nullptr) {
    PEERLANE_ASSIGN(plan.device_,
                    DevicePlan::create(peer.core(), *executor, std::move(program), options));
    return plan;
  }
  plan.core_ = std::make_shared<PlanCore>(peer.core(), std::move(program));
  const Status prepared = plan.core_->prepare(options, options.timeout);
  if (prepared.isOk()) return plan;
  // That the owner's device does not take the memory is known only now.
  BlockProgram again;
  if (prepared.code() != Code::kNotSupported || !again.take(*peer.core(), direction, blocks).isOk())
    return prepared;
  std::string why = again.whyStaged(*peer.core(), {});
  if (why.empty()) return prepared;
  PEERLANE_ASSIGN(plan.staged_,
                  StagedPlan::create(peer.core(), std::move(again), options, std::move(why)));
  plan.core_ = nullptr;
  return plan;
}

Result<Plan> Plan::create(const Peer& peer, Direction direction, std::span<const Block> blocks,
                          const PlanOptions& options) {
  return make(peer, direction, blocks, options);
}
Result<Plan> Plan::create(const Peer& peer, Direction direction, const StridedBlocks& blocks,
                          const PlanOptions& options) {
  return make(peer, direction, blocks, options);
}
Result<Plan> Plan::create(const Peer& peer, Direction direction, const IndexedBlocks& blocks,
                          const PlanOptions& options) {
  return make(peer, direction, blocks, options);
}

}  // namespace peerlane
