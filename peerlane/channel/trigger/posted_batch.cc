// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/posted_batch.h"

#include <algorithm>
#include <utility>

#include "peerlane/channel/trigger/trigger_device.h"
#include "peerlane/session/peer/peer_slab.h"

namespace peerlane {
namespace {

// Of operations that have ended: so many are kept for their room.
constexpr size_t kMostSpare = 256;

Program named(const char* name) {
  Program program;
  program.name = name;
  return program;
}

// What the programs of an emitter need, whatever is posted.
Status checkAbilities(const ExecutorAbilities& executor, bool isMapped, bool byDevice) {
  Program all = named(isMapped ? "commit of a mapped queue" : "commit of a doorbell queue");
  if (isMapped) {
    all.ops = {{.code = OpCode::kCopy}, {.code = OpCode::kCopyList}};
    byDevice ? emitSignalTotal(all, 0, 1) : emitSignal(all, 0, 1);
    emitMappedEnd(all, 1);
  } else {
    emitDoorbell(all, 1);
  }
  PEERLANE_RETURN_IF_ERROR(executor.check(all));
  Program peek = named("peek");
  emitPeek(peek, 1, {}, 0, 1);
  return executor.check(peek);
}

Status checkSignal(uint32_t number) {
  if (number < slab::kSignals) return Status::ok();
  return Status(Code::kInvalidArgument, "signal " + std::to_string(number) + "; there are 0 to " +
                                            std::to_string(slab::kSignals - 1));
}

uint64_t offsetOfSignal(uint32_t number) {
  return slab::kSignalsOffset + uint64_t{number} * slab::kWordStrideBytes;
}

std::string whyAway(const RemoteMemory& memory) {
  return "region " + std::to_string(memory.grant.allocation) + " of the peer is reached by " +
         memory.engine + " alone";
}

}  // namespace

// The words of the queue have the same address for a device that pinned them.
void PostedBatch::addWords() {
  TriggerWords& words = health_.words();
  const auto word = [](auto& at) {
    return BoundTarget{.address = reinterpret_cast<std::byte*>(&at), .bytes = sizeof(at)};
  };
  table_.addWord("bell", Side::kLocal, word(words.bell));
  table_.addWord("count", Side::kLocal, word(words.count));
  table_.addWord("passed", Side::kLocal, word(words.passed));
  const BoundTarget signalsHere{.address = peer_->slab(), .bytes = slab::kBytes};
  table_.addWord("arrived", Side::kLocal, stream_ ? word(words.arrived) : signalsHere);
  const RemoteMemory& peers = peer_->slabs().peersMemory();
  BoundTarget signals{.bytes = slab::kBytes, .remote = &peers};
  if (peers.mapped != nullptr && !stream_) {
    signals.address = peers.mapped;
    signals.waker = &peer_->links().of(peers).traits().signalWaker;
  }
  table_.addWord("signals", Side::kRemote, signals);
}

// --- Which emitter ---

Status PostedBatch::begin() {
  if (stream_) PEERLANE_RETURN_IF_ERROR(stream_->pin(health_.sharedWords()));
  addWords();
  const Status mapped = checkAbilities(options_.executor, true, stream_ != nullptr);
  const Status doorbell = checkAbilities(options_.executor, false, stream_ != nullptr);
  switch (options_.emitter) {
    case TriggerEmitter::kMapped:
      PEERLANE_RETURN_IF_ERROR(mapped);
      emitter_.store(TriggerEmitter::kMapped, std::memory_order_release);
      return Status::ok();
    case TriggerEmitter::kDoorbell: return doorbell.isOk() ? openDoorbell() : doorbell;
    case TriggerEmitter::kAuto: break;
  }
  if (mapped.isOk()) return Status::ok();
  PEERLANE_RETURN_IF_ERROR(doorbell);
  return decide(false, std::string(mapped.message()));
}

// `whyNotMapped`: the reason, where it is not.
Status PostedBatch::decide(bool isMapped, const std::string& whyNotMapped) {
  const TriggerEmitter now = emitter();
  if (now == TriggerEmitter::kDoorbell || (now == TriggerEmitter::kMapped && isMapped))
    return Status::ok();
  if (now == TriggerEmitter::kMapped)
    return Status(Code::kNotSupported,
                  "the programs of this queue are the transfers themselves (mapped), and " +
                      whyNotMapped + "; a queue with TriggerEmitter::kDoorbell moves it");
  if (isMapped) {
    emitter_.store(TriggerEmitter::kMapped, std::memory_order_release);
    return Status::ok();
  }
  PEERLANE_RETURN_IF_ERROR(checkAbilities(options_.executor, false, stream_ != nullptr));
  whyNotMapped_ = whyNotMapped;
  return openDoorbell();
}

Status PostedBatch::openDoorbell() {
  PEERLANE_RETURN_IF_ERROR(doorbell_.open(options_.operations));
  emitter_.store(TriggerEmitter::kDoorbell, std::memory_order_release);
  return Status::ok();
}

std::string PostedBatch::whyNotOther() const {
  switch (emitter()) {
    case TriggerEmitter::kAuto: return "nothing was posted yet";
    case TriggerEmitter::kMapped:
      return "not doorbell: loads and stores reach all memory, so no server is needed";
    case TriggerEmitter::kDoorbell: break;
  }
  return "not mapped: " + (whyNotMapped_.empty() ? "doorbell was asked for" : whyNotMapped_);
}

// --- Post ---

PostedBatch::Work PostedBatch::newWork() {
  if (spare_.empty()) return std::make_unique<PostedWork>(peer_);
  Work work = std::move(spare_.back());
  spare_.pop_back();
  return work;
}

void PostedBatch::recycle(PostedWorks& works) {
  for (Work& work : works) {
    work->leave();
    if (spare_.size() < kMostSpare) spare_.push_back(std::move(work));
  }
  works.clear();
}

void PostedBatch::keep(Work work) {
  works_.push_back(std::move(work));
  if (!isDoorbell()) ++last_;
}

Status PostedBatch::addEntries(Work work, const Result<uint64_t>& entries,
                               const OpenEntries& before) {
  PEERLANE_RETURN_IF_ERROR(entries.status());
  if (entries_ == 0) before_ = before;
  entries_ += *entries;
  keep(std::move(work));
  return Status::ok();
}

Status PostedBatch::post(Direction direction, std::span<const Block> blocks) {
  Work work = newWork();
  PEERLANE_RETURN_IF_ERROR(
      work->take(direction, blocks, Progress::deadlineIn(options_.importTimeout), executor()));
  const BoundTarget* const away = work->agentTarget();
  std::string whyNot;
  if (away != nullptr)
    whyNot = whyAway(*away->remote);
  else if (!stream_ && work->mayBeCut())  // an executor's own copy of what was cut ends its process
    whyNot = "some of the memory lies in a file that another process may cut";
  PEERLANE_RETURN_IF_ERROR(decide(whyNot.empty(), whyNot));
  if (!isDoorbell()) return addMapped(std::move(work));
  const OpenEntries before = open_;
  const auto entries =
      writeEntries(doorbell_.mailbox(), *work, direction == Direction::kPut, open_);
  return addEntries(std::move(work), entries, before);
}

// Its ops, with the numbers of the queue's table.
Status PostedBatch::addMapped(Work work) {
  const Program& from = work->program();
  std::vector<TargetId> numbers;
  for (size_t i = 0; i < from.targets.size(); ++i) {
    PEERLANE_ASSIGN(const TargetId number, table_.add(from.targets[i], work->binding().targets[i]));
    numbers.push_back(number);
  }
  const auto renumber = [&](Segment& segment) {
    segment.to = numbers[segment.to];
    segment.from = numbers[segment.from];
  };
  const auto firstList = static_cast<uint32_t>(program_.lists.size());
  for (CopyLayout list : from.lists) {
    std::for_each(list.segments.begin(), list.segments.end(), renumber);
    if (list.kind != CopyLayout::Kind::kScattered) renumber(list.first);
    program_.lists.push_back(std::move(list));
  }
  for (Op op : from.ops) {
    if (op.code == OpCode::kCopyList) {
      op.list += firstList;
    } else {
      op.to.target = numbers[op.to.target];
      op.from.target = numbers[op.from.target];
    }
    program_.ops.push_back(op);
  }
  keep(std::move(work));
  return Status::ok();
}

Status PostedBatch::postSignal(uint32_t number, uint64_t add) {
  PEERLANE_RETURN_IF_ERROR(checkSignal(number));
  const RemoteMemory& memory = peer_->slabs().peersMemory();
  Work work = newWork();
  PEERLANE_RETURN_IF_ERROR(work->takeSlab());
  const std::string whyNot = isDoorbell() ? "" : whyNoSignals(memory);
  PEERLANE_RETURN_IF_ERROR(decide(whyNot.empty(), whyNot));
  if (!isDoorbell()) {
    PEERLANE_RETURN_IF_ERROR(addSignal({number, add}));
    keep(std::move(work));
    return Status::ok();
  }
  const Waker* const waker =
      memory.mapped != nullptr ? &peer_->links().of(memory).traits().signalWaker : nullptr;
  const OpenEntries before = open_;
  const auto entries =
      writeAddition(doorbell_.mailbox(), memory, offsetOfSignal(number), add, waker, true, open_);
  return addEntries(std::move(work), entries, before);
}

std::string PostedBatch::whyNoSignals(const RemoteMemory& peers) {
  if (peers.mapped == nullptr)
    return "the words of the peer are reached by " + std::string(peers.engine) + " alone";
  return stream_ ? std::string(signals_.window().status().message()) : "";
}

Status PostedBatch::addSignal(const TriggerAddition& addition) {
  if (!stream_) {
    emitSignal(program_, offsetOfSignal(addition.signal), addition.add);
    return Status::ok();
  }
  PEERLANE_ASSIGN(std::byte* const window, signals_.window());
  table_.placeWord(kTriggerSignals, window);
  PEERLANE_ASSIGN(const TriggerSignals::Store store, signals_.add(addition));
  additions_.push_back(addition);
  emitSignalTotal(program_, store.offset, store.total);
  return Status::ok();
}

Status PostedBatch::postAdd(const RemoteRegion& region, uint64_t offset, uint64_t value) {
  if (offset % sizeof(uint64_t) != 0)
    return Status(Code::kInvalidArgument,
                  "offset " + std::to_string(offset) + " of a word; multiples of 8 would do");
  Work work = newWork();
  PEERLANE_ASSIGN(const RemoteMemory* const memory,
                  work->takeWord(region, offset, Progress::deadlineIn(options_.importTimeout)));
  PEERLANE_RETURN_IF_ERROR(
      decide(memory->mapped != nullptr, memory->mapped != nullptr ? "" : whyAway(*memory)));
  if (isDoorbell()) {
    const OpenEntries before = open_;
    const auto entries =
        writeAddition(doorbell_.mailbox(), *memory, offset, value, nullptr, false, open_);
    return addEntries(std::move(work), entries, before);
  }
  const BoundTarget bound{
      .address = memory->mapped, .bytes = memory->grant.bytes, .remote = memory};
  PEERLANE_ASSIGN(const TargetId target,
                  table_.add({.name = "remote", .side = Side::kRemote}, bound));
  program_.ops.push_back({.code = OpCode::kAdd64,
                          .order = Order::kRelease,
                          .to = {.target = target, .offset = offset},
                          .operand = {.delta = static_cast<int64_t>(value)}});
  keep(std::move(work));
  return Status::ok();
}

Status PostedBatch::postReceive(uint32_t number, uint64_t value) {
  PEERLANE_RETURN_IF_ERROR(checkSignal(number));
  if (!stream_ && peer_->links().devicesAdd())
    return Status(Code::kNotSupported,
                  "devices of the peer may add to its signals, each to words of its own, and a "
                  "program waits for one word; take a queue of a device (TriggerOptions::device), "
                  "or wait on a stream (Signal::waitOn)");
  if (value >= kPoison)
    return Status(Code::kInvalidArgument, "signal " + std::to_string(number) + " at " +
                                              std::to_string(value) +
                                              "; values below 2^62 are awaited");
  if (stream_) PEERLANE_RETURN_IF_ERROR(doorbell_.join());  // whose server tells it to the device
  arrivals_.push_back({offsetOfSignal(number), value});
  ++awaited_;
  return Status::ok();
}

void PostedBatch::discard() {
  if (entries_ != 0) {
    doorbell_.mailbox().unclaim(entries_);
    open_ = before_;
  }
  if (!isDoorbell()) last_ -= works_.size();
  awaited_ -= arrivals_.size();
  signals_.takeBack(additions_);
  entries_ = 0;
  recycle(works_);
  arrivals_.clear();
  additions_.clear();
  program_ = {};
}

// --- Commit ---

uint32_t PostedBatch::ops() const {
  if (works_.empty()) return 0;
  return isDoorbell() ? kDoorbellOps : static_cast<uint32_t>(program_.ops.size()) + kMappedEndOps;
}

Status PostedBatch::moveTo(CommitSlot& slot) {
  slot.last = isDoorbell() ? doorbell_.mailbox().claimed() : last_;
  slot.entries = entries_;
  slot.before = before_;
  slot.awaited = awaited_;
  slot.seenRevocations = seenRevocations_;
  if (works_.empty()) {
    slot.ready.clear();  // receives launch nothing
  } else {
    const size_t posted = program_.ops.size();
    program_.name = isDoorbell() ? "doorbell-commit" : "mapped-commit";
    const uint64_t last = slot.last.load(std::memory_order_relaxed);
    isDoorbell() ? emitDoorbell(program_, last) : emitMappedEnd(program_, last);
    if (Status prepared = prepare(slot.ready, std::move(program_)); !prepared.isOk()) {
      program_ = slot.ready.program();  // all that was posted is still there for another commit
      program_.ops.resize(posted);
      slot.ready.clear();
      return prepared;
    }
  }
  std::swap(slot.works, works_);  // its own is empty
  std::swap(slot.arrivals, arrivals_);
  std::swap(slot.additions, additions_);
  entries_ = 0;
  arrivals_.clear();
  additions_.clear();
  program_ = {};
  return Status::ok();
}

void PostedBatch::takeBack(CommitSlot& slot) {
  if (slot.entries != 0) {
    doorbell_.mailbox().unclaim(slot.entries);
    open_ = slot.before;
  }
  if (!isDoorbell()) last_ -= slot.works.size();
  awaited_ -= slot.arrivals.size();
  signals_.takeBack(slot.additions);
  recycle(slot.works);
  slot.arrivals.clear();
  slot.additions.clear();
}

Status PostedBatch::prepare(ReadyProgram& into, Program program) const {
  program.targets.assign(table_.targets().begin(), table_.targets().end());
  Binding binding;
  binding.targets.assign(table_.bound().begin(), table_.bound().end());
  if (!stream_) return into.onCpu.prepare(std::move(program), std::move(binding), &peer_->copier());
  into.onDevice = std::move(program);
  return stream_->prepare(into.run, into.onDevice, binding);
}

Result<uint32_t> PostedBatch::resolve(const Program& program, std::span<TriggerOp> room) const {
  size_t needs = 0;
  const auto add = [&](const TriggerOp& op) {
    if (needs < room.size()) room[needs] = op;
    ++needs;
  };
  const auto addressOf = [this](TargetId target, uint64_t offset) {
    return table_.bound()[target].address + offset;
  };
  const auto addCopy = [&](const Segment& segment) {
    add({.code = OpCode::kCopy,
         .to = addressOf(segment.to, segment.toOffset),
         .from = addressOf(segment.from, segment.fromOffset),
         .bytes = segment.bytes});
  };
  for (const Op& op : program.ops) {
    if (op.code == OpCode::kCopyList)
      program.lists[op.list].eachBlock(addCopy);
    else if (op.code == OpCode::kCopy)
      addCopy({op.to.target, op.from.target, op.to.offset, op.from.offset, op.bytes});
    else
      add({.code = op.code,
           .width = op.width,
           .order = op.order,
           .compare = op.compare,
           .to = addressOf(op.to.target, op.to.offset),
           .operand = static_cast<uint64_t>(op.operand.delta)});
  }
  if (needs <= room.size()) return static_cast<uint32_t>(needs);
  return Status(Code::kInvalidArgument, "program '" + std::string(program.name) + "' has " +
                                            std::to_string(needs) +
                                            " ops with addresses; there "
                                            "is room for " +
                                            std::to_string(room.size()));
}

std::span<const TriggerRow> PostedBatch::rows() {
  rows_.clear();
  for (size_t i = 0; i < table_.targets().size(); ++i)
    rows_.push_back({table_.targets()[i].name, table_.bound()[i].address, table_.bound()[i].bytes});
  return rows_;
}

}  // namespace peerlane
