// SPDX-License-Identifier: Apache-2.0
//
// PeerCore's life: handshake, offers, link, slabs, heartbeat, end. Imports and revocations are in
// peer_imports.cc.
#include "peerlane/session/peer/peer_core.h"

#include <algorithm>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

// Between looks whether the last copy of a closing connection has ended.
constexpr std::chrono::milliseconds kLeavePoll{1};
// What is held for longer is no copy of another thread: it was lent, to a port.
constexpr std::chrono::milliseconds kLent{100};
// How long messages may still come over the control connection of a peer whose link has ended.
constexpr std::chrono::seconds kLastWords{1};

// What its sender cannot have meant, or may not.
bool breaksRules(const Status& status) {
  return status.code() == Code::kCorrupt || status.code() == Code::kPermissionDenied;
}

}  // namespace

PeerCore::PeerCore(uint64_t number, PeerSurroundings surroundings, bool initiator, Events events)
    : env_(number, std::move(surroundings), initiator), events_(std::move(events)) {}

PeerCore::~PeerCore() {
  // The locks below may be held for ever by threads that are not here.
  if (forked()) {
    links_.abandon();
    return;
  }
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
  manner_ = std::move(manner);
  // The handshake may run to its end inside create() only for events of the loop, so `this` is
  // complete by then.
  PEERLANE_ASSIGN(
      env_.connection,
      ControlConnection::create(
          env_.around.progress.loop(), std::move(socket), connecting,
          env_.initiator ? Handshake::Role::kInitiator : Handshake::Role::kAcceptor,
          std::move(options),
          {.authenticated = [this](const PeerIdentity& identity) { onAuthenticated(identity); },
           .message = [this](ControlMessage message) { onMessage(std::move(message)); },
           .ended = [this](Status status) { onEnded(std::move(status)); }}));
  setupTimer_ = env_.around.progress.loop().after(env_.around.config.connectTimeout, [this] {
    fail(PeerState::kLost,
         Status(Code::kTimeout, "the peer did not finish connecting in time: waited " +
                                    durationInWords(env_.around.config.connectTimeout) +
                                    " for it " + nextOfSetup()));
  });
  return Status::ok();
}

const char* PeerCore::nextOfSetup() const {
  if (process_.identity().context.isNull()) return "to say who it is";
  if (!links_.isMade()) return "to say which links it has";
  return "to name the memory that it keeps for this side";
}

void PeerCore::onAuthenticated(const PeerIdentity& identity) {
  process_.meet(identity, *env_.connection, env_.initiator);
  if (manner_.turnBackIfNear && !process_.facts().unixSocket && process_.sameHostByClaim()) {
    turnedBack_ = true;
    return fail(PeerState::kLost, Status(Code::kUnavailable, "the peer is on this host"));
  }
  // Before anything is offered: the other side does not see a peer that leaves at once.
  if (manner_.mayGoOn && !manner_.mayGoOn())
    return fail(PeerState::kLost,
                Status(Code::kClosed, "the peer was reached at another address before"));
  Status status;
  if (process_.facts().unixSocket)
    status =
        process_.watch(env_.around.progress.loop(), *env_.connection, [this] { onProcessEnded(); });
  if (status.isOk()) status = negotiation_.begin();
  if (!status.isOk()) fail(PeerState::kLost, status);
}

void PeerCore::onProcessEnded() {
  const auto self = shared_from_this();
  // What it said last lies in this side's socket: all of that comes before its end.
  env_.connection->readRest();
  peerLeft_ = true;
  if (over()) {
    if (!leaveTimer_.pending()) forget();
    return;
  }
  fail(PeerState::kLost,
       Status(Code::kPeerLost, "process " + std::to_string(process_.id()) + " ended"));
}

Status PeerCore::handle(control::Offers& message) {
  PEERLANE_RETURN_IF_ERROR(negotiation_.handle(message));
  return links_.isMade() ? sendSlab() : Status::ok();
}

Status PeerCore::handle(control::Accepted& message) {
  PEERLANE_RETURN_IF_ERROR(negotiation_.handle(message));
  if (!links_.isMade()) return Status::ok();
  PEERLANE_RETURN_IF_ERROR(sendSlab());
  maybeReady();
  return Status::ok();
}

