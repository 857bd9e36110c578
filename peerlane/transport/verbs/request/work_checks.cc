// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/request/work_checks.h"

namespace peerlane {
namespace {

bool isCopy(Verb verb) {
  return verb == Verb::kPut || verb == Verb::kGet;
}

Code refusalOf(const RegionGrant& grant, uint64_t offset, uint64_t bytes, Access wanted) {
  if (bytes > grant.bytes || offset > grant.bytes - bytes) return Code::kInvalidArgument;
  return allows(grant.access, wanted) ? Code::kOk : Code::kPermissionDenied;
}

}  // namespace

Code refusalOf(const MailboxEntry& entry) {
  if (entry.verb == Verb::kFlush) return Code::kOk;
  if (!isCopy(entry.verb)) {
    const uint64_t bytes = entry.width == Width::k32 ? 4 : 8;
    if (entry.remoteOffset % bytes != 0) return Code::kInvalidArgument;
    return refusalOf(entry.remote->grant, entry.remoteOffset, bytes, Access::kRemoteWrite);
  }
  const Access wanted = entry.verb == Verb::kPut ? Access::kRemoteWrite : Access::kRemoteRead;
  for (uint32_t i = 0; i < entry.pieceCount; ++i) {
    const Piece& piece = entry.pieces[i];
    const Code code = refusalOf(piece.remote->grant, piece.remoteOffset, piece.bytes, wanted);
    if (code != Code::kOk) return code;
  }
  return Code::kOk;
}

Code failureBefore(const AgentWork& work) {
  const AgentWork* const before = work.mailbox->previous(work);
  if (before == nullptr) return work.mailbox->code();
  const Code code = before->code.load(std::memory_order_acquire);
  // Its place may have been used again meanwhile.
  return work.mailbox->previous(work) == nullptr ? work.mailbox->code() : code;
}

bool isInVain(AgentWork& work) {
  if (!work.entry->onlyAfterPrevious) return false;
  const Code code = failureBefore(work);
  if (code != Code::kOk) work.code.store(code, std::memory_order_relaxed);
  return code != Code::kOk;
}

}  // namespace peerlane
