// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/peer_core.h"

#include <chrono>
#include <utility>
#include <variant>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;  // clang needs it said

constexpr std::chrono::milliseconds kGoodbyeAfterLinks{100};

}  // namespace

PeerCore::PeerCore(uint64_t number, PeerSurroundings surroundings, bool initiator, Events events)
    : env_(number, std::move(surroundings), initiator),
      events_(std::move(events)),
      goodbye_(env_, {process_, links_, slabs_, imports_, revoked_, grants_, messages_},
               [this] {
                 if (auto gone = std::move(events_.gone)) gone(shared_from_this());
               }),
      connection_(env_, {process_, links_, negotiation_, messages_, goodbye_},
                  {.message = [this](ControlMessage& message) { return handle(message); },
                   .ended = [this](const Status& why) { endPending(why); }}) {}

PeerCore::~PeerCore() {
  // The locks below may be held for ever by threads that are not here.
  if (forked()) {
    links_.abandon();
    return;
  }
  lines_.end();  // links may keep theirs for longer
  windows_.close();
  slabs_.end();  // the mapping of the peer's goes before the link that made it
}

Result<DeviceExecutor*> PeerCore::executor(Device device) const {
  PEERLANE_ASSIGN(const auto executor, executorIn(env_.around.devices, device));
  return executor.get();
}

Result<DeviceExecutor*> PeerCore::executorOf(DeviceStream stream) const {
  for (const auto& executor : env_.around.devices)
    if (executor->owns(stream)) return executor.get();
  return Status(Code::kInvalidArgument,
                "the stream belongs to no device of this context (ContextOptions::devices)");
}

Status PeerCore::start(Fd socket, bool connecting, HandshakeOptions options, DialManner manner) {
  env_.peer = weak_from_this();
  return connection_.start(std::move(socket), connecting, std::move(options), std::move(manner));
}

Status PeerCore::handle(ControlMessage& message) {
  return std::visit(
      Overloaded{[&](control::Offers& body) { return goOnWithLinks(negotiation_.handle(body)); },
                 [&](control::Accepted& body) { return goOnWithLinks(negotiation_.handle(body)); },
                 [&](control::Bye& body) { return connection_.handle(body); },
                 [&](control::Heartbeat& body) { return connection_.handle(body); },
                 [&](control::ImportRequest& body) { return grants_.handle(body); },
                 [&](control::ImportReply& body) {
                   return body.request == 0 ? goOnWithSlab(body) : imports_.handle(body);
                 },
                 [&](control::Release& body) { return grants_.handle(body); },
                 [&](control::ChunkRequest& body) { return grants_.handle(body); },
                 [&](control::ChunkReply& body) { return imports_.handle(body); },
                 [&](control::Revoke& body) { return revoked_.handle(body); },
                 [&](control::RevokeDone& body) { return grants_.handle(body); },
                 [&](control::StagingRequest& body) { return staging_.handle(body); },
                 [&](control::StagingReply& body) { return staging_.handle(body); },
                 [&](control::StagedMove& body) { return staging_.handle(body); },
                 [&](control::StagedMoveDone& body) { return staging_.handle(body); },
                 [&](control::UserMessage& body) { return messages_.handle(body); },
                 [&](control::MessagesTaken& body) { return messages_.handle(body); },
                 [&](control::LinkEnded& body) { return endLink(body); },
                 [&](control::LinkMessage& body) { return lines_.handle(body); },
                 [&](control::Ready&) { return Status::ok(); },
                 [&](control::TransferFault&) { return Status::ok(); },
                 [&](control::UnknownMessage& body) {
                   PEERLANE_LOG_DEBUG("peer {}: message type {} is of a newer version, skipped",
                                      env_.number, body.type);
                   return Status::ok();
                 }},
      message);
}

// Once the links are made each side sends the grants of its slab to the other. The initiator does
// not wait for the acceptor's answer before it does.
Status PeerCore::goOnWithLinks(const Status& negotiated) {
  if (!negotiated.isOk() || !links_.isMade()) return negotiated;
  if (negotiation_.isAgreed()) {
    negotiation_.end();
    process_.forgetLinkKey();
    // From now on turns bring the links on, and say when the last of them is made.
    progress().add(shared_from_this());
  }
  if (!imports_.isOpen()) {
    imports_.open();
    for (auto& [link, part] : slabs_.takeGranted())
      PEERLANE_RETURN_IF_ERROR(grants_.sendSlab(slabs_.ownRecord(), *link, std::move(part)));
  }
  maybeReady();
  return Status::ok();
}

Status PeerCore::goOnWithSlab(const control::ImportReply& message) {
  if (!negotiation_.isAgreed()) return Status(Code::kCorrupt, "the peer's slab came out of turn");
  PEERLANE_RETURN_IF_ERROR(slabs_.adopt(message));
  maybeReady();
  return Status::ok();
}

