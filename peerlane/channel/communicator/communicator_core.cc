// SPDX-License-Identifier: Apache-2.0
//
// CommunicatorCore: turns, posts and the end. The bootstrap is in communicator_bootstrap.cc.
#include "peerlane/channel/communicator/communicator_core.h"

#include <algorithm>

#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/channel/operation/host_stream.h"
#include "peerlane/channel/protocol/device_area.h"

namespace peerlane {
namespace {

// How long the end waits for copies under way.
constexpr std::chrono::seconds kEndPatience{10};

Status invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

constexpr const char* kEmptyRegion = "an empty Region; take one from Context::registerRegion";

Status checkRange(const RegionRecord& record, uint64_t offset, uint64_t bytes) {
  if (bytes <= record.bytes && offset <= record.bytes - bytes) return Status::ok();
  return invalid("range [" + std::to_string(offset) + ", +" + std::to_string(bytes) +
                 ") lies outside the region's " + std::to_string(record.bytes) + " bytes");
}

Status checkRegion(const PeerCore& peer, const Region& region, uint64_t offset, uint64_t bytes) {
  const auto& record = region.record();
  if (!record) return invalid(kEmptyRegion);
  PEERLANE_RETURN_IF_ERROR(checkRange(*record, offset, bytes));
  auto known = peer.regions().find(record->allocation, record->generation);
  if (!known.isOk() && known.status().code() != Code::kInvalidArgument) return known.status();
  if (!known.isOk() || *known != record)
    return invalid("the region is not registered with this communicator's context");
  return Status::ok();
}

Status checkPieces(std::span<const MessageBlock> pieces) {
  if (pieces.empty()) return invalid("a list without pieces; need at least one");
  const auto empty = std::find_if(pieces.begin(), pieces.end(),
                                  [](const MessageBlock& piece) { return piece.bytes == 0; });
  if (empty != pieces.end())
    return invalid("piece " + std::to_string(empty - pieces.begin()) +
                   " of a list has no bytes; each has at least one");
  if (pieces.size() <= PieceNames::kMostPieces) return Status::ok();
  return invalid("a list of " + std::to_string(pieces.size()) + " pieces; at most " +
                 std::to_string(PieceNames::kMostPieces) + ", so post several lists");
}

// The communicator's own is for messages of one piece.
Status checkListProtocol(const MessageOptions& options) {
  const Protocol protocol = options.protocol.value_or(Protocol::kAuto);
  if (protocol == Protocol::kAuto || protocol == Protocol::kPut) return Status::ok();
  return Status(Code::kNotSupported, "lists on streams go by auto or put");
}

// The messages that lists become where no GPU carries them out: one for each piece.
std::vector<CommunicatorCore::Wanted> pieceByPiece(
    std::span<const CommunicatorCore::Wanted> messages) {
  static const Region kNone;
  std::vector<CommunicatorCore::Wanted> all;
  for (const CommunicatorCore::Wanted& wanted : messages) {
    if (!wanted.isList) {
      all.push_back(wanted);
      continue;
    }
    Part part{.count = static_cast<uint16_t>(wanted.pieces.size())};
    for (const MessageBlock& piece : wanted.pieces) {
      all.push_back({.rank = wanted.rank,
                     .isSend = wanted.isSend,
                     .region = piece.region == nullptr ? &kNone : piece.region,
                     .offset = piece.offset,
                     .bytes = piece.bytes,
                     .part = part.count == 1 ? Part() : part});
      ++part.index;
    }
  }
  return all;
}

}  // namespace

Status CommunicatorCore::usable() const {
  return first_->forked() ? first_->usable() : Status::ok();
}

Peer CommunicatorCore::peer(Rank rank) const {
  if (rank >= pairs_.size() || !pairs_[rank]) return Peer();
  return Peer(pairs_[rank]->env.peer);
}

std::vector<std::shared_ptr<PeerCore>> CommunicatorCore::peers() const {
  std::vector<std::shared_ptr<PeerCore>> all;
  for (const auto& pair : pairs_)
    if (pair) all.push_back(pair->env.peer);
  return all;
}

Result<CommunicatorCore::Pair*> CommunicatorCore::pairOf(Rank rank) const {
  if (rank >= pairs_.size())
    return invalid("rank " + std::to_string(rank) + "; there are 0 to " +
                   std::to_string(pairs_.size() - 1));
  if (!pairs_[rank])
    return invalid("rank " + std::to_string(rank) + " is this one; messages go to others");
  return pairs_[rank].get();
}

Result<MessageKind> CommunicatorCore::kindOf(const Wanted& wanted, const Pair& pair,
                                             Protocol protocol, MessageItem& item) const {
  const uint32_t eager = std::min(eagerBytes_, pair.env.peerEagerBytes);
  if (wanted.bytes == 0) return MessageKind::kEager;
  item.mayStage = protocol == Protocol::kAuto && !pair.env.strict;
  switch (protocol) {
    case Protocol::kAuto:
      if (wanted.bytes <= eager) return MessageKind::kEager;
      if (wanted.region == nullptr || allows(wanted.region->access(), Access::kRemoteRead))
        return MessageKind::kGet;
      if (pair.env.strict)
        return Status(Code::kNotSupported,
                      "PEERLANE_STRICT: the region grants no remote read, so the message would be "
                      "staged");
      return MessageKind::kRing;
    case Protocol::kEager:
      if (wanted.bytes <= eager) return MessageKind::kEager;
      return invalid("an eager message of " + std::to_string(wanted.bytes) + " bytes; at most " +
                     std::to_string(eager));
    case Protocol::kGet:
      if (wanted.region == nullptr || allows(wanted.region->access(), Access::kRemoteRead))
        return MessageKind::kGet;
      return Status(Code::kPermissionDenied, std::string("the region grants ") +
                                                 accessName(wanted.region->access()) +
                                                 ", a get needs remote read");
    case Protocol::kPut: return MessageKind::kPut;
    case Protocol::kRing: return MessageKind::kRing;
  }
  return invalid("protocol " + std::to_string(static_cast<int>(protocol)) + " is not known");
}

Status CommunicatorCore::addItem(MessageBatch& batch, const Wanted& wanted, const Pair& pair,
                                 Protocol protocol) {
  MessageItem item;
  item.bytes = wanted.bytes;
  item.part = wanted.part;
  item.address = wanted.address;
  if (wanted.region != nullptr) {
    PEERLANE_RETURN_IF_ERROR(checkRegion(*first_, *wanted.region, wanted.offset, wanted.bytes));
    PEERLANE_RETURN_IF_ERROR(batch.hold(wanted.region->record()));
    item.region = wanted.region->record().get();
    item.address = item.region->base + wanted.offset;
    // The CPU would copy it.
    if (item.region->memory.device.kind == DeviceKind::kCuda)
      return invalid("a message of memory of " + item.region->memory.device.toString() +
                     " goes on a stream of a GPU (MessageOptions::deviceStream)");
  } else if (wanted.address == nullptr && wanted.bytes > 0) {
    return invalid("a null pointer with " + std::to_string(wanted.bytes) + " bytes");
  }
  if (wanted.isSend) {
    PEERLANE_ASSIGN(item.kind, kindOf(wanted, pair, protocol, item));
    if (item.kind == MessageKind::kGet && wanted.region == nullptr) {
      PEERLANE_ASSIGN(auto record, spans_->find(wanted.address, wanted.bytes));
      PEERLANE_RETURN_IF_ERROR(batch.hold(record));
      item.region = record.get();
    }
  }
  batch.add(item);
  return Status::ok();
}

Result<Transfer> CommunicatorCore::post(std::span<const Wanted> messages,
                                        const MessageOptions& options) {
  PEERLANE_RETURN_IF_ERROR(usable());
  if (messages.empty()) return invalid("a list without messages; need at least one");
  // The early answer. A post that passes here while close() runs is refused by its lanes, under
  // their locks.
  if (closed_.load(std::memory_order_acquire))
    return Status(Code::kClosed, "the communicator was closed by this side");
  bool hasLists = false;
  for (const Wanted& wanted : messages) {
    if (!wanted.isList) continue;
    hasLists = true;
    PEERLANE_RETURN_IF_ERROR(checkPieces(wanted.pieces));
  }
  if (options.deviceStream) return postOnStream(messages, options);
  return hasLists ? postOnHost(pieceByPiece(messages), options) : postOnHost(messages, options);
}

Result<Transfer> CommunicatorCore::postOnHost(std::span<const Wanted> messages,
                                              const MessageOptions& options) {
  const Protocol protocol = options.protocol.value_or(options_.protocol);
  auto batch =
      std::make_shared<MessageBatch>(shared_from_this(), first_->progress(), first_->metrics());
  for (const Wanted& wanted : messages) {
    PEERLANE_ASSIGN(Pair * pair, pairOf(wanted.rank));
    LaneEnd& lane = wanted.isSend ? static_cast<LaneEnd&>(*pair->sender) : *pair->receiver;
    PEERLANE_RETURN_IF_ERROR(lane.health());
    PEERLANE_RETURN_IF_ERROR(addItem(*batch, wanted, *pair, protocol));
    batch->useLane(lane);
  }
  // Before a lane has it: the runner of a lane may begin with an item as soon as that is posted.
  if (options.stream != nullptr) batch->holdBack();
  // From here on everything ends by its transfer.
  for (size_t first = 0; first < messages.size();) {
    const Wanted& one = messages[first];
    size_t end = first + 1;
    while (end < messages.size() && messages[end].rank == one.rank &&
           messages[end].isSend == one.isSend)
      ++end;
    Pair& pair = *pairs_[one.rank];
    LaneEnd& lane = one.isSend ? static_cast<LaneEnd&>(*pair.sender) : *pair.receiver;
    lane.post(batch, first, end - first);
    first = end;
  }
  // After the lanes have it: messages take their numbers in the order of posting, also those that
  // the stream lets begin later.
  if (options.stream != nullptr) options.stream->enqueue(batch);
  return Transfer(std::move(batch));
}

// Of a message on a stream: whether the receiver copies it, if it is long.
Result<bool> CommunicatorCore::isByGet(const Wanted& wanted, Protocol protocol) {
  switch (protocol) {
    case Protocol::kAuto:
    case Protocol::kPut: return false;
    case Protocol::kGet: return true;
    case Protocol::kEager:
      if (wanted.bytes <= DeviceArea::kEagerBytes) return false;
      return invalid("an eager message of " + std::to_string(wanted.bytes) +
                     " bytes; on streams at most " + std::to_string(DeviceArea::kEagerBytes));
    case Protocol::kRing:
      return Status(Code::kNotSupported,
                    "messages on streams do not go through a ring of chunks; they go by auto, "
                    "eager, put or get");
  }
  return invalid("protocol " + std::to_string(static_cast<int>(protocol)) + " is not known");
}

Result<std::shared_ptr<RegionRecord>> CommunicatorCore::streamMemory(const Wanted& wanted) const {
  if (wanted.region == nullptr)
    return invalid("messages on streams need registered memory (Context::registerRegion)");
  PEERLANE_RETURN_IF_ERROR(checkRegion(*first_, *wanted.region, wanted.offset, wanted.bytes));
  return wanted.region->record();
}

Result<Transfer> CommunicatorCore::postOnStream(std::span<const Wanted> messages,
                                                const MessageOptions& options) {
  if (options.stream != nullptr)
    return invalid("a message has one stream: a host stream or a device stream");
  PEERLANE_ASSIGN(const bool areStaged, mustStage(messages));
  if (areStaged) return postStaged(pieceByPiece(messages), options);
  const DeviceExecutors& devices = first_->devices();
  // Where the context has several GPUs, a stream may be of another one than the first.
  const auto isFar = [&](const Region* region) {
    if (region == nullptr || !region->record()) return false;
    const Device device = region->record()->memory.device;
    return device.kind == DeviceKind::kCuda && device != devices.front()->device();
  };
  const auto isElsewhere = [&](const Wanted& wanted) {
    if (!wanted.isList) return isFar(wanted.region);
    return std::any_of(wanted.pieces.begin(), wanted.pieces.end(),
                       [&](const MessageBlock& piece) { return isFar(piece.region); });
  };
  const bool hasOthers = devices.size() > 1;
  if (!hasOthers || std::none_of(messages.begin(), messages.end(), isElsewhere)) {
    auto posted = postOn(nullptr, messages, options);
    // Nothing was posted.
    if (posted.isOk() || !hasOthers || posted.status().code() != Code::kInvalidArgument)
      return posted;
  }
  PEERLANE_ASSIGN(DeviceExecutor* const executor, first_->executorOf(options.deviceStream));
  return postOn(executor, messages, options);
}

// `executor`: none means the first one's.
Result<Transfer> CommunicatorCore::postOn(DeviceExecutor* executor,
                                          std::span<const Wanted> messages,
                                          const MessageOptions& options) {
  const Protocol protocol = options.protocol.value_or(options_.protocol);
  thread_local std::vector<PostedMessage> posted;  // lest every post allocate
  posted.clear();
  for (const Wanted& wanted : messages) {
    PEERLANE_ASSIGN(Pair * pair, pairOf(wanted.rank));
    PEERLANE_RETURN_IF_ERROR(checkDevice(*pair));
    DeviceLane& lane = *pair->device;
    if (wanted.isList) PEERLANE_RETURN_IF_ERROR(checkListProtocol(options));
    PEERLANE_ASSIGN(PostedMessage made,
                    wanted.isList ? list(wanted, lane) : single(wanted, lane, protocol));
    PEERLANE_ASSIGN(made.runner, lane.runnerOn(executor == nullptr ? lane.executor() : *executor));
    posted.push_back(std::move(made));
  }
  auto transfer = postMessages(shared_from_this(), posted, options.deviceStream, options.timeout);
  posted.clear();  // lists are let go
  return transfer;
}

Result<PostedMessage> CommunicatorCore::single(const Wanted& wanted, DeviceLane& lane,
                                               Protocol protocol) const {
  PEERLANE_ASSIGN(const std::shared_ptr<RegionRecord> record, streamMemory(wanted));
  PEERLANE_ASSIGN(const bool byGet, isByGet(wanted, protocol));
  return PostedMessage{.lane = &lane,
                       .item = {.isSend = wanted.isSend,
                                .byGet = byGet,
                                .region = record.get(),
                                .address = record->base + wanted.offset,
                                .bytes = wanted.bytes},
                       .region = record.get()};
}

Result<PostedMessage> CommunicatorCore::list(const Wanted& wanted, DeviceLane& lane) const {
  const auto made = std::make_shared<PostedList>(wanted.isSend, wanted.pieces.size());
  const RegionRecord* known = nullptr;
  for (size_t i = 0; i < wanted.pieces.size(); ++i) {
    const MessageBlock& piece = wanted.pieces[i];
    // Neighbours mostly share their region.
    Status status = piece.region == nullptr ? invalid(kEmptyRegion)
                    : known != nullptr && piece.region->record().get() == known
                        ? checkRange(*known, piece.offset, piece.bytes)
                        : checkRegion(*first_, *piece.region, piece.offset, piece.bytes);
    if (!status.isOk()) return status.withContext("piece " + std::to_string(i) + " of a list");
    known = piece.region->record().get();
    PEERLANE_RETURN_IF_ERROR(made->add(*piece.region->record(), piece.offset, piece.bytes));
  }
  PEERLANE_RETURN_IF_ERROR(made->close());
  RegionRecord* const first = made->regions().front();
  return PostedMessage{.lane = &lane,
                       .item = {.isSend = wanted.isSend,
                                .region = first,
                                .bytes = made->bytes(),
                                .list = made.get()},
                       .region = first,
                       .list = made};
}

Status CommunicatorCore::checkDevice(const Pair& pair) const {
  if (pair.device) return Status::ok();
  return Status(Code::kNotSupported,
                "no link between the GPUs of this rank and rank " + std::to_string(pair.env.rank) +
                    ", and messages on streams cannot be staged: " + whyNotStaged(pair));
}

Status CommunicatorCore::prepare(Rank rank, std::span<const Region> regions,
                                 std::chrono::nanoseconds timeout) {
  PEERLANE_RETURN_IF_ERROR(usable());
  if (closed_.load(std::memory_order_acquire))
    return Status(Code::kClosed, "the communicator was closed by this side");
  PEERLANE_ASSIGN(Pair * pair, pairOf(rank));
  if (pair->staged) return prepareStaged(*pair, regions);
  PEERLANE_RETURN_IF_ERROR(checkDevice(*pair));
  Progress& progress = first_->progress();
  if (progress.onLoopThread())
    return invalid("prepare() was called in a callback on the progress thread");
  const bool toRead = options_.protocol == Protocol::kGet;
  DeviceLane& lane = *pair->device;
  std::vector<std::shared_ptr<RegionRecord>> reached;
  for (const Region& region : regions) {
    PEERLANE_RETURN_IF_ERROR(checkRegion(*first_, region, 0, 0));
    RegionRecord& record = *region.record();
    if (record.memory.device.kind == DeviceKind::kHost) {
      // Inside the gate: the memory must not go while the driver pins it.
      if (!record.gate.enter()) return record.whyClosed();
      const Status opened = DeviceLane::open(record, lane.executor());
      record.gate.leave();
      PEERLANE_RETURN_IF_ERROR(opened);
    }
    // Of others the peer needs to know nothing.
    if (!allows(region.access(), toRead ? Access::kRemoteRead : Access::kRemoteWrite)) continue;
    PEERLANE_RETURN_IF_ERROR(lane.check(
        {.isSend = toRead, .byGet = toRead, .region = &record, .bytes = DeviceArea::kBytes}));
    reached.push_back(region.record());
  }
  PEERLANE_RETURN_IF_ERROR(lane.health());
  // All are announced before one is waited for: the peer imports them side by side.
  for (const auto& record : reached) lane.announce(*record, toRead);
  const auto isReachable = [&](const std::shared_ptr<RegionRecord>& record) {
    return lane.isReachable(*record, toRead) || !record->gate.open();
  };
  const auto isOver = [&] {
    return std::all_of(reached.begin(), reached.end(), isReachable) || !lane.health().isOk();
  };
  const auto words = [&] {
    return "rank " + std::to_string(rank) + ", " + pair->env.peer->name() + ", to import " +
           std::to_string(reached.size()) + " regions of this side";
  };
  const Status waited = progress.wait(isOver, Progress::deadlineIn(timeout), words);
  PEERLANE_RETURN_IF_ERROR(lane.health());
  PEERLANE_RETURN_IF_ERROR(waited);
  for (const auto& record : reached)
    if (!lane.isReachable(*record, toRead)) return record->whyClosed();
  return Status::ok();
}

void CommunicatorCore::close() {
  // Once. Before the lanes fail: turn() reads it when all of them have ended, and ends itself.
  if (closed_.exchange(true, std::memory_order_acq_rel)) return;
  const Status why(Code::kClosed, "the communicator was closed by this side");
  for (const auto& pair : pairs_) {
    // Acquire, here and below: the lanes were made before the pair became ready.
    if (!pair || !pair->ready.load(std::memory_order_acquire)) continue;
    pair->sender->fail(why);
    pair->receiver->fail(why);
    if (pair->device) pair->device->fail(why, /*tellPeer=*/true);
    if (pair->staged) pair->staged->fail(why, /*tellPeer=*/true);
  }
  const auto over = [this] {
    return std::all_of(pairs_.begin(), pairs_.end(), [](const std::unique_ptr<Pair>& pair) {
      return !pair || !pair->ready.load(std::memory_order_acquire) ||
             (pair->sender->over() && pair->receiver->over() &&
              (!pair->device || pair->device->idle()) && (!pair->staged || pair->staged->over()));
    });
  };
  const auto advance = [this] {
    bool moved = false;
    // A budget of 0: nothing more is copied, only ended.
    for (const auto& pair : pairs_)
      if (pair && pair->ready.load(std::memory_order_acquire))
        moved |= pair->sender->advanceIfFree(0) || pair->receiver->advanceIfFree(0);
    return moved;
  };
  // The progress thread must not wait: later turns end the rest.
  (void)first_->progress().wait(over, advance, Progress::deadlineIn(kEndPatience));
  first_->progress().nudge();
}

// Both lanes are over: nothing of this side touches the peer's memory any more, and it may know.
void CommunicatorCore::finish(Pair& pair) {
  pair.finished = true;
  // After this side's last touch of the peer's memory (over() acquires what the lanes released),
  // because the peer's operations end by the note, and its buffers are then its user's again.
  // Before this side's areas are taken back, because the peer's lanes leave them when they end by
  // the note.
  pair.env.sendNote({.kind = LaneNote::Kind::kBye, .code = Code::kClosed});
  retireRegion(pair.env.area, {pair.env.peer});
  if (pair.receiver->ring()) retireRegion(pair.receiver->ring(), {pair.env.peer});
  if (pair.device) pair.device->retire();
  if (pair.staged) pair.staged->retire();
}

// Messages that no lane has begun with are not looked at in turns.
void CommunicatorCore::stirIfRevoked() {
  const uint64_t revocations = first_->regions().revocations();
  if (std::exchange(revocations_, revocations) == revocations) return;
  for (const auto& pair : pairs_) {
    if (!pair || pair->finished) continue;
    pair->sender->stirCancelled();
    pair->receiver->stirCancelled();
  }
}

Task::Turn CommunicatorCore::turn() {
  stirIfRevoked();
  bool moved = false;
  bool all = true;
  for (const auto& pair : pairs_) {
    if (!pair || pair->finished) continue;
    all = false;
    LaneSender& sender = *pair->sender;
    LaneReceiver& receiver = *pair->receiver;
    if (sender.busy()) moved |= sender.advance(LaneEnd::kSliceBytes);
    if (receiver.busy()) moved |= receiver.advance(LaneEnd::kSliceBytes);
    // One direction is of no use without the other: answers would go unread.
    if (sender.failing() && !receiver.failing()) receiver.fail(sender.health());
    if (receiver.failing() && !sender.failing()) sender.fail(receiver.health());
    if (pair->device) moved |= pair->device->turn();
    if (pair->staged) moved |= pair->staged->turn();
    if (sender.over() && receiver.over() && (!pair->device || pair->device->idle()) &&
        (!pair->staged || pair->staged->over())) {
      finish(*pair);
      moved = true;
    }
  }
  if (all && closed_.load(std::memory_order_acquire)) {
    spans_->clear();  // the last messages that named them have ended
    return Turn::kFinished;
  }
  return moved ? Turn::kMoved : Turn::kIdle;
}

std::string CommunicatorCore::describe() const {
  std::string text;
  for (const auto& pair : pairs_) {
    if (!pair) continue;
    for (LaneEnd* lane :
         {static_cast<LaneEnd*>(pair->sender.get()), static_cast<LaneEnd*>(pair->receiver.get())}) {
      const std::string line = lane->describe();
      if (line.empty()) continue;
      text += (text.empty() ? "communicator, rank " + std::to_string(own_) + ": " : "; ") + line;
    }
  }
  return text;
}

std::string CommunicatorCore::explain(Rank rank) const {
  auto found = pairOf(rank);
  if (!found.isOk()) return std::string(found.status().message());
  const Pair& pair = **found;
  const LinkTraits& traits = pair.env.peer->link().traits();
  const uint32_t eager = std::min(eagerBytes_, pair.env.peerEagerBytes);
  const auto line = [](const char* what, const std::string& how) {
    return "  " + std::string(what) + how + "\n";
  };
  std::string text = "rank " + std::to_string(rank) + " over " + traits.transport + "\n";
  text += line("up to ", std::to_string(eager) + " bytes: eager, through the inbox");
  const char* const engine = traits.agentEngine.empty() ? "mapped" : traits.agentEngine.c_str();
  const char* const shared =
      traits.abilities.can(MemoryKind::kShared, Ability::kMaps) ? "mapped" : engine;
  text += line("longer: ", std::string("get, the receiver copies (memory that peers can map: ") +
                               shared + "; other: " + engine + ")");
  text += line("memory that cannot be reached: ",
               pair.env.strict ? "refused (PEERLANE_STRICT)"
                               : "through a staging ring of at most " +
                                     std::to_string(pair.env.ringBytes) + " bytes");
  if (pair.device)
    text += line(
        "on streams of ",
        pair.device->executor().device().toString() + ": up to " +
            std::to_string(DeviceArea::kEagerBytes) + " bytes through the inbox; longer: " +
            (options_.protocol == Protocol::kGet ? "get, the receiver's stream copies; lists: put"
                                                 : "put, the sender's stream copies, also lists"));
  else if (!first_->devices().empty())
    text += line("on streams of GPUs: ", explainStaged(pair));
  text += line("words and envelopes: ",
               pair.env.peerAreaMapped() || traits.mapsWords() ? "mapped" : "agent");
  const auto counts = [](const auto& of) {
    return "eager " + std::to_string(of(MessageKind::kEager)) + ", get " +
           std::to_string(of(MessageKind::kGet)) + ", put " +
           std::to_string(of(MessageKind::kPut)) + ", ring " +
           std::to_string(of(MessageKind::kRing));
  };
  text += line("begun: ", counts([&](MessageKind kind) { return pair.sender->sent(kind); }));
  text +=
      line("received: ", counts([&](MessageKind kind) { return pair.receiver->received(kind); }));
  return text;
}

}  // namespace peerlane
