// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/message_receiver.h"

#include <algorithm>
#include <cstring>

#include "peerlane/channel/protocol/eager_protocol.h"
#include "peerlane/channel/protocol/zcopy_protocol.h"
#include "peerlane/program/words/word.h"

namespace peerlane {
namespace {

// Notes of withdrawal that are ahead of the window. An honest sender is never this far ahead.
constexpr size_t kMaxWithdrawn = 2 * LaneArea::kSlots;

bool overlap(const std::byte* a, const std::byte* b, uint64_t bytes) {
  return a < b + bytes && b < a + bytes;
}

}  // namespace

std::string LaneReceiver::nameOf(const Entry& entry) const {
  return "receive " + std::to_string(entry.number) + " from rank " + std::to_string(ground_.rank);
}

bool LaneReceiver::nextReceive(Posted& posted) {
  if (receives_.empty()) return next(posted);
  posted = std::move(receives_.front());
  receives_.pop_front();
  return true;
}

bool LaneReceiver::isLeftOver(uint64_t number) const {
  return std::any_of(leftOver_.begin(), leftOver_.end(), [number](const NumberRange& range) {
    return number >= range.first && number < range.end;
  });
}

void LaneReceiver::admit() {
  std::erase_if(leftOver_, [this](const NumberRange& range) { return range.end <= head_; });
  for (Posted& receive : receives_)
    if (receive.batch && receive.batch->cancelled()) {
      receive.batch->itemEnded(Status(Code::kCancelled, "cancelled before it began"));
      receive.batch = nullptr;
    }
  while (next_ < head_ + kSlots) {
    // It has met its message while those before it got other numbers, or is known to have none.
    if (next_ < end_ && (entryOf(next_).isMet || entryOf(next_).isLeftOver)) {
      ++next_;
      continue;
    }
    Posted posted;
    const bool hasNone = isLeftOver(next_);
    if (hasNone)
      opened();
    else if (!nextReceive(posted))
      return;
    Entry& entry = entryOf(next_);
    entry.number = next_++;
    end_ = std::max(end_, next_);
    entry.posted = true;
    entry.isLeftOver = hasNone;
    entry.wanted = std::move(posted);
  }
}

// Of an entry whose envelope was read.
bool LaneReceiver::fits(const Entry& entry) const {
  const Envelope& envelope = entry.run->envelope;
  return !entry.posted || entry.isLeftOver ||
         (envelope.ordinal == entry.wanted.ordinal && envelope.part == entry.wanted.part);
}

// The message has more or fewer pieces than its receive, or one before it has. False: that one will
// tell, or the lane is broken.
bool LaneReceiver::realign(Entry& entry) {
  const Part sent = entry.run->envelope.part;
  const Part wanted = entry.wanted.part;
  const uint64_t first = entry.number - sent.index;
  const Status why(Code::kSizeMismatch,
                   nameOf(entry) + " belongs to a message of " + std::to_string(wanted.pieces()) +
                       " pieces, and what was sent has " + std::to_string(sent.pieces()));
  const auto corrupt = [this] {
    breakLane(Status(Code::kCorrupt, "rank " + std::to_string(ground_.rank) +
                                         " numbers the pieces of a message as they cannot be"));
    return false;
  };
  if (entry.run->envelope.ordinal != entry.wanted.ordinal || sent.index != wanted.index) {
    for (uint64_t number = head_; number < entry.number; ++number)
      if (!entryOf(number).isMet) return false;
    return corrupt();
  }
  const uint64_t end = first + sent.pieces();
  if (first < head_) return corrupt();
  for (uint64_t number = first; number < std::min(end, end_); ++number)
    if (number != entry.number && entryOf(number).isMet) return corrupt();
  std::deque<Posted> all;
  for (uint64_t number = first; number < end_; ++number) {
    Entry& each = entryOf(number);
    // Those that are met are so by their own: their ordinals say so.
    if (!each.posted || each.isLeftOver || each.isMet) continue;
    all.push_back(std::move(each.wanted));
    each.wanted = {};
    each.posted = false;
  }
  Posted more;
  while (all.size() < wanted.pieces() && nextReceive(more)) all.push_back(std::move(more));
  for (uint64_t i = 0; i < wanted.pieces() && !all.empty(); ++i) {
    const auto batch = std::move(all.front().batch);
    all.pop_front();
    closed();
    if (batch) batch->itemEnded(why);
  }
  receives_.insert(receives_.begin(), std::make_move_iterator(all.begin()),
                   std::make_move_iterator(all.end()));
  next_ = first;
  leftOver_.push_back({first, end});
  again_ = true;
  return true;
}

void LaneReceiver::handle(const LaneNote& note) {
  if (note.kind == LaneNote::Kind::kWithdraw) {
    if (note.number < head_ || withdrawn_.size() >= kMaxWithdrawn) return;
    if (withdrawn_.insert(note.number).second) opened();
    return;
  }
  if (note.kind != LaneNote::Kind::kGaveUp) return;
  if (note.number < head_ || note.number >= head_ + kSlots) return;
  Entry& entry = entryOf(note.number);
  if (entry.number == note.number && entry.phase == Phase::kLanding)
    entry.run->cancel(note.code == Code::kOk ? Code::kPeerLost : note.code);
}

LanePrograms* LaneReceiver::programsFor(Entry& entry, bool agent) {
  Result<LanePrograms*> made(static_cast<LanePrograms*>(nullptr));
  const auto make = [this](Mailbox* mailbox) {
    return LanePrograms::makeReceiver(ground_, mailbox);
  };
  if (agent || !ground_.peerAreaMapped()) {
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

bool LaneReceiver::step(uint64_t budgetBytes) {
  bool moved = false;
  uint64_t budget = budgetBytes;
  do {
    admit();
    again_ = false;
    moved |= lookAll(budget);
    const uint64_t before = head_;
    while (head_ < next_ && entryOf(head_).phase == Phase::kDone && entryOf(head_).isMet) {
      Entry& entry = entryOf(head_++);
      entry.phase = Phase::kWaiting;
      entry.posted = entry.isLeftOver = entry.isMet = false;
      entry.outcome = Status::ok();
    }
    const bool hasMore = queued() || !receives_.empty() || !leftOver_.empty();
    if (head_ != before && hasMore) again_ = true;
  } while (again_ && budget > 0 && failure().isOk());
  if (again_) setHungry();
  shelf_.sweep();
  return moved;
}

bool LaneReceiver::lookAll(uint64_t& budget) {
  bool moved = false;
  for (uint64_t number = head_; number < end_ && failure().isOk(); ++number)
    if (entryOf(number).posted) moved |= look(entryOf(number), budget);
  // Messages that nobody has posted a receive for, and that their sender wants back.
  if (withdrawn_.empty()) return moved;
  while (!withdrawn_.empty() && *withdrawn_.begin() < head_) {
    withdrawn_.erase(withdrawn_.begin());
    closed();
  }
  const std::vector<uint64_t> numbers(withdrawn_.begin(), withdrawn_.end());  // look() erases
  for (const uint64_t number : numbers) {
    if (number >= head_ + kSlots) break;
    Entry& entry = entryOf(number);
    if (entry.posted || !failure().isOk()) continue;
    entry.number = number;
    moved |= look(entry, budget);
  }
  return moved;
}

bool LaneReceiver::arrived(const Entry& entry) const {
  const std::byte* slot =
      ground_.area->base + LaneArea::kInboxOffset +
      entry.number % kSlots * uint64_t{LaneArea::strideBytes(ground_.eagerBytes)};
  return satisfies(loadWord(slot, Width::k64), Compare::kGreaterEqual, entry.number + 1,
                   Width::k64);
}

bool LaneReceiver::readEnvelope(Entry& entry) {
  const std::byte* slot =
      ground_.area->base + LaneArea::kInboxOffset +
      entry.number % kSlots * uint64_t{LaneArea::strideBytes(ground_.eagerBytes)};
  if (!entry.run) entry.run = std::make_unique<MessageRun>(*ground_.peer);
  std::memcpy(&entry.run->envelope, slot + kSequenceBytes, sizeof(Envelope));
  const Envelope& envelope = entry.run->envelope;
  const bool sane = envelope.number == entry.number && envelope.part.canBe() &&
                    envelope.part.index <= envelope.number &&
                    envelope.kind >= MessageKind::kEager && envelope.kind <= MessageKind::kVoid &&
                    (envelope.kind != MessageKind::kEager || envelope.bytes <= ground_.eagerBytes);
  if (!sane)
    breakLane(Status(Code::kCorrupt,
                     "rank " + std::to_string(ground_.rank) + " wrote an envelope that cannot be"));
  return sane;
}

// Its message has come, and is for the receive that has its number. True: there may be more to do
// for it now.
bool LaneReceiver::meet(Entry& entry, bool& moved) {
  auto& batch = entry.wanted.batch;
  if (batch && batch->cancelled()) {
    batch->itemEnded(Status(Code::kCancelled, nameOf(entry) + " was cancelled"));
    batch = nullptr;
    moved = true;
  }
  const bool isNew = entry.phase == Phase::kWaiting;
  if (isNew && !arrived(entry)) return false;
  if (isNew && !readEnvelope(entry)) {
    moved = true;
    return false;
  }
  if (!fits(entry)) {
    moved |= realign(entry) || !failure().isOk();
    if (!isNew || !entry.posted || !failure().isOk()) return !isNew;
    // Its sender may wait for the answer before it sends what this one waits for.
    if (withdrawn_.count(entry.number) == 0) return false;
    refuse(entry, Status(Code::kCancelled, nameOf(entry) + " was cancelled by its sender"));
    moved = true;
    return false;
  }
  if (isNew) {
    if (batch && batch->held() && withdrawn_.count(entry.number) == 0) return false;
    entry.isMet = entry.posted;
    judge(entry);
    moved = true;
    return false;
  }
  // It was withdrawn, and refused, before there was a receive.
  if (!entry.posted) return true;
  entry.isMet = true;
  if (entry.phase == Phase::kDone) {
    settle(entry, Status(entry.outcome));
    moved = true;
  }
  return true;
}

bool LaneReceiver::look(Entry& entry, uint64_t& budget) {
  bool moved = false;
  bool hungry = false;
  if (!entry.isMet && !meet(entry, moved)) return moved;
  MessageBatch* const batch = entry.wanted.batch.get();
  switch (entry.phase) {
    case Phase::kDone:
    case Phase::kWaiting: return moved;
    case Phase::kReaching:
      if (batch->cancelled())
        refuse(entry, Status(Code::kCancelled, nameOf(entry) + " was cancelled"));
      else
        beginGet(entry);
      return entry.phase != Phase::kReaching;
    case Phase::kStaging: moved = stage(entry, budget); break;
    case Phase::kCopying:
      if (batch->cancelled()) entry.run->cancel(Code::kCancelled);
      [[fallthrough]];
    case Phase::kLanding:
    case Phase::kRefusing:
    case Phase::kAgreeing: {
      const uint64_t before = entry.run->bytesMoved();
      const bool ended = entry.run->advance(budget, moved, hungry);
      budget -= std::min(budget, entry.run->bytesMoved() - before);
      if (ended) copied(entry);
      break;
    }
  }
  if (hungry) setHungry();
  return moved;
}

// The envelope is there and read: what becomes of the message?
void LaneReceiver::judge(Entry& entry) {
  const Envelope& envelope = entry.run->envelope;
  const bool isVoid = envelope.kind == MessageKind::kVoid;
  if (entry.isLeftOver)
    return refuse(entry, Status(Code::kSizeMismatch, "a piece for which there is no receive"));
  if (!entry.wanted.batch || isVoid || withdrawn_.count(entry.number) != 0)
    return refuse(entry, Status(Code::kCancelled,
                                nameOf(entry) + " was cancelled" +
                                    (entry.posted && !entry.wanted.batch ? "" : " by its sender")));
  const MessageItem& item = itemOf(entry);
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

void LaneReceiver::start(Entry& entry, const cpu::CpuProgram& program, Verdict verdict,
                         Phase phase) {
  MessageRun& run = *entry.run;
  run.answer.verdict = verdict;
  run.answer.number = entry.number;
  run.answer.bytes = entry.wanted.batch ? itemOf(entry).bytes : 0;
  run.targets[kReceiverAnswer] = run.answerTarget();
  run.start(program, entry.number);
  entry.phase = phase;
  again_ = true;  // its first op can run at once
}

void LaneReceiver::beginEager(Entry& entry) {
  LanePrograms* programs = programsFor(entry, false);
  if (programs == nullptr) return;
  const MessageItem& item = itemOf(entry);
  entry.run->answer = {};
  entry.run->targets[kReceiverBuffer] = {.address = item.address, .bytes = item.bytes};
  start(entry, programs->eager, Verdict::kAccepted, Phase::kCopying);
}

void LaneReceiver::beginGet(Entry& entry) {
  MessageRun& run = *entry.run;
  const Envelope& envelope = run.envelope;
  const MessageItem& item = itemOf(entry);
  auto found = shelf_.find(
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
    return breakLane(Status(Code::kCorrupt, "rank " + std::to_string(ground_.rank) +
                                                " sent a place outside its region"));
  const std::byte* from = memory.mapped == nullptr ? nullptr : memory.mapped + envelope.offset;
  if (from != nullptr && overlap(from, item.address, item.bytes))
    return refuse(
        entry, Status(Code::kInvalidArgument, nameOf(entry) + " overlaps the memory that is sent"));
  LanePrograms* programs = programsFor(entry, from == nullptr);
  if (programs == nullptr) return;
  if (Status used = run.use(*found); !used.isOk()) return refuse(entry, used);
  run.answer = {};
  run.targets[kReceiverBuffer] = {.address = item.address, .bytes = item.bytes};
  run.targets[kReceiverPeerPayload] = {.address = const_cast<std::byte*>(from),
                                       .bytes = item.bytes,
                                       .remote = &memory,
                                       .remoteOffset = envelope.offset};
  start(entry, programs->get, Verdict::kAccepted, Phase::kCopying);
}

void LaneReceiver::beginPut(Entry& entry) {
  const MessageItem& item = itemOf(entry);
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
  if (entry.run->envelope.mayStage == 0 || ground_.strict) return refuse(entry, full);
  ground_.peer->metrics().fallbacks().add();
  beginStaging(entry);
}

void LaneReceiver::beginStaging(Entry& entry) {
  if (!staged_.isOpen()) {
    if (Status made = staged_.openReceiver(StagedRing::within(ground_.ringBytes)); !made.isOk())
      return refuse(entry, made.withContext("the staging ring"));
  }
  LanePrograms* programs = programsFor(entry, false);
  if (programs == nullptr) return;
  const RegionRecord& memory = staged_.ownMemory();
  Answer& answer = entry.run->answer;
  answer = {};
  answer.access = memory.access;
  answer.chunkBytes = staged_.ring().chunkBytes;
  answer.allocation = memory.allocation;
  answer.generation = memory.generation;
  answer.regionBytes = memory.bytes;
  answer.position = entry.firstChunk = chunksGiven_;
  chunksGiven_ += staged_.ring().chunksOf(itemOf(entry).bytes);
  entry.run->targets[kReceiverBuffer] = {};
  start(entry, programs->eager, Verdict::kStaged, Phase::kAgreeing);
}

void LaneReceiver::refuse(Entry& entry, const Status& why) {
  LanePrograms* programs = programsFor(entry, false);
  if (programs == nullptr) return;
  entry.outcome = why;
  entry.run->answer = {};
  entry.run->answer.code = why.code();
  entry.run->answer.otherPieces = entry.isLeftOver ? 1 : 0;
  entry.run->targets[kReceiverBuffer] = {};
  start(entry, programs->eager, Verdict::kRefused, Phase::kRefusing);
}

// The run of an entry has ended.
void LaneReceiver::copied(Entry& entry) {
  const Code code = entry.run->code();
  const MessageKind kind = entry.run->envelope.kind;
  if (entry.phase == Phase::kLanding) {
    if (code != Code::kOk)
      return settle(entry, Status(code, nameOf(entry) + ": its sender gave up"));
    count(kind, "peer", itemOf(entry).bytes);
    return settle(entry, Status::ok());
  }
  // The link may have ended before the session says so, and only the answer's way back with it.
  if (entry.phase == Phase::kCopying && code != Code::kOk && code != Code::kCancelled &&
      holdsPayload(entry)) {
    const std::string name = nameOf(entry);
    taken(entry);
    return breakLane(Status(code, name + ": the link failed"));
  }
  if (entry.phase == Phase::kCopying && code != Code::kOk)
    return refuse(entry,
                  Status(code, nameOf(entry) + (code == Code::kCancelled ? " was cancelled"
                                                                         : ": the copy failed")));
  if (code != Code::kOk) return breakLane(Status(code, nameOf(entry) + ": the link failed"));
  if (entry.phase == Phase::kRefusing) return settle(entry, entry.outcome);
  if (entry.phase == Phase::kAgreeing) {
    entry.phase = Phase::kStaging;
    again_ = true;
    return;
  }
  taken(entry);
}

void LaneReceiver::taken(Entry& entry) {
  const MessageKind kind = entry.run->envelope.kind;
  count(kind, kind == MessageKind::kEager ? "inbox" : entry.run->engine(), itemOf(entry).bytes);
  settle(entry, Status::ok());
}

// Requires: it is this entry's turn in the ring.
Status LaneReceiver::moveStaged(Entry& entry, uint64_t& budget, bool& moved) {
  const MessageItem& item = itemOf(entry);
  if (!staged_.running()) staged_.begin(item.address, item.bytes, entry.firstChunk);
  bool hungry = false;
  PEERLANE_RETURN_IF_ERROR(staged_.advance(budget, moved, hungry));
  if (hungry) setHungry();
  if (staged_.running()) return Status::ok();
  stagedTurn_ = staged_.nextChunk();
  count(MessageKind::kRing, "staged", item.bytes);
  settle(entry, Status::ok());
  again_ = true;  // the next one may wait for its turn in the ring
  return Status::ok();
}

bool LaneReceiver::stage(Entry& entry, uint64_t& budget) {
  if (entry.firstChunk != stagedTurn_) return false;
  bool moved = false;
  if (Status status = moveStaged(entry, budget, moved); !status.isOk()) breakLane(status);
  return moved;
}

void LaneReceiver::settle(Entry& entry, const Status& status) {
  entry.phase = Phase::kDone;
  entry.outcome = status;
  if (withdrawn_.erase(entry.number) != 0) closed();
  if (!entry.isMet) return;  // which receive this is of is not known yet
  const auto batch = std::move(entry.wanted.batch);
  entry.wanted = {};
  closed();
  if (batch) batch->itemEnded(status);
}

void LaneReceiver::count(MessageKind kind, const char* engine, uint64_t bytes) {
  const auto index = static_cast<size_t>(kind);
  received_[index].store(received_[index].load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  auto& [name, counter] = counters_[index];
  if (name != engine) {
    name = engine;
    counter =
        &ground_.peer->metrics().bytes(ground_.peer->link().traits().transport, engine, "recv");
  }
  counter->add(bytes);
}

// The connection is over, and its end may have overtaken what came before: a sender may have been
// told that its message was taken, or have put it where it belongs.
void LaneReceiver::takeRest() {
  staged_.giveUpCredits();
  bool moved = false;
  bool hungry = false;
  do {
    again_ = false;
    for (uint64_t number = head_; number < end_; ++number) {
      Entry& entry = entryOf(number);
      uint64_t budget = kSliceBytes;
      const bool isAnswered = entry.phase == Phase::kLanding || entry.phase == Phase::kAgreeing;
      if (isAnswered && entry.run->advance(0, moved, hungry) && entry.run->code() == Code::kOk)
        copied(entry);
      if (entry.phase == Phase::kStaging && entry.firstChunk == stagedTurn_)
        (void)moveStaged(entry, budget, moved);
    }
  } while (again_);
}

// Of an eager message or a get whose run has ended, however: only the answer may be missing.
bool LaneReceiver::holdsPayload(const Entry& entry) const {
  const bool isEager = entry.run->envelope.kind == MessageKind::kEager;
  // An agent's copy is confirmed by one op more.
  return entry.run->passed(isEager ? kEagerReceiverPayloadOp : kZcopyGetReceiverPayloadOp + 1);
}

bool LaneReceiver::abandon() {
  if (failure().code() != Code::kCorrupt) takeRest();
  for (; !receives_.empty(); receives_.pop_front()) {
    closed();
    if (const auto& batch = receives_.front().batch) batch->itemEnded(failure());
  }
  bool all = staged_.abandon(failure().code());
  for (Entry& entry : window_) {
    if (entry.phase == Phase::kCopying || entry.phase == Phase::kLanding ||
        entry.phase == Phase::kRefusing || entry.phase == Phase::kAgreeing) {
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
    if (entry.phase == Phase::kStaging && !all) continue;
    if (!entry.posted || (entry.phase == Phase::kDone && entry.isMet)) continue;
    const bool isRefused = entry.phase == Phase::kRefusing || entry.phase == Phase::kDone;
    entry.isMet = true;
    if (entry.phase == Phase::kCopying && holdsPayload(entry))
      taken(entry);
    else
      settle(entry, isRefused ? Status(entry.outcome) : failure());
  }
  if (all) shelf_.clear();
  return all;
}

std::string LaneReceiver::describeWindow() const {
  std::string text = "from rank " + std::to_string(ground_.rank) + ": receives " +
                     std::to_string(head_) + " to " + std::to_string(next_) + " under way";
  if (head_ == next_) return text;
  const Entry& oldest = window_[head_ % kSlots];
  if (oldest.phase == Phase::kWaiting) return text + "; the oldest waits for its message";
  if (oldest.phase == Phase::kReaching) return text + "; the oldest waits for an import";
  return oldest.run ? text + "; oldest: " + oldest.run->describe() : text;
}

}  // namespace peerlane