Status PeerCore::sendSlab() {
  negotiation_.end();
  imports_.open();
  PEERLANE_ASSIGN(const RegionRecord* const slab, slabs_.make());
  return grants_.send(0, *slab, 0);
}

Status PeerCore::handle(control::ImportReply& message) {
  if (message.request != 0) return imports_.handle(message);
  PEERLANE_RETURN_IF_ERROR(slabs_.adopt(message));
  maybeReady();
  return Status::ok();
}

void PeerCore::maybeReady() {
  if (!links_.isMade() || !slabs_.areThere() || state() != PeerState::kConnecting) return;
  setupTimer_.cancel();
  process_.watchMemory();
  startHeartbeat();
  env_.around.progress.add(shared_from_this());
  env_.status.setReady();
  PEERLANE_LOG_INFO("peer {} connected over {}", env_.number, link().traits().transport);
  if (auto connected = std::move(events_.connected)) connected(Status::ok());
}

void PeerCore::onMessage(ControlMessage message) {
  if (over()) {
    // Only the other side's goodbye matters now, and what it said before it.
    if (auto* last = std::get_if<control::UserMessage>(&message); last && !messages_.ended())
      (void)messages_.handle(*last);
    if (!std::holds_alternative<control::Bye>(message)) return;
    peerLeft_ = true;
    endMessages();
    if (!leaveTimer_.pending()) forget();
    return;
  }
  setHeard();
  Status status = std::visit(
      [this](auto& body) -> Status {
        using Body = std::decay_t<decltype(body)>;
        if constexpr (std::is_same_v<Body, control::UnknownMessage>) {
          PEERLANE_LOG_DEBUG("peer {}: message type {} is of a newer version, skipped", env_.number,
                             body.type);
          return Status::ok();
        } else if constexpr (std::is_same_v<Body, control::Ready> ||
                             std::is_same_v<Body, control::TransferFault>) {
          return Status::ok();
        } else {
          return handle(body);
        }
      },
      message);
  if (!status.isOk()) fail(PeerState::kLost, status);
}

void PeerCore::onEnded(Status status) {
  peerLeft_ = peerLeft_ || endedForGood();
  if (over()) {
    endMessages();
    if (!leaveTimer_.pending()) forget();
    return;
  }
  if (state() == PeerState::kReady || state() == PeerState::kSilent) {
    status = status.withContext("the control connection ended");
  }
  fail(PeerState::kLost, status);
}

Status PeerCore::handle(control::Bye& message) {
  peerLeft_ = true;
  if (state() == PeerState::kConnecting && message.code != Code::kOk) {
    const std::string why = "the peer refused: " + message.reason;
    // The peer was the first to find out; here it would have been the same.
    if (message.code == Code::kUnavailable && env_.initiator && !links_.isMade() &&
        !negotiation_.offersLink())
      return Status(Code::kUnavailable, std::string(negotiation_.noLink().message()) + "; " + why);
    return Status(message.code, why);
  }
  std::string text = "the peer closed the connection";
  if (!message.reason.empty()) text += ": " + message.reason;
  return Status(Code::kPeerLost, text);
}

// Somebody connected here who may not, or does not speak as he should. Nobody calls for him, so the
// log says it; that he merely left again, or found a better way here, is not worth a warning.
bool PeerCore::turnsAway(const Status& status, PeerState before) const {
  return before == PeerState::kConnecting && !env_.initiator && status.code() != Code::kPeerLost &&
         status.code() != Code::kUnavailable && status.code() != Code::kClosed;
}

