// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/staging/staged_move.h"

#include <algorithm>
#include <string>
#include <utility>

#include "peerlane/os/cuda.h"
#include "peerlane/session/staging/staging_copy.h"

namespace peerlane {
namespace {

Status checkPiece(const RegionRecord& record, const control::StagedPiece& piece, Access wanted) {
  const std::string name = "region " + std::to_string(record.allocation);
  if (record.memory.device.kind == DeviceKind::kHost)
    return Status(Code::kInvalidArgument, name + " is host memory, which needs no staging here");
  if (!allows(record.access, wanted))
    return Status(Code::kPermissionDenied, name + " grants " + accessName(record.access) +
                                               ", this needs " + accessName(wanted));
  if (piece.bytes == 0 || piece.bytes > record.bytes || piece.offset > record.bytes - piece.bytes)
    return Status(Code::kInvalidArgument, "range [" + std::to_string(piece.offset) + ", +" +
                                              std::to_string(piece.bytes) + ") of the " +
                                              std::to_string(record.bytes) + " bytes of " + name);
  if (!isInChunks(record.memory.kind) && cuda::identityOf(record.base) != record.memory.identity)
    return Status(Code::kRevoked, name + " was freed without being unregistered");
  return Status::ok();
}

}  // namespace

Status StagedMove::begin(const Environment& env, std::shared_ptr<StagingMemory> staging,
                         const control::StagedMove& asked, std::function<void(Status)> ended) {
  auto move = std::make_shared<StagedMove>(env.progress);
  move->staging_ = std::move(staging);
  PEERLANE_RETURN_IF_ERROR(move->take(env, asked));
  PEERLANE_RETURN_IF_ERROR(move->prepare());
  for (Part& part : move->parts_) part.deferred = part.executor->submitDeferred(part.program);
  move->ended_ = std::move(ended);
  move->watched_ = true;
  env.progress.expectDeviceStores();
  env.progress.add(std::move(move));
  return Status::ok();
}

StagedMove::~StagedMove() {
  if (forkGeneration() == forks_) leave();
}

StagedMove::Part& StagedMove::partOf(DeviceExecutor* executor) {
  for (Part& part : parts_)
    if (part.executor == executor) return part;
  parts_.emplace_back().executor = executor;
  return parts_.back();
}

Status StagedMove::take(const Environment& env, const control::StagedMove& asked) {
  const Access wanted = asked.outOfStaging ? Access::kRemoteWrite : Access::kRemoteRead;
  if (asked.pieces.empty()) return Status(Code::kInvalidArgument, "a move without pieces");
  uint64_t at = asked.offset;
  for (const control::StagedPiece& piece : asked.pieces) {
    PEERLANE_ASSIGN(auto record, env.regions.find(piece.allocation, piece.generation));
    PEERLANE_RETURN_IF_ERROR(checkPiece(*record, piece, wanted));
    if (at > staging_->bytes() || piece.bytes > staging_->bytes() - at)
      return Status(Code::kInvalidArgument, "the pieces go beyond the " +
                                                std::to_string(staging_->bytes()) +
                                                " bytes of the staging memory");
    const auto executor =
        std::find_if(env.devices.begin(), env.devices.end(),
                     [&](const auto& each) { return each->device() == record->memory.device; });
    if (executor == env.devices.end())
      return Status(Code::kInternal, record->memory.device.toString() + " has no executor");
    auto known = std::find(records_.begin(), records_.end(), record);
    if (known == records_.end()) {
      if (!record->gate.enter()) return record->whyClosed();
      records_.push_back(std::move(record));
      known = records_.end() - 1;
    }
    const auto target = static_cast<TargetId>(kFirstRegionTarget + (known - records_.begin()));
    partOf(executor->get())
        .segments.push_back(asked.outOfStaging
                                ? Segment{target, kStagingTarget, piece.offset, at, piece.bytes}
                                : Segment{kStagingTarget, target, at, piece.offset, piece.bytes});
    at += piece.bytes;
  }
  bytes_ = at - asked.offset;
  return Status::ok();
}

Status StagedMove::prepare() {
  for (Part& part : parts_) {
    PEERLANE_ASSIGN(part.program, prepareStagingCopy(*part.executor, *staging_->record(), records_,
                                                     std::move(part.segments)));
  }
  return Status::ok();
}

void StagedMove::leave() {
  for (const auto& record : std::exchange(records_, {})) record->gate.leave();
  if (std::exchange(watched_, false)) progress_.deviceStoresSeen();
}

Status StagedMove::deviceFailure() {
  for (Part& part : parts_) PEERLANE_RETURN_IF_ERROR(part.health.look(*part.executor));
  return Status::ok();
}

bool StagedMove::isPassed() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.deferred->ended(); });
}

Status StagedMove::outcome() const {
  for (const Part& part : parts_) PEERLANE_RETURN_IF_ERROR(part.deferred->status());
  return Status::ok();
}

// What one device does is not called back because another one failed.
Task::Turn StagedMove::turn() {
  Status status;
  if (isPassed()) {
    status = outcome();
  } else {
    status = deviceFailure();
    if (status.isOk()) return Turn::kIdle;
  }
  leave();
  std::exchange(ended_, {})(status);
  return Turn::kFinished;
}

std::string StagedMove::describe() const {
  if (!ended_) return {};
  return "staged move of " + std::to_string(bytes_) + " bytes for a peer: on its device";
}

}  // namespace peerlane
