// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/pair_rounds.h"

#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/core/text.h"

namespace peerlane {

PairRounds::PairRounds(std::string name, std::shared_ptr<VerbsNic> nic,
                       std::shared_ptr<LinkLine> line, const Config& config, EventLoop& loop,
                       PairWay way, uint32_t mostPairs)
    : name_(std::move(name)),
      nic_(std::move(nic)),
      line_(std::move(line)),
      config_(config),
      loop_(loop),
      way_(std::move(way)),
      mostPairs_(mostPairs),
      self_(std::make_shared<Self>(Self{this})) {}

void PairRounds::begin(VerbsAgent& agent) {
  agent_ = &agent;
  line_->listen([this](std::span<const std::byte> bytes) { hear(bytes); });
}

void PairRounds::stop() {
  if (agent_ == nullptr) return;
  line_->stopListening();
  patience_.cancel();
  self_->rounds = nullptr;
  agent_ = nullptr;
  dropMore();
  own_.reset();
}

void PairRounds::wantMore() {
  post(&PairRounds::makeMore);
}

void PairRounds::failed() {
  post(&PairRounds::mend);
}

// It may have been mended since, by a round of the peer's.
void PairRounds::mend() {
  if (agent_->isBroken()) (void)beginRound();
}

void PairRounds::post(void (PairRounds::*act)()) {
  loop_.post([self = self_, act] {
    if (self->rounds != nullptr && self->rounds->agent_ != nullptr) (self->rounds->*act)();
  });
}

void PairRounds::hear(std::span<const std::byte> bytes) {
  const Result<PairWords> words = parsePairWords(bytes);
  const Status status = words ? heed(*words) : words.status();
  if (!status.isOk()) giveUp(status);
}

Status PairRounds::heed(const PairWords& words) {
  // Of pairs that are gone.
  if (words.round < round_) return Status::ok();
  if (words.round > round_ + 1 || (words.round > round_ && words.kind != PairWords::Kind::kAnew))
    return Status(Code::kCorrupt, "the peer speaks of round " + std::to_string(words.round) +
                                      " of queue pairs in round " + std::to_string(round_));
  switch (words.kind) {
    case PairWords::Kind::kAnew: return heedAnew(words);
    case PairWords::Kind::kMore: return heedMore(words);
    case PairWords::Kind::kAnewReady:
      if (!isMaking_ || own_) return Status(Code::kCorrupt, "the peer is ready too early");
      isMaking_ = false;
      patience_.cancel();
      agent_->goOn();
      return Status::ok();
    case PairWords::Kind::kMoreReady:
      if (!more_ || !more_->isJoined) return Status(Code::kCorrupt, "the peer is ready too early");
      useMore();
      return Status::ok();
  }
  return Status::ok();
}

// The peer's word of its new pair may come before or after.
bool PairRounds::beginRound() {
  if (own_) return true;  // it was begun, by the peer or for another pair
  dropMore();
  hasMore_ = false;
  taken_ = agent_->stopPairs();
  if (!agent_->isBroken()) return false;
  ++round_;
  isMaking_ = true;
  patience_ = loop_.after(config_.peerTimeout, [this] {
    giveUp(Status(Code::kPeerLost, "the peer did not do its part within " +
                                       formatDuration(config_.peerTimeout) +
                                       " (PEERLANE_PEER_TIMEOUT)"));
  });
  if (const Status status = create(); !status.isOk()) giveUp(status);
  return true;
}

Status PairRounds::create() {
  SharedQueues& queues = nic_->queues();
  PEERLANE_ASSIGN(own_, QueuePair::create(nic_->domain(), queues.completions(), queues.receives()));
  PairWords words{.kind = PairWords::Kind::kAnew, .round = round_, .pairs = {}, .taken = taken_};
  words.pairs.push_back({own_->number(), own_->firstPacket()});
  line_->say(encodePairWords(words));
  return Status::ok();
}

Status PairRounds::heedAnew(const PairWords& words) {
  if (words.round > round_ && !beginRound()) return Status::ok();
  if (!own_) return Status(Code::kCorrupt, "the peer speaks twice of its new queue pair");
  PEERLANE_RETURN_IF_ERROR(connect(*own_, words.pairs.front()));
  agent_->join(std::move(own_), words.taken);
  say(PairWords::Kind::kAnewReady, {});
  return Status::ok();
}

// Both sides may begin at once: what each says is the answer to the other, too.
void PairRounds::makeMore() {
  if (isMaking_ || hasMore_) return;
  hasMore_ = true;
  more_ = std::make_unique<Making>();
  SharedQueues& queues = nic_->queues();
  for (uint32_t i = 1; i < mostPairs_; ++i) {
    auto pair = QueuePair::create(nic_->domain(), queues.completions(), queues.receives());
    Status status = pair.status();
    if (pair) status = queues.reserveMore((*pair)->limits().requests);
    if (!status.isOk()) {
      PEERLANE_LOG_INFO("{}: no more than {} queue pairs: {}", name_, more_->own.size() + 1,
                        status.message());
      break;
    }
    more_->own.push_back(std::move(*pair));
  }
  say(PairWords::Kind::kMore, more_->own);
}

Status PairRounds::heedMore(const PairWords& words) {
  makeMore();
  if (!more_ || more_->isJoined)
    return Status(Code::kCorrupt, "the peer speaks twice of more queue pairs");
  auto& own = more_->own;
  while (own.size() > words.pairs.size()) {
    nic_->queues().giveBack(own.back()->limits().requests, 0);
    own.pop_back();
  }
  for (size_t i = 0; i < own.size(); ++i)
    PEERLANE_RETURN_IF_ERROR(connect(*own[i], words.pairs[i]));
  more_->isJoined = true;
  say(PairWords::Kind::kMoreReady, {});
  return Status::ok();
}

void PairRounds::useMore() {
  Making more = std::move(*more_);
  more_.reset();
  PEERLANE_LOG_INFO("{}: large transfers go over {} queue pairs", name_, more.own.size() + 1);
  agent_->addPairs(std::move(more.own));
}

void PairRounds::dropMore() {
  if (!more_) return;
  for (const auto& pair : more_->own) nic_->queues().giveBack(pair->limits().requests, 0);
  more_.reset();
}

Status PairRounds::connect(QueuePair& own, const PairWords::Pair& theirs) {
  VerbsOffer peer = way_.peer;
  peer.pair = theirs.number;
  peer.firstPacket = theirs.firstPacket;
  return own.connect(peer, way_.from, way_.to, config_);
}

void PairRounds::say(PairWords::Kind kind, const std::vector<std::unique_ptr<QueuePair>>& pairs) {
  PairWords words{.kind = kind, .round = round_, .pairs = {}, .taken = {}};
  for (const auto& pair : pairs) words.pairs.push_back({pair->number(), pair->firstPacket()});
  line_->say(encodePairWords(words));
}

// The link ends, and others take over.
void PairRounds::giveUp(const Status& why) {
  // The old pair's failure lost the works, whatever kept the sides from a new one.
  agent_->fail(why.code() == Code::kCorrupt
                   ? why.withContext(name_)
                   : Status(Code::kPeerLost, name_ + ": its pairs are not made anew: " +
                                                 std::string(why.message())));
  (void)agent_->settle(/*isPolled=*/false);
}

}  // namespace peerlane
