// SPDX-License-Identifier: Apache-2.0
//
// PairCommunicator: how the two meet, and how they are. What they send is in pairwise_messages.cc,
// what they copy in pairwise_copies.cc.
#include "peerlane/p2p/pair/pair_communicator.h"

#include <algorithm>
#include <utility>

#include "peerlane/core/log.h"

namespace peerlane::p2p {
namespace {

const char* kindName(uint8_t kind) {
  switch (kind) {
    case P2P_RECEIVER: return "P2P_RECEIVER";
    case P2P_SENDER: return "P2P_SENDER";
    case P2P_BIDIRECTIONAL: return "P2P_BIDIRECTIONAL";
    default: return "a kind of a later version";
  }
}

const char* linkName(uint8_t link) {
  switch (link) {
    case P2P_LINK_HCCS: return "P2P_LINK_HCCS";
    case P2P_LINK_ROCE: return "P2P_LINK_ROCE";
    case P2P_LINK_AUTO: return "P2P_LINK_AUTO";
    default: return "a link of a later version";
  }
}

bool goTogether(uint8_t one, uint8_t other) {
  if (one == P2P_BIDIRECTIONAL) return other == P2P_BIDIRECTIONAL;
  return (one == P2P_SENDER && other == P2P_RECEIVER) ||
         (one == P2P_RECEIVER && other == P2P_SENDER);
}

}  // namespace

PairCommunicator::PairCommunicator(std::shared_ptr<Context> context, Peer peer, bool isRoot,
                                   const PairOptions& options, SegmentBook& book)
    : context_(std::move(context)),
      peer_(std::move(peer)),
      self_(*ContextId::fromText(context_->id())),
      isRoot_(isRoot),
      options_(options),
      book_(book) {}

Result<std::shared_ptr<PairCommunicator>> PairCommunicator::create(std::shared_ptr<Context> context,
                                                                   Peer peer, bool isRoot,
                                                                   const PairOptions& options,
                                                                   const ProcessToken& process,
                                                                   SegmentBook& book) {
  std::shared_ptr<PairCommunicator> made(
      new PairCommunicator(std::move(context), std::move(peer), isRoot, options, book));
  const Status met = made->meet(process);
  if (met.code() == Code::kTimeout) {
    PairNote note;
    note.type = PairNote::Type::kGaveUp;
    (void)made->say(note);
  }
  if (met.code() == Code::kPeerLost && made->otherGaveUp_.load(std::memory_order_acquire))
    return Status(Code::kTryAgain, "the other side has given up waiting");
  PEERLANE_RETURN_IF_ERROR(met);
  return made;
}

PairCommunicator::~PairCommunicator() {
  if (peer_.core()->forked()) return;
  communicator_.reset();
  pending_.cancel();
  peer_.close();
}

Status PairCommunicator::meet(const ProcessToken& process) {
  const auto deadline = Progress::deadlineIn(options_.timeout);
  PeerCore& core = *peer_.core();
  core.onUserMessage(kPairChannel, [weak = weak_from_this()](const std::vector<std::byte>& bytes) {
    if (const auto alive = weak.lock()) alive->onNote(bytes);
  });
  PairNote hello;
  hello.kind = static_cast<uint8_t>(options_.kind);
  hello.link = static_cast<uint8_t>(options_.link);
  hello.sends = options_.sends;
  hello.process = process;
  const Status sent = core.sendUserMessage(kPairChannel, hello.encode());
  const auto come = [&] {
    return hasHello_.load(std::memory_order_acquire) || !core.usable().isOk();
  };
  const auto words = [&] { return core.name() + " to say which kind of communicator it wants"; };
  PEERLANE_RETURN_IF_ERROR(core.progress().waitAsleep(come, deadline, words));
  // The other side may have left already because the two do not go together: what it said before is
  // handed over by the progress thread.
  (void)core.progress().call([] {});
  std::optional<Result<PairNote>> other;
  {
    const std::lock_guard lock(mutex_);
    other = hello_;
  }
  if (!other) return sent.isOk() ? core.usable() : sent;
  PEERLANE_RETURN_IF_ERROR(other->status());
  PEERLANE_RETURN_IF_ERROR(checkOther(**other));
  PEERLANE_RETURN_IF_ERROR(checkLink());
  other_ = (*other)->process;
  for (const SegmentName& name : book_.importsOf(other_)) ask(name);
  if (!options_.sends || !(*other)->sends) return Status::ok();
  const Rank own = isRoot_ ? 0 : 1;
  std::vector<Peer> peers(2);
  peers[1 - own] = peer_;
  CommunicatorOptions options;
  options.stagingBytes = options_.stagingBytes;
  options.timeout = std::max<Duration>(deadline - Progress::Clock::now(), Duration(0));
  PEERLANE_ASSIGN(communicator_, Communicator::create(*context_, peers, own, options));
  return Status::ok();
}

// The other side finds the same, and says it there.
Status PairCommunicator::checkOther(const PairNote& other) const {
  const auto own = static_cast<uint8_t>(options_.kind);
  if (!goTogether(own, other.kind))
    return Status(Code::kInvalidArgument,
                  std::string("this side is ") + kindName(own) + ", the other side " +
                      kindName(other.kind) +
                      "; a P2P_SENDER meets a P2P_RECEIVER, P2P_BIDIRECTIONAL its like");
  const auto link = static_cast<uint8_t>(options_.link);
  if (link != other.link && link != P2P_LINK_AUTO && other.link != P2P_LINK_AUTO)
    return Status(Code::kInvalidArgument, std::string("this side asks for ") + linkName(link) +
                                              ", the other side for " + linkName(other.link));
  return Status::ok();
}

Status PairCommunicator::checkLink() const {
  const PeerCore& core = *peer_.core();
  const LinkTraits& traits = core.link().traits();
  const bool isNetwork = traits.transport == "tcp" && core.deviceLink() == nullptr;
  const bool isMapped = core.deviceLink() != nullptr || (!hasGpu() && traits.mapsRegions);
  std::string lacks;
  if (options_.link == P2P_LINK_HCCS && !isMapped) lacks = "maps no memory of the other side";
  if (options_.link == P2P_LINK_ROCE && !isNetwork)
    lacks = "is not the network; name P2P_LINK_ROCE at both sides";
  if (lacks.empty()) return Status::ok();
  std::string why;
  for (const std::string& refused : peer_.route().refused) why += "; " + refused;
  return Status(Code::kNotSupported, std::string(linkName(static_cast<uint8_t>(options_.link))) +
                                         " was asked for, and the link that works here (" +
                                         traits.transport + ") " + lacks + why);
}

Status PairCommunicator::say(const PairNote& note) {
  Status status = peer_.core()->sendUserMessage(kPairChannel, note.encode());
  if (!status.isOk())
    PEERLANE_LOG_DEBUG("a note to the other side of a communicator: {}", status.toString());
  return status;
}

// Progress thread, as the next two.
void PairCommunicator::onNote(const std::vector<std::byte>& bytes) {
  auto note = PairNote::decode(bytes);
  if (note.isOk() && note->type == PairNote::Type::kAsk) return onAsk(*note);
  if (note.isOk() && note->type == PairNote::Type::kTell) return onTell(*note);
  if (note.isOk() && note->type == PairNote::Type::kGaveUp)
    return otherGaveUp_.store(true, std::memory_order_release);
  {
    const std::lock_guard lock(mutex_);
    if (hello_) return;
    hello_ = std::move(note);
    hasHello_.store(true, std::memory_order_release);
  }
  peer_.core()->progress().notifyWaiters();
}

void PairCommunicator::onAsk(const PairNote& note) {
  PairNote answer;
  answer.type = PairNote::Type::kTell;
  answer.segment = note.segment;
  const AskEnds ends{peer_.core()->context(), self_};
  auto region = book_.regionFor(note.segment, note.proof, ends, context_);
  answer.code = region.status().code();
  if (region.isOk())
    answer.reference = region->share();
  else
    answer.why = region.status().message();
  (void)say(answer);  // a peer that cannot be told is lost, or asks again
}

void PairCommunicator::onTell(const PairNote& note) {
  Result<RemoteRegion> remote = note.code == Code::kOk
                                    ? peer_.importRegion(note.reference)
                                    : Result<RemoteRegion>(Status(note.code, note.why));
  {
    const std::lock_guard lock(mutex_);
    const auto found = attached_.find(note.segment);
    if (found == attached_.end() || found->second.remote) return;  // not wanted any more
    found->second.remote = std::move(remote);
  }
  peer_.core()->progress().notifyWaiters();
}

Result<std::shared_ptr<HostQueue>> PairCommunicator::ownQueue() {
  const std::lock_guard lock(mutex_);
  if (queue_) return queue_;
  auto queue = std::make_shared<HostQueue>();
  PEERLANE_ASSIGN(queue->stream, HostStream::create());
  return queue_ = std::move(queue);
}

void PairCommunicator::posted(const Transfer& transfer, const OperationStream& stream,
                              PostName name) {
  // Of the communicator's own queue nobody asks but for all of the communicator.
  if (stream.host && !stream.isOwn) stream.host->pending.add(transfer, name);
  pending_.add(transfer, name);
}

void PairCommunicator::leave() {
  PeerCore& core = *peer_.core();
  if (core.forked()) return;
  core.onUserMessage(kPairChannel, nullptr);
  (void)core.progress().call([] {});  // a note that is being read now is read to its end
}

void PairCommunicator::interrupt() {
  pending_.close();
  peer_.close();
}

Status PairCommunicator::asyncError() {
  PEERLANE_RETURN_IF_ERROR(pending_.firstError());
  return peer_.status();
}

Status PairCommunicator::synchronize(Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(pending_.wait(timeout));
  return pending_.firstError();
}

int PairCommunicator::silence() const {
  const auto silent = peer_.silentFor();
  return silent
             ? static_cast<int>(std::chrono::duration_cast<std::chrono::seconds>(*silent).count())
             : -1;
}

std::string PairCommunicator::route() const {
  std::string text = peer_.route().toString();
  if (communicator_) text += communicator_->explain(isRoot_ ? 1 : 0);
  return text;
}

}  // namespace peerlane::p2p
