// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/pair/pair_communicator.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "peerlane/session/peer/peer_core.h"

namespace peerlane::p2p {

PairCommunicator::PairCommunicator(PairEnd end, const PairOptions& options,
                                   SegmentRegistry& segments, ImportedSegments& imports)
    : end_(std::move(end)),
      self_(*ContextId::fromText(end_.context->id())),
      options_(options),
      segments_(segments),
      imports_(imports),
      notes_(end_.peer),
      bootstrap_(end_.peer, options, notes_),
      remoteSegments_(end_.peer, self_, options.timeout, notes_),
      memory_(end_.context, segments) {}

Result<std::shared_ptr<PairCommunicator>> PairCommunicator::create(PairEnd end,
                                                                   const PairOptions& options,
                                                                   SegmentRegistry& segments,
                                                                   ImportedSegments& imports) {
  std::shared_ptr<PairCommunicator> made(
      new PairCommunicator(std::move(end), options, segments, imports));
  if (Status met = made->meet(); !met.isOk()) return made->bootstrap_.conclude(met);
  return made;
}

PairCommunicator::~PairCommunicator() {
  if (end_.peer.core()->forked()) return;
  messages_.reset();
  pending_.cancel();
  end_.peer.close();
}

Status PairCommunicator::meet() {
  const auto deadline = Progress::deadlineIn(options_.timeout);
  notes_.listen([weak = weak_from_this()](Result<PairNote> note) {
    if (const auto alive = weak.lock()) alive->onNote(std::move(note));
  });
  PEERLANE_ASSIGN(const PairNote hello, bootstrap_.handshake(segments_.process(), deadline));
  other_ = hello.process;
  copies_ =
      std::make_unique<PairCopies>(end_.peer, other_, imports_, remoteSegments_, memory_, pending_);
  for (const SegmentName& name : imports_.of(other_)) remoteSegments_.ask(name);
  return options_.wantsMessages && hello.wantsMessages ? makeMessages(deadline) : Status::ok();
}

Status PairCommunicator::makeMessages(Progress::Clock::time_point deadline) {
  const Rank own = end_.isRoot ? 0 : 1;
  const Rank other = 1 - own;
  std::vector<Peer> peers(2);
  peers[other] = end_.peer;
  CommunicatorOptions options;
  options.stagingBytes = options_.stagingBytes;
  options.timeout = std::max<Duration>(deadline - Progress::Clock::now(), Duration(0));
  PEERLANE_ASSIGN(auto communicator, Communicator::create(*end_.context, peers, own, options));
  messages_ =
      std::make_unique<PairMessages>(std::move(communicator), other, hasGpu(), memory_, pending_);
  return Status::ok();
}

// On the progress thread, as the next.
void PairCommunicator::onNote(Result<PairNote> note) {
  if (!note.isOk()) return bootstrap_.onHello(std::move(note));
  switch (note->type) {
    case PairNote::Type::kHello: return bootstrap_.onHello(std::move(note));
    case PairNote::Type::kGaveUp: return bootstrap_.onGaveUp();
    case PairNote::Type::kAsk: return onAsk(*note);
    case PairNote::Type::kAnswer: return remoteSegments_.onAnswer(*note);
  }
}

void PairCommunicator::onAsk(const PairNote& note) {
  PairNote answer;
  answer.type = PairNote::Type::kAnswer;
  answer.segment = note.segment;
  const AskEnds ends{end_.peer.core()->context(), self_};
  const auto region = segments_.regionFor(note.segment, note.proof, ends, end_.context);
  answer.code = end_.peer.core()->toldAs(region.status().code());
  if (region.isOk())
    answer.reference = region->share();
  else
    answer.why = region.status().message();
  (void)notes_.send(answer);  // a peer that cannot be told is lost, or asks again
}

Result<std::shared_ptr<HostQueue>> PairCommunicator::ownQueue() {
  const MutexLock lock(queueMutex_);
  if (queue_) return queue_;
  PEERLANE_ASSIGN(queue_, HostQueue::create());
  return queue_;
}

Status PairCommunicator::post(MessageRole role, std::span<const LocalPiece> pieces,
                              const OperationStream& stream) {
  if (messages_) return messages_->post(role, pieces, stream);
  return Status(Code::kNotSupported,
                "this communicator was made for put and get alone (enableTwoSidedBuffer is false "
                "at one side)");
}

Status PairCommunicator::send(std::span<const LocalPiece> pieces, const OperationStream& stream) {
  if (options_.kind == P2P_RECEIVER)
    return Status(Code::kInvalidArgument,
                  "this side is the P2P_RECEIVER; the P2P_SENDER, or P2P_BIDIRECTIONAL, sends");
  return post(MessageRole::kSender, pieces, stream);
}

Status PairCommunicator::recv(std::span<const LocalPiece> pieces, const OperationStream& stream) {
  if (options_.kind == P2P_SENDER)
    return Status(Code::kInvalidArgument,
                  "this side is the P2P_SENDER; the P2P_RECEIVER, or P2P_BIDIRECTIONAL, receives");
  return post(MessageRole::kReceiver, pieces, stream);
}

void PairCommunicator::leave() {
  if (!end_.peer.core()->forked()) notes_.stop();
}

void PairCommunicator::interrupt() {
  pending_.close();
  end_.peer.close();
}

Status PairCommunicator::asyncError() {
  PEERLANE_RETURN_IF_ERROR(pending_.firstError());
  return end_.peer.status();
}

Status PairCommunicator::synchronize(Duration timeout) {
  PEERLANE_RETURN_IF_ERROR(pending_.wait(timeout));
  return pending_.firstError();
}

int PairCommunicator::silence() const {
  const auto silent = end_.peer.silentFor();
  return silent
             ? static_cast<int>(std::chrono::duration_cast<std::chrono::seconds>(*silent).count())
             : -1;
}

std::string PairCommunicator::route() const {
  std::string text = end_.peer.route().toString();
  if (messages_) text += messages_->explain();
  return text;
}

}  // namespace peerlane::p2p