// Not before the data paths are proven: a program that connected may rely on them.
void PeerCore::maybeReady() {
  if (!negotiation_.isAgreed() || !slabs_.areThere() || state() != PeerState::kConnecting) return;
  if (isLosing_) return;
  // Of a link that has failed onLinkFailed() follows, and comes back here.
  if (!links_.pending().isOk() || !links_.failed().empty()) return;
  connection_.endSetup();
  mailboxes_.setWords(links_.words());
  env_.status.setReady();
  PEERLANE_LOG_INFO("peer {} connected over {}", env_.number, linkNames());
  if (auto connected = std::move(events_.connected)) connected(Status::ok());
}

void PeerCore::endPending(const Status& why) {
  linkLine_.cancel();
  links_.close(failureCode());
  lines_.end();
  slabs_.closeGate();
  imports_.fail();
  staging_.fail();
  if (auto connected = std::move(events_.connected)) connected(why);
}

// The goodbye of the peer may lie here already, and is the better reason.
void PeerCore::onLinkFailed() {
  env_.connection->readRest();
  for (Link* link : links_.failed()) {
    if (over()) return;
    const Status why = link->health();
    if (Status left = giveUp(*link, why); !left.isOk()) return loseAfterGoodbye(left);
    (void)env_.connection->sendIfOpen(control::LinkEnded{
        link->traits().transport, std::string(why.message()).substr(0, control::kMaxTextBytes)});
  }
}

// A peer that refuses this one ends its links before it says why.
void PeerCore::loseAfterGoodbye(const Status& why) {
  if (state() != PeerState::kConnecting || why.code() != Code::kPeerLost)
    return connection_.lose(why);
  isLosing_ = true;
  linkLine_ = progress().loop().after(kGoodbyeAfterLinks, [this, why] {
    if (!over()) connection_.lose(why);
  });
}

Status PeerCore::endLink(const control::LinkEnded& message) {
  Link* const link = links_.named(message.transport);
  // This side could not make it, and has said so.
  if (link == nullptr && links_.isRefused(message.transport)) return Status::ok();
  if (link == nullptr)
    return Status(Code::kCorrupt,
                  "the peer gave up link '" + message.transport + "', which was not made");
  return giveUp(*link, Status(Code::kPeerLost, "the peer gave it up: " + message.reason));
}

// What the link had not confirmed ends with its failure; what is posted from now on takes the next
// link that reaches the memory.
Status PeerCore::giveUp(Link& link, const Status& why) {
  const std::string name = link.traits().transport;
  if (!links_.isLive(link)) return Status::ok();
  if (config().strict) return why.withContext("PEERLANE_STRICT: link " + name);
  PEERLANE_RETURN_IF_ERROR(links_.fail(link, why));
  mailboxes_.setWords(links_.words());
  // A peer that leaves ends its links before it says goodbye.
  linkLine_ = progress().loop().after(kGoodbyeAfterLinks, [this, name, text = why.toString()] {
    if (over()) return;
    metrics().fallbacks().add();
    PEERLANE_LOG_WARN("peer {}: link {} failed, and others go on: {}", env_.number, name, text);
  });
  slabs_.changeLink();
  imports_.leave(link);
  // Not before: what ends now may be posted again at once.
  link.close(Code::kPeerLost);
  lines_.end(name);
  progress().nudge();
  if (state() == PeerState::kConnecting) env_.post([this] { maybeReady(); });
  return Status::ok();
}

void PeerCore::closeSoon() {
  env_.post([this] { close(); });
}

Task::Turn PeerCore::turn() {
  bool moved = false;
  const bool over = this->over();
  if (!over) {
    moved = links_.poll();
    if (links_.hasNewFailure()) env_.post([this] { onLinkFailed(); });
    // A pair that is made anew makes a link pending again.
    const bool isPending = !links_.pending().isOk();
    if (wasPending_ && !isPending) env_.post([this] { maybeReady(); });
    wasPending_ = isPending;
  }
  moved |= attachments_.turn();
  moved |= mailboxes_.turn();
  moved |= revoked_.turn();
  if (over) return Turn::kFinished;
  return moved ? Turn::kMoved : Turn::kIdle;
}

std::string PeerCore::name() const {
  return env_.name() + process_.place() +
         env_.status.silence(env_.around.config.heartbeatInterval());
}

std::vector<std::string> PeerCore::untaken() const {
  std::vector<std::string> lines;
  if (!met()) return lines;
  if (std::string line = slabs_.untaken(); !line.empty()) lines.push_back(std::move(line));
  for (const auto& [channel, count] : messages_.channels().waiting())
    if (MessageChannels::isProgram(channel))
      lines.push_back(std::to_string(count) + " messages not received on channel " +
                      std::to_string(channel));
  return lines;
}

std::string PeerCore::summary() const {
  if (!met()) return env_.name() + " " + peerStateName(state());
  std::string line = env_.name() + " context " + context().toText() + " " + peerStateName(state());
  if (processId() != 0) line += " pid " + std::to_string(processId());
  return line + " link " + linkNames();
}

std::string PeerCore::linkNames() const {
  std::string names;
  for (const Link* link : links_.live())
    names += (names.empty() ? "" : " and ") + link->traits().transport;
  return names;
}

}  // namespace peerlane
