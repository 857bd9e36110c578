// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/message_receiver.h"

#include <algorithm>
#include <utility>

#include "peerlane/channel/protocol/eager_protocol.h"
#include "peerlane/channel/protocol/rendezvous_protocol.h"

namespace peerlane {
namespace {

BoundTarget bufferOf(const MessageItem& item) {
  return {.address = item.address, .bytes = item.bytes, .mayBeCut = item.mayBeCut()};
}

bool overlap(const std::byte* a, const std::byte* b, uint64_t bytes) {
  return a < b + bytes && b < a + bytes;
}

}  // namespace

const std::array<LaneReceiver::PhaseRow, LaneReceiver::kPhaseCount> LaneReceiver::kPhases{{
    /* kWaiting  */ {nullptr, nullptr, "its message"},
    /* kReaching */ {&LaneReceiver::reach, nullptr, "an import"},
    /* kCopying  */ {&LaneReceiver::copy, &LaneReceiver::copied, nullptr},
    /* kAnswering*/ {&LaneReceiver::run, &LaneReceiver::answered, nullptr},
    /* kLanding  */ {&LaneReceiver::run, &LaneReceiver::landed, nullptr},
    /* kAgreeing */ {&LaneReceiver::run, &LaneReceiver::agreed, nullptr},
    /* kStaging  */ {&LaneReceiver::stage, nullptr, nullptr},
    /* kRefusing */ {&LaneReceiver::run, &LaneReceiver::refused, nullptr},
    /* kDone     */ {nullptr, nullptr, nullptr},
}};

LaneReceiver::LaneReceiver(const LaneEnvironment& env)
    : LaneEnd(env), inbox_(env), cache_(*env.peer), staged_(env) {
  for (uint32_t i = 0; i < kSlots; ++i) window_[i].slot = &matcher_.at(i);
}

std::string LaneReceiver::nameOf(const Entry& entry) const {
  return "receive " + std::to_string(entry.number()) + " from rank " + std::to_string(env_.rank);
}

void LaneReceiver::handle(const LaneNote& note) {
  if (note.kind == LaneNote::Kind::kWithdraw) {
    if (matcher_.withdraw(note.number)) opened();
    return;
  }
  if (note.kind != LaneNote::Kind::kGaveUp || !matcher_.isInWindow(note.number)) return;
  Entry& entry = entryOf(note.number);
  if (entry.number() == note.number)
    giveUp(entry, note.code == Code::kOk ? Code::kPeerLost : note.code);
}

// Its sender has: no bytes of it come any more.
void LaneReceiver::giveUp(Entry& entry, Code code) {
  if (entry.phase == Phase::kLanding) entry.run->cancel(code);
  if (entry.phase != Phase::kAgreeing && entry.phase != Phase::kStaging) return;
  if (std::exchange(entry.isGivenUp, true)) return;  // answered once
  // Its chunks still come, and count, as soon as the sender has the answer.
  if (entry.outcome.isOk()) entry.outcome = Status(code, nameOf(entry) + ": its sender gave up");
  env_.sendNote({.kind = LaneNote::Kind::kHeard, .number = entry.number()});
}

// --- Turns ---

void LaneReceiver::admit() {
  if (const uint32_t leftOver = matcher_.admit(); leftOver != 0) opened(leftOver);
}

bool LaneReceiver::step(uint64_t budgetBytes) {
  bool moved = false;
  uint64_t budget = budgetBytes;
  do {
    admit();
    again_ = false;
    moved |= lookAll(budget);
    passDone();
  } while (again_ && budget > 0 && failure().isOk());
  if (again_) setHungry();
  cache_.sweep();
  return moved;
}

// In the order of numbers, so that receives that wait for room get it in the order of posting.
void LaneReceiver::passDone() {
  const uint64_t before = matcher_.head();
  while (matcher_.canPass() && entryOf(matcher_.head()).phase == Phase::kDone) {
    Entry& entry = entryOf(matcher_.head());
    entry.phase = Phase::kWaiting;
    entry.outcome = Status::ok();
    entry.isGivenUp = false;
    matcher_.pass();
  }
  if (matcher_.head() != before && (queued() || matcher_.hasMore())) again_ = true;
}

bool LaneReceiver::lookAll(uint64_t& budget) {
  bool moved = false;
  for (uint64_t number = matcher_.head(); number < matcher_.end() && failure().isOk(); ++number)
    if (matcher_.at(number).posted) moved |= look(entryOf(number), budget);
  // Messages that nobody has posted a receive for, and that their sender wants back.
  if (!matcher_.hasWithdrawals()) return moved;
  if (const uint32_t passed = matcher_.dropPassedWithdrawals(); passed != 0) closed(passed);
  for (const uint64_t number : matcher_.withdrawnUnposted())
    if (failure().isOk()) moved |= look(entryOf(number), budget);
  return moved;
}

bool LaneReceiver::look(Entry& entry, uint64_t& budget) {
  bool moved = false;
  if (!entry.slot->isMet && !meet(entry, moved)) return moved;
  if (const auto lookNow = rowOf(entry).look) moved |= (this->*lookNow)(entry, budget);
  return moved;
}

// --- Waiting: the envelope and its receive ---

bool LaneReceiver::readEnvelope(Entry& entry) {
  if (!entry.run) entry.run = std::make_unique<MessageRun>(*env_.peer);
  if (inbox_.read(entry.number(), entry.run->envelope)) return true;
  breakLane(Status(Code::kCorrupt,
                   "rank " + std::to_string(env_.rank) + " wrote an envelope that cannot be"));
  return false;
}

// Sees whether a message has come for the receive that has its number. True: there may be more to
// do for it now.
bool LaneReceiver::meet(Entry& entry, bool& moved) {
  Slot& slot = *entry.slot;
  auto& batch = slot.wanted.batch;
  if (batch && batch->cancelled()) {
    batch->itemEnded(Status(Code::kCancelled, nameOf(entry) + " was cancelled"));
    batch = nullptr;
    moved = true;
  }
  const bool isNew = entry.phase == Phase::kWaiting;
  if (isNew && !inbox_.has(entry.number())) return false;
  if (isNew && !readEnvelope(entry)) {
    moved = true;
    return false;
  }
  const Part wanted = slot.wanted.part;
  std::vector<Posted> ended;
  switch (matcher_.match(slot, entry.run->envelope, ended)) {
    case ReceiveMatcher::Match::kMeant:
      if (!isNew) {
        moved |= takeUp(entry);
        return true;
      }
      if (batch && batch->held() && !matcher_.isWithdrawn(entry.number())) return false;
      slot.isMet = slot.posted;
      judge(entry);
      moved = true;
      return false;
    case ReceiveMatcher::Match::kCorrupt:
      breakLane(Status(Code::kCorrupt, "rank " + std::to_string(env_.rank) +
                                           " numbers the pieces of a message as they cannot be"));
      moved = true;
      return !isNew;
    case ReceiveMatcher::Match::kRealigned:
      endRealigned(entry, wanted, ended);
      moved = true;
      break;
    case ReceiveMatcher::Match::kNotYet: break;
  }
  if (!isNew || !slot.posted) return !isNew;
  // Its sender may wait for the answer before it sends what this one waits for.
  if (!matcher_.isWithdrawn(entry.number())) return false;
  refuse(entry, Status(Code::kCancelled, nameOf(entry) + " was cancelled by its sender"));
  moved = true;
  return false;
}

// A message that was withdrawn, and refused, before there was a receive: now there may be one,
// which ends like the message. True when it has ended.
bool LaneReceiver::takeUp(Entry& entry) {
  if (!entry.slot->posted) return false;
  entry.slot->isMet = true;
  if (entry.phase != Phase::kDone) return false;
  settle(entry, Status(entry.outcome));
  return true;
}

void LaneReceiver::endRealigned(const Entry& entry, const Part& wanted,
                                std::vector<Posted>& ended) {
  const Status why(Code::kSizeMismatch, nameOf(entry) + " belongs to a message of " +
                                            std::to_string(wanted.pieces()) +
                                            " pieces, and what was sent has " +
                                            std::to_string(entry.run->envelope.part.pieces()));
  for (Posted& receive : ended) {
    closed();  // before the batch is told: its waiter may look at once whether the lane is busy
    if (receive.batch) receive.batch->itemEnded(why);
  }
  again_ = true;
}

// The envelope is there and read: what becomes of the message?
void LaneReceiver::judge(Entry& entry) {
  const Envelope& envelope = entry.run->envelope;
  const bool isVoid = envelope.kind == MessageKind::kVoid;
  const Slot& slot = *entry.slot;
  if (slot.isLeftOver)
    return refuse(entry, Status(Code::kSizeMismatch, "a piece for which there is no receive"));
  if (!slot.wanted.batch || isVoid || matcher_.isWithdrawn(entry.number()))
    return refuse(entry, Status(Code::kCancelled,
                                nameOf(entry) + " was cancelled" +
                                    (slot.posted && !slot.wanted.batch ? "" : " by its sender")));
  const MessageItem& item = entry.item();
  if (envelope.bytes != item.bytes)
    return refuse(entry, Status(Code::kSizeMismatch,
                                nameOf(entry) + " has room for " + std::to_string(item.bytes) +
                                    " bytes, the message has " + std::to_string(envelope.bytes)));
  switch (envelope.kind) {
    case MessageKind::kEager: return beginEager(entry);
    case MessageKind::kGet: return beginGet(entry);
    case MessageKind::kPut: return beginPut(entry);
    default: return beginStaging(entry);
  }
}

// --- How a message begins ---

LanePrograms* LaneReceiver::programsFor(Entry& entry, bool agent) {
  Result<LanePrograms*> made(static_cast<LanePrograms*>(nullptr));
  const auto make = [this](Mailbox* mailbox) { return LanePrograms::makeReceiver(env_, mailbox); };
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

void LaneReceiver::start(Entry& entry, const cpu::CpuProgram& program, Verdict verdict,
                         Phase phase) {
  MessageRun& run = *entry.run;
  run.answer.verdict = verdict;
  run.answer.number = entry.number();
  run.answer.bytes = entry.batch() != nullptr ? entry.item().bytes : 0;
  run.targets[kReceiverAnswer] = run.answerTarget();
  // An accepted message is in its place by then. A sender that is to put, or to stage, waits.
  run.start(program, entry.number(), phase == Phase::kCopying);
  entry.phase = phase;
  again_ = true;  // its first op can run at once
}

void LaneReceiver::beginEager(Entry& entry) {
  LanePrograms* programs = programsFor(entry, false);
  if (programs == nullptr) return;
  const MessageItem& item = entry.item();
  entry.run->answer = {};
  entry.run->targets[kReceiverBuffer] = bufferOf(item);
  start(entry, programs->eager, Verdict::kAccepted, Phase::kCopying);
}

void LaneReceiver::beginGet(Entry& entry) {
  MessageRun& run = *entry.run;
  const Envelope& envelope = run.envelope;
  const MessageItem& item = entry.item();
  auto found = cache_.find(
      {envelope.allocation, envelope.generation, envelope.regionBytes, envelope.access});
  if (!found.isOk()) return stageOrRefuse(entry, found.status());
  if (*found == nullptr) {
    entry.phase = Phase::kReaching;
    return;
  }
  const RemoteMemory& memory = (*found)->memory;
  if (!allows(memory.grant.access, Access::kRemoteRead))
    return stageOrRefuse(entry,
                         Status(Code::kPermissionDenied, "its region grants no remote read"));
  if (item.bytes > memory.grant.bytes || envelope.offset > memory.grant.bytes - item.bytes)
    return breakLane(Status(
        Code::kCorrupt, "rank " + std::to_string(env_.rank) + " sent a place outside its region"));
  const auto from = BoundTarget::ofPeer(memory, envelope.offset, item.bytes);
  if (from.address != nullptr && overlap(from.address, item.address, item.bytes))
    return refuse(
        entry, Status(Code::kInvalidArgument, nameOf(entry) + " overlaps the memory that is sent"));
  LanePrograms* programs = programsFor(entry, from.address == nullptr);
  if (programs == nullptr) return;
  // Through the gate before the copy may begin: from here on its owner waits for the run's end.
  if (Status used = run.use(*found); !used.isOk()) return refuse(entry, used);
  run.answer = {};
  run.targets[kReceiverBuffer] = bufferOf(item);
  run.targets[kReceiverPeerPayload] = from;
  start(entry, programs->get, Verdict::kAccepted, Phase::kCopying);
}

void LaneReceiver::beginPut(Entry& entry) {
  const MessageItem& item = entry.item();
  if (item.region == nullptr || !allows(item.region->access, Access::kRemoteWrite))
    return stageOrRefuse(entry, Status(Code::kPermissionDenied,
                                       "the buffer grants no remote write, which put needs"));
  LanePrograms* programs = programsFor(entry, false);
  if (programs == nullptr) return;
  Answer& answer = entry.run->answer;
  answer = {};
  answer.access = item.region->access;
  answer.allocation = item.region->allocation;
  answer.generation = item.region->generation;
  answer.regionBytes = item.region->bytes;
  answer.position = static_cast<uint64_t>(item.address - item.region->base);
  start(entry, programs->put, Verdict::kAccepted, Phase::kLanding);
}

// The memory cannot be reached directly.
void LaneReceiver::stageOrRefuse(Entry& entry, const Status& why) {
  const Status full = why.withContext(nameOf(entry));
  if (entry.run->envelope.mayStage == 0 || env_.strict) return refuse(entry, full);
  env_.peer->metrics().fallbacks().add();
  beginStaging(entry);
}

void LaneReceiver::beginStaging(Entry& entry) {
  if (!staged_.isOpen()) {
    if (Status made = staged_.openReceiver(StagedRing::within(env_.ringBytes)); !made.isOk())
      return refuse(entry, made.withContext("the staging ring"));
  }
  LanePrograms* programs = programsFor(entry, false);
  if (programs == nullptr) return;
  entry.run->answer = {};
  staged_.give(entry.item().bytes, entry.run->answer);
  entry.run->targets[kReceiverBuffer] = {};
  start(entry, programs->eager, Verdict::kStaged, Phase::kAgreeing);
}

void LaneReceiver::refuse(Entry& entry, const Status& why) {
  LanePrograms* programs = programsFor(entry, false);
  if (programs == nullptr) return;
  entry.outcome = why;
  entry.run->answer = {};
  const bool isRevoked = entry.slot->posted && entry.batch() != nullptr &&
                         entry.batch()->isRevoked() && why.code() == Code::kCancelled;
  entry.run->answer.code = env_.peer->toldAs(isRevoked ? Code::kRevoked : why.code());
  entry.run->answer.otherPieces = entry.slot->isLeftOver ? 1 : 0;
  entry.run->targets[kReceiverBuffer] = {};
  start(entry, programs->eager, Verdict::kRefused, Phase::kRefusing);
}

// --- The phases ---

bool LaneReceiver::reach(Entry& entry, uint64_t& /*budget*/) {
  if (entry.batch()->cancelled())
    refuse(entry, Status(Code::kCancelled, nameOf(entry) + " was cancelled"));
  else
    beginGet(entry);
  return entry.phase != Phase::kReaching;
}

bool LaneReceiver::run(Entry& entry, uint64_t& budget) {
  bool moved = false;
  bool hungry = false;
  const uint64_t before = entry.run->bytesMoved();
  const bool ended = entry.run->advance(budget, moved, hungry);
  budget -= std::min(budget, entry.run->bytesMoved() - before);
  if (ended) (this->*rowOf(entry).ended)(entry, entry.run->code());
  if (hungry) setHungry();
  return moved;
}

bool LaneReceiver::copy(Entry& entry, uint64_t& budget) {
  if (entry.batch()->cancelled()) entry.run->cancel(Code::kCancelled);
  const bool moved = run(entry, budget);
  if (entry.phase != Phase::kCopying || !holdsPayload(entry)) return moved;
  // The user need not wait until the peer has the answer.
  opened();
  taken(entry);
  entry.phase = Phase::kAnswering;
  return true;
}

bool LaneReceiver::stage(Entry& entry, uint64_t& budget) {
  if (entry.run->answer.position != staged_.turn()) return false;
  bool moved = false;
  if (Status status = moveStaged(entry, budget, moved); !status.isOk()) breakLane(status);
  return moved;
}

void LaneReceiver::copied(Entry& entry, Code code) {
  if (code == Code::kOk) return taken(entry);
  // The link may have ended before the session says so, and only the answer's way back with it.
  if (code != Code::kCancelled && holdsPayload(entry)) {
    const std::string name = nameOf(entry);
    taken(entry);
    return breakLane(Status(code, name + ": the link failed"));
  }
  refuse(entry, Status(code, nameOf(entry) + (code == Code::kCancelled ? " was cancelled"
                                                                       : ": the copy failed")));
}

void LaneReceiver::answered(Entry& entry, Code code) {
  entry.phase = Phase::kDone;
  closed();
  if (code != Code::kOk) linkFailed(entry, code);
}

void LaneReceiver::landed(Entry& entry, Code code) {
  if (code != Code::kOk) return settle(entry, Status(code, nameOf(entry) + ": its sender gave up"));
  counts_.add(*env_.peer, entry.run->envelope.kind, "peer", entry.item().bytes);
  settle(entry, Status::ok());
}

void LaneReceiver::agreed(Entry& entry, Code code) {
  if (code != Code::kOk) return linkFailed(entry, code);
  entry.phase = Phase::kStaging;
  again_ = true;
}

void LaneReceiver::refused(Entry& entry, Code code) {
  if (code != Code::kOk) return linkFailed(entry, code);
  settle(entry, Status(entry.outcome));
}

void LaneReceiver::linkFailed(const Entry& entry, Code code) {
  breakLane(Status(code, nameOf(entry) + ": the link failed"));
}

// --- Ends ---

void LaneReceiver::taken(Entry& entry) {
  const MessageKind kind = entry.run->envelope.kind;
  counts_.add(*env_.peer, kind, kind == MessageKind::kEager ? "inbox" : entry.run->engine(),
              entry.item().bytes);
  settle(entry, Status::ok());
}

// Requires: it is this entry's turn in the ring.
Status LaneReceiver::moveStaged(Entry& entry, uint64_t& budget, bool& moved) {
  bool hungry = false;
  const MessageItem& item = entry.item();
  PEERLANE_ASSIGN(const auto step, staged_.advance(&item, budget, moved, hungry));
  if (hungry) setHungry();
  again_ |= step != StagedFlow::Step::kUnderWay;  // it, or the next one that waits for its turn
  if (step == StagedFlow::Step::kLost && entry.outcome.isOk())
    entry.outcome = memoryGone(nameOf(entry));
  if (step != StagedFlow::Step::kPassed) return Status::ok();
  if (entry.outcome.isOk()) counts_.add(*env_.peer, MessageKind::kRing, "staged", item.bytes);
  settle(entry, Status(entry.outcome));
  return Status::ok();
}

void LaneReceiver::settle(Entry& entry, const Status& status) {
  entry.phase = Phase::kDone;
  entry.outcome = status;
  if (matcher_.endWithdrawal(entry.number())) closed();
  if (!entry.slot->isMet) return;  // which receive this is of is not known yet
  const auto batch = std::move(entry.slot->wanted.batch);
  entry.slot->wanted = {};
  closed();  // before the batch is told, as above
  if (batch) batch->itemEnded(status);
}

// The connection is over, and its end may have overtaken what came before: a sender may have been
// told that its message was taken, or have put it where it belongs.
void LaneReceiver::takeRest() {
  staged_.giveUpCredits();
  bool moved = false;
  bool hungry = false;
  do {
    again_ = false;
    for (uint64_t number = matcher_.head(); number < matcher_.end(); ++number) {
      Entry& entry = entryOf(number);
      uint64_t budget = kSliceBytes;
      const bool isAnswered = entry.phase == Phase::kLanding || entry.phase == Phase::kAgreeing;
      if (isAnswered && entry.run->advance(0, moved, hungry) && entry.run->code() == Code::kOk)
        (this->*rowOf(entry).ended)(entry, Code::kOk);
      if (entry.phase == Phase::kStaging && entry.run->answer.position == staged_.turn())
        (void)moveStaged(entry, budget, moved);
    }
  } while (again_);
}

// Of an eager message or a get whose run has ended, however: only the answer may be missing.
bool LaneReceiver::holdsPayload(const Entry& entry) const {
  const bool isEager = entry.run->envelope.kind == MessageKind::kEager;
  // An agent's copy is confirmed by one op more.
  return entry.run->passed(isEager ? kEagerReceiverPayloadOp : kRendezvousGetReceiverPayloadOp + 1);
}

bool LaneReceiver::abandon() {
  if (failure().code() != Code::kCorrupt) takeRest();
  for (const Posted& receive : matcher_.takeReturned()) {
    closed();
    if (receive.batch) receive.batch->itemEnded(failure());
  }
  bool all = staged_.abandon(failure().code());
  for (Entry& entry : window_) all = abandonEntry(entry, all) && all;
  if (all) cache_.clear();
  return all;
}

// False while something of it is under way. `othersEnded`: the ring and all entries before it.
bool LaneReceiver::abandonEntry(Entry& entry, bool othersEnded) {
  if (rowOf(entry).ended != nullptr) {
    bool moved = false;
    bool hungry = false;
    // A receive that has ended well owes its answer, also when this side closes.
    const bool isOwed = entry.phase == Phase::kAnswering && failure().code() == Code::kClosed;
    if (!isOwed) entry.run->cancel(failure().code());
    const bool ended = entry.run->advance(isOwed ? kSliceBytes : 0, moved, hungry);
    if (hungry) setHungry();
    if (!ended) return false;
  }
  if (entry.phase == Phase::kAnswering) {
    answered(entry, Code::kOk);
    return true;
  }
  // The ring may still copy into its memory.
  if (entry.phase == Phase::kStaging && !othersEnded) return true;
  if (!entry.slot->posted || (entry.phase == Phase::kDone && entry.slot->isMet)) return true;
  const bool isRefused =
      entry.phase == Phase::kRefusing || entry.phase == Phase::kDone || !entry.outcome.isOk();
  entry.slot->isMet = true;
  if (entry.phase == Phase::kCopying && holdsPayload(entry))
    taken(entry);
  else
    settle(entry, isRefused ? Status(entry.outcome) : failure());
  return true;
}

std::string LaneReceiver::describeWindow() const {
  std::string text = "from rank " + std::to_string(env_.rank) + ": receives " +
                     std::to_string(matcher_.head()) + " to " + std::to_string(matcher_.next()) +
                     " under way";
  if (matcher_.head() == matcher_.next()) return text;
  const Entry& oldest = window_[matcher_.head() % kSlots];
  if (const char* const waitsFor = rowOf(oldest).waitsFor)
    return text + "; the oldest waits for " + waitsFor;
  return oldest.run ? text + "; oldest: " + oldest.run->describe() : text;
}

}  // namespace peerlane
