// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/entry_writer.h"

#include <string>
#include <utility>
#include <vector>

namespace peerlane {
namespace {

Status noRoom(const Mailbox& mailbox) {
  return Status(Code::kTryAgain,
                "all " + std::to_string(mailbox.slots()) +
                    " operations of the queue are prepared or under way; wait "
                    "for a commit, or create it with more (TriggerOptions::operations)");
}

// What one agent, or the serving thread itself, moves by one entry.
struct Group {
  const Agent* agent = nullptr;  // null: mapped here
  bool mayBeCut = false;
  std::vector<Piece> pieces;
};

std::vector<Group> groupsOf(const PostedWork& work, bool isPut) {
  std::vector<Group> groups;
  const auto& targets = work.binding().targets;
  const auto add = [&](const Segment& segment) {
    const BoundTarget& local = targets[isPut ? segment.from : segment.to];
    const BoundTarget& remote = targets[isPut ? segment.to : segment.from];
    const Agent* const agent = remote.address == nullptr ? remote.remote->agent : nullptr;
    if (groups.empty() || groups.back().agent != agent) groups.push_back({agent, false, {}});
    groups.back().mayBeCut |= local.mayBeCut || remote.mayBeCut;
    groups.back().pieces.push_back(
        {local.address + (isPut ? segment.fromOffset : segment.toOffset), remote.remote,
         remote.remoteOffset + (isPut ? segment.toOffset : segment.fromOffset), segment.bytes});
  };
  for (const Op& op : work.program().ops)
    if (op.code == OpCode::kCopyList)
      work.program().lists[op.list].eachBlock(add);
    else
      add({op.to.target, op.from.target, op.to.offset, op.from.offset, op.bytes});
  return groups;
}

// What was posted before and is complete says nothing about what comes.
void forgetAnswered(const Mailbox& mailbox, OpenEntries& open) {
  if (mailbox.idle()) open = {};
}

}  // namespace

Result<uint64_t> writeEntries(Mailbox& mailbox, PostedWork& work, bool isPut, OpenEntries& open) {
  forgetAnswered(mailbox, open);
  std::vector<Group> groups = groupsOf(work, isPut);
  uint64_t claimed = 0;
  const OpenEntries before = open;
  for (Group& group : groups) {
    MailboxEntry* const entry = mailbox.claim();
    if (entry == nullptr) {
      mailbox.unclaim(claimed);
      open = before;
      return noRoom(mailbox);
    }
    ++claimed;
    work.pieces().push_back(std::move(group.pieces));
    const std::vector<Piece>& pieces = work.pieces().back();
    entry->verb = isPut ? Verb::kPut : Verb::kGet;
    entry->pieces = pieces.data();
    entry->pieceCount = static_cast<uint32_t>(pieces.size());
    entry->isMapped = group.agent == nullptr;
    entry->mayBeCut = group.mayBeCut;
    const auto kind = isPut ? OpenEntries::Kind::kPuts : OpenEntries::Kind::kGets;
    entry->afterAll =
        !entry->isMapped && open.kind != kind && open.kind != OpenEntries::Kind::kNone;
    open.kind = entry->isMapped ? OpenEntries::Kind::kNone : kind;
    if (isPut && !entry->isMapped)
      open.puts.add(pieces.front().remote, false);
    else
      open.puts.addOther();
  }
  return claimed;
}

Result<uint64_t> writeAddition(Mailbox& mailbox, const RemoteMemory& memory, uint64_t offset,
                               uint64_t value, const Waker* waker, bool isSignal,
                               OpenEntries& open) {
  forgetAnswered(mailbox, open);
  MailboxEntry* const entry = mailbox.claim();
  if (entry == nullptr) return noRoom(mailbox);
  const cpu::OpenPuts::Before before = open.puts.before(&memory);
  entry->verb = Verb::kAdd64;
  entry->order = Order::kRelease;
  entry->remote = &memory;
  entry->remoteOffset = offset;
  entry->operand = value;
  entry->isMapped = memory.mapped != nullptr;
  entry->waker = waker;
  entry->onlyAfterPrevious = !entry->isMapped && before == cpu::OpenPuts::Before::kLast;
  // Who sees it may write the memory that a get before it reads.
  entry->afterAll = before == cpu::OpenPuts::Before::kAnswers ||
                    (!entry->isMapped && open.kind == OpenEntries::Kind::kGets);
  if (entry->isMapped)
    open.kind = OpenEntries::Kind::kNone;
  else if (!isSignal)
    open.kind = OpenEntries::Kind::kAdditions;
  open.puts.addOther();
  return uint64_t{1};
}

}  // namespace peerlane