void PeerCore::fail(PeerState state, const Status& status) {
  const PeerState before = this->state();
  if (before == PeerState::kLost || before == PeerState::kClosed) return;
  if (state == PeerState::kLost && before != PeerState::kConnecting &&
      status.code() != Code::kPeerLost)
    PEERLANE_LOG_ERROR("peer {}: {}", env_.number, status.toString());
  else if (turnsAway(status, before)) {
    if (env_.around.strangers.allows())
      PEERLANE_LOG_WARN("peer {} was turned away: {}{}", env_.number, status.toString(),
                        env_.around.strangers.leftOut());
  } else
    PEERLANE_LOG_INFO("peer {}: {}", env_.number, status.toString());
  const bool isTold = before == PeerState::kConnecting || state == PeerState::kClosed ||
                      status.code() == Code::kPeerLost;
  env_.status.setFailure(isTold ? status : Status(Code::kPeerLost, std::string(status.message())));
  // Where only the link is known to have ended, the control connection may still bring messages,
  // and the peer's goodbye behind them. Who answers before he has read them may cost some.
  const bool mayStillSay = state == PeerState::kLost && met() && env_.connection->open() &&
                           !peerLeft_ && !breaksRules(status);
  if (mayStillSay)
    lastWordsTimer_ = env_.around.progress.loop().after(kLastWords, [this, status] {
      endMessages();
      leave(status);
    });
  else
    endMessages();
  env_.status.setOver(state);
  heartbeatTimer_.cancel();
  setupTimer_.cancel();
  links_.close(failureCode());
  slabs_.closeGate();
  imports_.fail();
  staging_.fail();
  if (auto connected = std::move(events_.connected)) connected(status);
  // Waiters look at the state; runs of this peer are cancelled by their next turn.
  env_.around.progress.notifyWaiters();
  if (!lastWordsTimer_.pending()) leave(status);
}

// A goodbye says: nothing of this side touches your memory any more. So a copy that another thread
// is in the middle of delays it, and so does memory that has to be freed here before its owner
// frees it, though he may have said goodbye himself. And the regions that the peer imported are
// free only when its own goodbye, or its end, has come.
void PeerCore::leave(const Status& reason) {
  if (imports_.isOpen()) {
    auto regions = imports_.all();
    if (slabs_.peers()) regions.push_back(slabs_.peers());
    const auto busy = [](const std::shared_ptr<ImportedRegion>& region) {
      return region->isHeld() ? !ImportedRegion::letGo(region) : !region->gate.drained();
    };
    if (std::any_of(regions.begin(), regions.end(), busy) || imports_.isAnyHeldLeaving()) {
      if (busySince_ == Clock::time_point{}) busySince_ = Clock::now();
      const bool isLong = Clock::now() - busySince_ >= kLent;
      const bool isQuiet = isLong && messages_.allSent() && env_.connection->isTaken() &&
                           pendingOperations_.load(std::memory_order_acquire) == 0;
      if (isQuiet && !hasSaidAll_.exchange(true)) env_.around.progress.notifyWaiters();
      leaveTimer_ =
          env_.around.progress.loop().after(kLeavePoll, [this, reason] { leave(reason); });
      return;
    }
  }
  const Code code = reason.code() == Code::kPeerLost ? Code::kOk : reason.code();
  // That it was closed is the peer's sentence; here another reason may stand.
  const std::string why = state() == PeerState::kClosed ? "" : std::string(reason.message());
  (void)env_.connection->sendLast(control::Bye{code, why.substr(0, control::kMaxTextBytes)});
  // Who broke the rules is not listened to any more; only the end of a process that writes by
  // itself is still waited for.
  if (state() == PeerState::kLost && breaksRules(reason)) {
    env_.connection->close();
    peerLeft_ = peerLeft_ || endedForGood();
  }
  // Before the link was made there is nothing to wait for; on a connection that has ended nothing
  // more will be heard.
  if (!links_.isMade() || peerLeft_ || !env_.connection->open()) forget();
}

// A connection that ended without a goodbye says nothing about a process that lives and writes by
// itself.
bool PeerCore::endedForGood() const {
  if (!links_.isMade() || process_.facts().sameProcess) return true;
  return !links_.peerWritesAlone() || process_.hasEnded();
}

// Who is not proven to have ended leaves his imports behind, and nothing else: descriptors and
// memory of this peer go with the last handle.
void PeerCore::forget() {
  if (std::exchange(forgotten_, true)) return;
  env_.connection->close();
  lastWordsTimer_.cancel();
  endMessages();
  process_.stopWatching();
  leaveTimer_.cancel();
  revoked_.stop();
  const Grants::Revocations revocations = grants_.takeRevocations();
  Absentees::Number absentee = 0;
  if (peerLeft_ || endedForGood())
    env_.around.regions.forgetPeer(env_.number);
  else
    absentee =
        env_.around.absentees.add(env_.around.progress.loop(), env_.number, process_.takeProof());
  for (const auto& done : revocations) {
    if (absentee != 0)
      env_.around.absentees.await(absentee, done);
    else
      done();
  }
  grants_.close();
  if (auto gone = std::move(events_.gone)) gone(shared_from_this());
}

