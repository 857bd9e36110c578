// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/message_sender.h"

#include <algorithm>
#include <cstring>

#include "peerlane/program/words/word.h"

namespace peerlane {
namespace {

std::string messageName(uint64_t number, uint32_t rank) {
  return "send " + std::to_string(number) + " to rank " + std::to_string(rank);
}

}  // namespace

void LaneSender::admit() {
  Posted posted;
  while (next_ < head_ + kSlots && next(posted)) {
    Entry& entry = entryOf(next_);
    entry.number = next_++;
    entry.posted = std::move(posted);
    entry.withdrawn = false;
    entry.phase = Phase::kHeld;
    posted = {};
  }
}

LanePrograms* LaneSender::programsFor(Entry& entry, bool agent) {
  Result<LanePrograms*> made(static_cast<LanePrograms*>(nullptr));
  const auto make = [this](Mailbox* mailbox) {
    return LanePrograms::makeSender(env_, free_.bytes.data(), mailbox);
  };
  if (agent || !env_.peerAreaMapped()) {
    made = entry.run->agentPrograms(make);
  } else if (!programs_) {
    auto shared = make(nullptr);
    if (shared.isOk())
      programs_ = std::move(*shared);
    else
      made = shared.status();
  }
  if (!made.isOk()) {
    breakLane(made.status());
    return nullptr;
  }
  return *made != nullptr ? *made : programs_.get();
}

void LaneSender::begin(Entry& entry) {
  if (!entry.run) entry.run = std::make_unique<MessageRun>(*env_.peer);
  MessageRun& run = *entry.run;
  LanePrograms* programs = programsFor(entry, false);
  if (programs == nullptr) return;
  run.envelope = {};
  run.envelope.number = entry.number;
  run.envelope.part = entry.posted.part;
  run.envelope.ordinal = entry.posted.ordinal;
  run.targets[kSenderEnvelope] = run.envelopeTarget();
  run.targets[kSenderAnswer] = run.answerTarget();
  run.targets[kSenderPayload] = {};
  entry.kind = MessageKind::kVoid;
  if (entry.posted.batch) {
    const MessageItem& item = itemOf(entry);
    entry.kind = item.kind;
    run.envelope.bytes = item.bytes;
    run.envelope.mayStage = item.mayStage ? 1 : 0;
    if (item.kind == MessageKind::kGet) {
      run.envelope.access = item.region->access;
      run.envelope.allocation = item.region->allocation;
      run.envelope.generation = item.region->generation;
      run.envelope.regionBytes = item.region->bytes;
      run.envelope.offset = static_cast<uint64_t>(item.address - item.region->base);
    } else {
      run.targets[kSenderPayload] = {
          .address = item.address, .bytes = item.bytes, .mayBeCut = item.mayBeCut()};
    }
  }
  run.envelope.kind = entry.kind;
  // Only an eager message takes its payload along; the program is the same without.
  if (entry.kind == MessageKind::kRing) run.targets[kSenderPayload] = {};
  const bool isPut = entry.kind == MessageKind::kPut;
  run.start(isPut ? programs->putHead : programs->eager, entry.number);
  entry.phase = Phase::kSending;
  auto& count = sent_[static_cast<size_t>(entry.kind)];
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

bool LaneSender::step(uint64_t budgetBytes) {
  bool moved = false;
  uint64_t budget = budgetBytes;
  do {
    admit();
    again_ = false;
    for (uint64_t number = head_; number < next_ && failure().isOk(); ++number)
      moved |= look(entryOf(number), budget);
    const uint64_t before = head_;
    while (head_ < next_ && entryOf(head_).phase == Phase::kFree) ++head_;
    if (head_ != before && queued()) again_ = true;
  } while (again_ && budget > 0 && failure().isOk());
  if (again_) setHungry();
  cache_.sweep();
  return moved;
}

void LaneSender::withdrawIfCancelled(Entry& entry) {
  if (entry.withdrawn || !entry.posted.batch || !entry.posted.batch->cancelled()) return;
  entry.withdrawn = true;
  env_.sendNote({.kind = LaneNote::Kind::kWithdraw, .number = entry.number});
}

bool LaneSender::look(Entry& entry, uint64_t& budget) {
  bool moved = false;
  bool hungry = false;
  switch (entry.phase) {
    case Phase::kFree: return false;
    case Phase::kHeld:
      if (entry.posted.batch && entry.posted.batch->cancelled()) {
        entry.posted.batch->itemEnded(Status(Code::kCancelled, "cancelled before it began"));
        entry.posted.batch = nullptr;
      }
      if (entry.posted.batch && entry.posted.batch->held()) return false;
      begin(entry);
      if (entry.phase == Phase::kSending) look(entry, budget);
      return true;
    case Phase::kSending: {
      withdrawIfCancelled(entry);
      if (entry.run->advance(budget, moved, hungry)) judge(entry);
      break;
    }
    case Phase::kAsking:
      withdrawIfCancelled(entry);
      if (!readAnswer(entry)) return false;
      beginPush(entry);
      return true;
    case Phase::kReaching: {
      beginPush(entry);
      return entry.phase != Phase::kReaching;
    }
    case Phase::kPushing: {
      // Too late once the receiver may know: both sides are to say the same.
      if (entry.posted.batch->cancelled() && !entry.run->toldDone())
        entry.run->cancel(Code::kCancelled);
      const uint64_t before = entry.run->bytesMoved();
      const bool ended = entry.run->advance(budget, moved, hungry);
      budget -= std::min(budget, entry.run->bytesMoved() - before);
      if (!ended) break;
      const Code code = entry.run->code();
      if (code == Code::kOk)
        end(entry, Status::ok());
      else
        giveUp(entry, Status(code, messageName(entry.number, env_.rank) + ": the copy failed"));
      break;
    }
    case Phase::kStaging: moved = stage(entry, budget); break;
  }
  if (hungry) setHungry();
  return moved;
}

// Its batch ends now; the number goes on as that of no message.
void LaneSender::loseMemory(Entry& entry) {
  const auto batch = std::move(entry.posted.batch);
  if (batch) batch->itemEnded(memoryGone(messageName(entry.number, env_.rank)));
}

// The receiver was told of nothing.
void LaneSender::voidPayload(Entry& entry) {
  loseMemory(entry);
  begin(entry);
  again_ = true;
}

// The program of phase kSending has ended.
void LaneSender::judge(Entry& entry) {
  if (entry.run->code() == Code::kRevoked && entry.kind == MessageKind::kEager)
    return voidPayload(entry);
  if (const Code code = entry.run->code(); code != Code::kOk)
    return breakLane(Status(code, messageName(entry.number, env_.rank) + ": the link failed"));
  if (entry.kind == MessageKind::kPut) {
    entry.phase = Phase::kAsking;
    again_ = true;
    return;
  }
  conclude(entry);
}

// Nothing of the message is under way; the answer says how the receiver took it.
void LaneSender::conclude(Entry& entry) {
  const Answer& answer = entry.run->answer;
  if (answer.number != entry.number)
    return breakLane(
        Status(Code::kCorrupt, "rank " + std::to_string(env_.rank) + " answered another message"));
  if (answer.verdict == Verdict::kStaged && entry.posted.batch) return beginStaging(entry);
  if (answer.verdict == Verdict::kAccepted) return end(entry, Status::ok());
  std::string why = messageName(entry.number, env_.rank) + " was refused";
  if (answer.code == Code::kSizeMismatch && answer.otherPieces != 0)
    why = messageName(entry.number, env_.rank) + " belongs to a message of " +
          std::to_string(entry.posted.part.pieces()) +
          " pieces, and its receive has another number of them";
  else if (answer.code == Code::kSizeMismatch && entry.posted.batch)
    why = messageName(entry.number, env_.rank) + " has " + std::to_string(itemOf(entry).bytes) +
          " bytes, its receive " + std::to_string(answer.bytes);
  else if (answer.code == Code::kCancelled)
    why = messageName(entry.number, env_.rank) + " was cancelled";
  const Code code =
      answer.code == Code::kOk || answer.code > kLastCode ? Code::kCorrupt : answer.code;
  end(entry, Status(code, std::move(why)));
}

// rendezvous-put: true when the answer is there. The rest of the program waits for it once more.
bool LaneSender::readAnswer(Entry& entry) {
  const std::byte* slot = env_.area->base + LaneArea::kAnswersOffset +
                          entry.number % kSlots * uint64_t{kAnswerSlotBytes};
  if (!satisfies(loadWord(slot, Width::k64), Compare::kGreaterEqual, entry.number + 1, Width::k64))
    return false;
  std::memcpy(&entry.run->answer, slot + kSequenceBytes, sizeof(Answer));
  return true;
}

void LaneSender::beginPush(Entry& entry) {
  MessageRun& run = *entry.run;
  const Answer& answer = run.answer;
  if (answer.verdict != Verdict::kAccepted) {
    // The receiver waits for nothing more.
    storeWord(free_.bytes.data() + entry.number % kSlots * size_t{kWordSlotBytes}, Width::k64,
              entry.number + 1, std::memory_order_release);
    return conclude(entry);
  }
  const MessageItem& item = itemOf(entry);
  const auto failed = [&](const Status& why) { giveUp(entry, why); };
  if (answer.number != entry.number || answer.bytes != item.bytes)
    return breakLane(
        Status(Code::kCorrupt, "rank " + std::to_string(env_.rank) + " answered another message"));
  auto found =
      cache_.find({answer.allocation, answer.generation, answer.regionBytes, answer.access});
  if (!found.isOk()) return failed(found.status().withContext("the receiver's buffer"));
  if (*found == nullptr) {
    entry.phase = Phase::kReaching;
    return;
  }
  const RemoteMemory& memory = (*found)->memory;
  if (!allows(memory.grant.access, Access::kRemoteWrite))
    return failed(Status(Code::kPermissionDenied, "the receiver's buffer grants no remote write"));
  if (item.bytes > memory.grant.bytes || answer.position > memory.grant.bytes - item.bytes)
    return breakLane(Status(Code::kCorrupt, "rank " + std::to_string(env_.rank) +
                                                " named a buffer outside its region"));
  LanePrograms* programs = programsFor(entry, memory.mapped == nullptr);
  if (programs == nullptr) return;
  if (Status used = run.use(*found); !used.isOk()) return failed(used);
  run.targets[kSenderPeerBuffer] = BoundTarget::ofPeer(memory, answer.position, item.bytes);
  run.start(programs->putTail, entry.number);
  entry.phase = Phase::kPushing;
}

// rendezvous-put: the receiver said yes and waits for bytes that will not come.
void LaneSender::giveUp(Entry& entry, const Status& why) {
  storeWord(free_.bytes.data() + entry.number % kSlots * size_t{kWordSlotBytes}, Width::k64,
            entry.number + 1, std::memory_order_release);
  env_.sendNote({.kind = LaneNote::Kind::kGaveUp, .code = why.code(), .number = entry.number});
  end(entry, why);
}

void LaneSender::beginStaging(Entry& entry) {
  if (!staged_.canBe(entry.run->answer, itemOf(entry).bytes))
    return breakLane(Status(Code::kCorrupt, "rank " + std::to_string(env_.rank) +
                                                " named a staging ring that cannot be"));
  if (entry.kind != MessageKind::kRing) {
    env_.peer->metrics().fallbacks().add();
    entry.kind = MessageKind::kRing;
  }
  entry.phase = Phase::kStaging;
  again_ = true;
}

bool LaneSender::stage(Entry& entry, uint64_t& budget) {
  bool moved = false;
  bool hungry = false;
  const MessageItem* const item = entry.posted.batch ? &itemOf(entry) : nullptr;
  const auto step = staged_.advance(entry.run->answer, item, budget, moved, hungry);
  if (hungry) setHungry();
  if (!step.isOk()) {
    breakLane(step.status());
  } else if (*step == StagedSends::Step::kLost) {
    loseMemory(entry);
  } else if (*step == StagedSends::Step::kPassed) {
    end(entry, Status::ok());
    again_ = true;  // the next one may wait for its turn in the ring
  }
  return moved;
}

void LaneSender::end(Entry& entry, const Status& status) {
  const auto batch = std::move(entry.posted.batch);
  entry.posted = {};
  entry.phase = Phase::kFree;
  closed();
  if (batch) batch->itemEnded(status);
}

// Receivers have nothing else to tell that has no word.
void LaneSender::handle(const LaneNote& note) {
  if (note.kind == LaneNote::Kind::kHeard && staged_.hear(note.number)) again_ = true;
}

// The connection is over, and its end may have overtaken the answer: the receiver may have taken
// the message, said so, and then closed.
void LaneSender::takeAnswer(Entry& entry) {
  bool moved = false;
  bool hungry = false;
  if (entry.phase != Phase::kSending || entry.kind == MessageKind::kPut || !readAnswer(entry))
    return;
  if (entry.run->advance(kSliceBytes, moved, hungry) && entry.run->code() == Code::kOk)
    conclude(entry);
}

bool LaneSender::abandon() {
  bool all = staged_.abandon(failure().code());
  for (uint64_t number = head_; number < next_; ++number) {
    Entry& entry = entryOf(number);
    if (entry.phase == Phase::kFree) continue;
    if (failure().code() != Code::kCorrupt) takeAnswer(entry);
    if (entry.phase == Phase::kFree) continue;
    if (entry.phase == Phase::kStaging && !all) continue;
    if (entry.phase == Phase::kSending || entry.phase == Phase::kPushing) {
      bool moved = false;
      bool hungry = false;
      entry.run->cancel(failure().code());
      const bool ended = entry.run->advance(0, moved, hungry);
      if (hungry) setHungry();
      if (!ended) {
        all = false;
        continue;
      }
    }
    end(entry, failure());
  }
  if (all) cache_.clear();
  return all;
}

std::string LaneSender::describeWindow() const {
  std::string text = "to rank " + std::to_string(env_.rank) + ": messages " +
                     std::to_string(head_) + " to " + std::to_string(next_) + " under way";
  if (head_ == next_) return text;
  const Entry& oldest = window_[head_ % kSlots];
  if (oldest.phase == Phase::kHeld) return text + "; the oldest waits for its stream";
  if (oldest.phase == Phase::kReaching) return text + "; the oldest waits for an import";
  if (oldest.phase == Phase::kAsking) return text + "; the oldest waits for the receive";
  if (staged_.awaitsHearing(oldest.number))
    return text + "; the oldest waits for the receiver to hear that its memory is gone";
  return oldest.run ? text + "; oldest: " + oldest.run->describe() : text;
}

}  // namespace peerlane