void PeerCore::endMessages() {
  const bool hasToLeave = lastWordsTimer_.pending();
  lastWordsTimer_.cancel();
  messages_.end();
  if (hasToLeave) leave(failure());
}

std::optional<PeerCore::Clock::duration> PeerCore::silentFor() const {
  std::optional<Clock::duration> silence;
  const auto look = [&] {
    if (!over() && env_.connection) silence = Clock::now() - env_.connection->lastHeard();
  };
  if (env_.around.progress.onLoopThread())
    look();
  else
    (void)env_.around.progress.call(look);
  return silence;
}

void PeerCore::close() {
  const auto self = shared_from_this();
  const auto act = [self] {
    self->fail(PeerState::kClosed, Status(Code::kClosed, "closed by this side"));
    self->endMessages();
  };
  if (env_.around.progress.onLoopThread())
    act();
  else
    (void)env_.around.progress.call(act);
}

void PeerCore::closeSoon() {
  env_.around.progress.post([self = shared_from_this()] { self->close(); });
}

void PeerCore::startHeartbeat() {
  lastBeat_ = Clock::now();
  heartbeatTimer_ =
      env_.around.progress.loop().after(env_.around.config.heartbeatInterval(), [this] {
        heartbeat();
        if (state() == PeerState::kReady || state() == PeerState::kSilent) startHeartbeat();
      });
}

void PeerCore::heartbeat() {
  const auto now = Clock::now();
  const auto interval = env_.around.config.heartbeatInterval();
  const auto patience = env_.around.config.peerTimeout;
  // This side stood still (stopped, or in a long callback), and has not read what came meanwhile.
  if (now - lastBeat_ >= interval + patience / 2) attentiveSince_ = now;
  if (now - env_.connection->lastHeard() < interval / 2) return;
  if (now - std::max(env_.connection->lastHeard(), attentiveSince_) >= patience) setSilent();
  (void)env_.connection->send(control::Heartbeat{++heartbeatSequence_, false});
}

Status PeerCore::handle(control::Heartbeat& message) {
  if (message.reply) return Status::ok();
  return env_.connection->send(control::Heartbeat{message.sequence, true});
}

void PeerCore::setSilent() {
  if (state() != PeerState::kReady) return;
  const auto seconds = std::chrono::duration<double>(env_.around.config.peerTimeout).count();
  env_.status.setSilent(
      Status(Code::kPeerSilent, "nothing heard from peer " + std::to_string(env_.number) + " for " +
                                    std::to_string(seconds) + " s; it may still be alive"));
  PEERLANE_LOG_WARN("{}", failure().toString());
  messages_.channels().setEnded(true);
  env_.around.progress.notifyWaiters();
}

void PeerCore::setHeard() {
  if (state() != PeerState::kSilent) return;
  PEERLANE_LOG_WARN("peer {} is heard again", env_.number);
  env_.status.setHeard();
  messages_.channels().setEnded(false);
}

Task::Turn PeerCore::turn() {
  bool moved = false;
  const bool over = this->over();
  if (!over) {
    moved = link().poll();
    if (!link().health().isOk() && !linkFailed_.exchange(true))
      progress().post([self = shared_from_this()] {
        // Its goodbye may lie here already, and is the better reason.
        self->env_.connection->readRest();
        self->fail(PeerState::kLost, self->link().health());
      });
  }
  moved |= attachments_.turn();
  moved |= mailboxes_.turn();
  moved |= revoked_.turn();
  if (over) return Turn::kFinished;
  return moved ? Turn::kMoved : Turn::kIdle;
}

std::string PeerCore::name() const {
  return "peer " + std::to_string(env_.number) + process_.place();
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
  if (!met()) return "peer " + std::to_string(env_.number) + " " + peerStateName(state());
  std::string line = "peer " + std::to_string(env_.number) + " context " + context().toText() +
                     " " + peerStateName(state());
  if (processId() != 0) line += " pid " + std::to_string(processId());
  if (links_.isMade()) line += " link " + link().traits().transport;
  if (deviceLink() != nullptr) line += " and " + deviceLink()->traits().transport;
  return line;
}

}  // namespace peerlane
