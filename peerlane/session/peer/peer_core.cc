// SPDX-License-Identifier: Apache-2.0
//
// PeerCore's life: handshake, offers, link, slabs, heartbeat, end. Imports and revocations are in
// peer_imports.cc.
#include "peerlane/session/peer/peer_core.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "peerlane/core/log.h"
#include "peerlane/memory/library_memory.h"
#include "peerlane/program/words/word.h"

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

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += between;
    text += word;
  }
  return text;
}

}  // namespace

PeerCore::PeerCore(uint64_t number, PeerSurroundings surroundings, bool initiator, Events events)
    : env_(number, std::move(surroundings), initiator), events_(std::move(events)) {}

PeerCore::~PeerCore() {
  // The locks below may be held for ever by threads that are not here.
  if (forked()) {
    (void)link_.release();
    (void)deviceLink_.release();
    return;
  }
  closeWindow(ownWindow_);
  closeWindow(peerWindow_);
  if (slab_) env_.around.regions.remove(slab_->allocation);
  // The mapping of the peer's slab goes before the link that made it.
  if (peerSlab_ && link_) link_->detach(peerSlab_->memory);
}

Status PeerCore::start(Fd socket, bool connecting, HandshakeOptions options, DialManner manner) {
  env_.peer = weak_from_this();
  facts_.initiator = env_.initiator;
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
  if (identity_.context.isNull()) return "to say who it is";
  if (!link_) return "to say which links it has";
  return "to name the memory that it keeps for this side";
}

void PeerCore::onAuthenticated(const PeerIdentity& identity) {
  identity_ = identity;
  facts_.unixSocket = env_.connection->isUnix();
  std::memcpy(&facts_.life, identity.context.bytes().data(), sizeof facts_.life);
  if (auto address = localAddress(env_.connection->socket()); address.isOk())
    facts_.localAddress = *address;
  if (auto address = peerAddress(env_.connection->socket()); address.isOk())
    facts_.remoteAddress = *address;
  if (manner_.turnBackIfNear && !facts_.unixSocket && sameHostByClaim()) {
    turnedBack_ = true;
    return fail(PeerState::kLost, Status(Code::kUnavailable, "the peer is on this host"));
  }
  // Before anything is offered: the other side does not see a peer that leaves at once.
  if (manner_.mayGoOn && !manner_.mayGoOn())
    return fail(PeerState::kLost,
                Status(Code::kClosed, "the peer was reached at another address before"));
  if (facts_.unixSocket) {
    auto credentials = peerCredentials(env_.connection->socket());
    if (!credentials.isOk()) return fail(PeerState::kLost, credentials.status());
    facts_.credentials = *credentials;
    // An acceptor has looked before.
    if (const Status fits = checkUser(facts_.credentials); !fits.isOk())
      return fail(PeerState::kLost, fits);
    facts_.sameProcess = facts_.credentials.pid == getpid();
    if (Status status = watchProcess(); !status.isOk()) return fail(PeerState::kLost, status);
  }
  // A hello may be a recorded one: descriptors, and what lets the peer read this process, are given
  // to whom has answered, and so shown that he has the secret. The initiator knows by now.
  if (!env_.initiator && facts_.unixSocket) return;
  if (Status status = sendOffers(/*all=*/true); !status.isOk()) fail(PeerState::kLost, status);
}

// What proves the end of the peer's process. Where the system has no such thing, its memory stays
// in quarantine if it leaves without a goodbye; that it could not be had this time is an error.
Status PeerCore::watchProcess() {
  auto process = ProcessHandle::ofPeer(env_.connection->socket());
  const Code code = process.status().code();
  if (code == Code::kNotSupported || code == Code::kUnavailable) return Status::ok();
  if (code == Code::kPeerLost) return process.status();
  if (!process.isOk())
    return Status(
        Code::kUnavailable,
        process.status().toString() + ": this process takes no peer whose end it would not notice");
  proof_.process = std::move(*process);
  facts_.pidFd = proof_.process->fd();
  if (facts_.sameProcess) return Status::ok();
  PEERLANE_ASSIGN(processWatch_,
                  env_.around.progress.loop().watch(facts_.pidFd, true, false, [this] {
                    processWatch_.setInterest(false, false);
                    const auto self = shared_from_this();
                    // What it said last lies in this side's socket: all of that comes before its
                    // end.
                    env_.connection->readRest();
                    peerLeft_ = true;
                    if (over()) {
                      if (!leaveTimer_.pending()) forget();
                      return;
                    }
                    fail(PeerState::kLost,
                         Status(Code::kPeerLost,
                                "process " + std::to_string(facts_.credentials.pid) + " ended"));
                  }));
  return Status::ok();
}

// On one host the best link almost always works, and another one may open a door that nobody needs
// (tcp: a listener that every user of the host can reach). So an acceptor there offers the best one
// first, and the rest, `all`, to who can use none of it.
Status PeerCore::sendOffers(bool all) {
  const LinkSurroundings surroundings{
      env_.around.config,
      env_.around.progress.loop(),
      env_.around.progress.bell(),
      env_.around.regions,
      [this] { env_.around.progress.nudge(); },
      [&progress = env_.around.progress] { progress.countWakeup(); }};
  control::Offers offers;
  std::vector<Fd> fds;
  for (const auto& transport : env_.around.transports) {
    const std::string name(transport->name());
    const auto same = [&](const control::Refusal& refusal) { return refusal.transport == name; };
    if (pendingLinks_.contains(name) || std::any_of(refused_.begin(), refused_.end(), same))
      continue;
    if (!env_.around.config.allowsLink(name)) {
      refused_.push_back({name, "not among PEERLANE_LINKS"});
      continue;
    }
    if (!all && !transport->forDevices() && offersLink()) {
      offers.more = true;
      continue;
    }
    auto pending = transport->prepare(facts_, surroundings);
    if (!pending.isOk()) {
      // A shortage passes; a pair that took a worse link for it would stay with that.
      if (pending.status().code() == Code::kUnavailable && !offersLink())
        return pending.status().withContext("link " + name);
      refused_.push_back({name, std::string(pending.status().message())});
      continue;
    }
    Offer offer = (*pending)->takeOffer();
    offers.links.push_back({name, std::move(offer.blob), static_cast<uint32_t>(offer.fds.size())});
    for (Fd& fd : offer.fds) fds.push_back(std::move(fd));
    pendingLinks_[name] = std::move(*pending);
  }
  // An empty list would leave the initiator to guess. His offers are answered with the reason.
  if (!env_.initiator && !offersLink()) return Status::ok();
  hasMore_ = offers.more;
  return env_.connection->send(std::move(offers), std::move(fds));
}

Status PeerCore::handle(control::Offers& message) {
  if (link_ || !offers_.empty()) return Status(Code::kCorrupt, "link offers came twice");
  if (!env_.initiator && facts_.unixSocket) PEERLANE_RETURN_IF_ERROR(sendOffers(/*all=*/false));
  std::map<std::string, Offer> offered;
  for (control::LinkOffer& offer : message.links) {
    PEERLANE_ASSIGN(auto fds, env_.connection->takeFds(offer.fdCount));
    offered[offer.transport] = {std::move(offer.blob), std::move(fds)};
  }
  offered.merge(offeredBefore_);
  if (!env_.initiator) {
    if (!offersLink()) {
      Status status = noLink(offered);
      PEERLANE_LOG_WARN("peer {}: {}", env_.number, status.message());  // nobody calls for him
      return status;
    }
    offers_ = std::move(offered);
    return Status::ok();
  }
  std::vector<control::Refusal> notOffered;
  for (const auto& transport : env_.around.transports) {
    if (transport->forDevices()) continue;
    const std::string name(transport->name());
    auto mine = pendingLinks_.find(name);
    auto theirs = offered.find(name);
    if (mine == pendingLinks_.end()) continue;
    if (theirs == offered.end()) {
      notOffered.push_back({name, "not offered by the peer"});
      continue;
    }
    auto link = mine->second->complete(std::move(theirs->second));
    if (link.status().code() == Code::kUnavailable)  // as for the offers
      return link.status().withContext("link " + name);
    if (!link.isOk()) {
      refused_.push_back({name, std::string(link.status().message())});
      pendingLinks_.erase(mine);
      PEERLANE_LOG_WARN("peer {}: link {} refused: {}", env_.number, name,
                        link.status().toString());
      metrics().fallbacks().add();
      if (env_.around.config.strict)
        return link.status().withContext("PEERLANE_STRICT: link " + name);
      continue;
    }
    link_ = std::move(*link);
    refused_.insert(refused_.end(), notOffered.begin(), notOffered.end());
    if (link_->traits().isFallback) metrics().fallbacks().add();
    PEERLANE_RETURN_IF_ERROR(completeDeviceLink(offered));
    PEERLANE_RETURN_IF_ERROR(env_.connection->send(control::Accepted{name, {}, refused_}));
    return sendSlab();
  }
  if (message.more && !askedForMore_) return askForTheRest(std::move(offered));
  refused_.insert(refused_.end(), notOffered.begin(), notOffered.end());
  return noLink(offered);
}

Status PeerCore::askForTheRest(std::map<std::string, Offer> offered) {
  askedForMore_ = true;
  offeredBefore_ = std::move(offered);
  return env_.connection->send(control::Accepted{"", {}, refused_});
}

Status PeerCore::offerTheRest() {
  PEERLANE_RETURN_IF_ERROR(sendOffers(true));
  hasMore_ = false;
  return Status::ok();
}

bool PeerCore::offersLink() const {
  return std::any_of(
      env_.around.transports.begin(), env_.around.transports.end(), [&](const auto& transport) {
        return !transport->forDevices() && pendingLinks_.contains(std::string(transport->name()));
      });
}

Status PeerCore::noLink(const std::map<std::string, Offer>& offered) const {
  std::string why = "no link works between the two";
  for (const control::Refusal& refusal : refused_)
    why += "; " + refusal.transport + ": " + refusal.reason;
  std::vector<std::string> forbidden;  // here, by the settings
  std::vector<std::string> offeredOnly;
  for (const auto& transport : env_.around.transports) {
    const std::string name(transport->name());
    if (transport->forDevices() || env_.around.config.allowsLink(name)) continue;
    forbidden.push_back(name);
    if (offered.contains(name)) offeredOnly.push_back(name);
  }
  if (forbidden.empty()) return Status(Code::kUnavailable, why);
  // The sentence is read on both sides, so neither is "this".
  why += "; PEERLANE_LINKS (Config::links) of process " + std::to_string(getpid()) + " is " +
         joined(env_.around.config.links, ",") + ": allow ";
  why += offeredOnly.empty() ? joined(forbidden, " or ") + " on both sides"
                             : joined(offeredOnly, " or ") + ", which the other side offers";
  why += ", or leave it unset";
  return Status(Code::kUnavailable, why);
}

Status PeerCore::handle(control::Accepted& message) {
  if (message.transport.empty() && !env_.initiator && !link_ && hasMore_) return offerTheRest();
  auto mine = pendingLinks_.find(message.transport);
  auto theirs = offers_.find(message.transport);
  if (env_.initiator || link_ || mine == pendingLinks_.end() || theirs == offers_.end())
    return Status(Code::kCorrupt,
                  "the peer accepted link '" + message.transport + "', which was not offered");
  PEERLANE_ASSIGN(link_, mine->second->complete(std::move(theirs->second)));
  if (link_->traits().isFallback) metrics().fallbacks().add();
  for (control::Refusal& refusal : message.refused) {
    const auto same = [&](const control::Refusal& own) {
      return own.transport == refusal.transport;
    };
    if (std::none_of(refused_.begin(), refused_.end(), same))
      refused_.push_back(std::move(refusal));
  }
  PEERLANE_RETURN_IF_ERROR(completeDeviceLink(offers_));
  PEERLANE_RETURN_IF_ERROR(sendSlab());
  maybeReady();
  return Status::ok();
}

// Beside the link that was chosen: memory of devices, where both sides have some.
Status PeerCore::completeDeviceLink(std::map<std::string, Offer>& offers) {
  devicesAdd_ = !env_.around.devices.empty() || offers.find("cuda_ipc") != offers.end();
  for (const auto& transport : env_.around.transports) {
    if (!transport->forDevices()) continue;
    const std::string name(transport->name());
    auto mine = pendingLinks_.find(name);
    auto theirs = offers.find(name);
    if (mine == pendingLinks_.end()) continue;
    if (theirs == offers.end()) {
      refused_.push_back({name, "not offered by the peer"});
      continue;
    }
    auto link = mine->second->complete(std::move(theirs->second));
    if (link.isOk()) {
      deviceLink_ = std::move(*link);
      return Status::ok();
    }
    refused_.push_back({name, std::string(link.status().message())});
    PEERLANE_LOG_WARN("peer {}: link {} refused: {}", env_.number, name, link.status().toString());
    metrics().fallbacks().add();
    if (env_.around.config.strict)
      return link.status().withContext("PEERLANE_STRICT: link " + name);
  }
  return Status::ok();
}

Status PeerCore::sendSlab() {
  pendingLinks_.clear();
  offers_.clear();
  imported_ = std::make_unique<ImportCache>(
      [weak = weak_from_this()](std::unique_ptr<ImportedRegion> region) {
        auto self = weak.lock();
        if (!self) return;           // the link went with the peer
        if (self->forked()) return;  // locks may be held for ever
        std::shared_ptr<ImportedRegion> shared = std::move(region);
        shared->slot().release([self, shared] { self->dropImported(shared); });
      });
  PEERLANE_ASSIGN(slab_, makeLibraryMemory(env_.around.regions, slab::kBytes));
  return sendGrant(0, *slab_, 0);
}

Status PeerCore::adoptSlab(control::ImportReply& message) {
  if (peerSlab_ || !link_) return Status(Code::kCorrupt, "the peer's slab came out of turn");
  if (message.bytes < slab::kBytes)
    return Status(Code::kCorrupt, "the peer's slab has " + std::to_string(message.bytes) +
                                      " bytes; need " + std::to_string(slab::kBytes));
  PEERLANE_ASSIGN(Grant grant, grantOf(message));
  if (isCuda(grant.region.kind))
    return Status(Code::kCorrupt, "the peer's slab lies in GPU memory");
  if (!env_.around.devices.empty() && grant.fd) {
    PEERLANE_ASSIGN(peerSlabFd_, grant.fd.dup());
    peerSlabOffset_ = grant.region.fdOffset;
  }
  PEERLANE_ASSIGN(RemoteMemory memory, link_->attach(std::move(grant)));
  peerSlab_ = std::make_shared<ImportedRegion>();
  peerSlab_->memory = std::move(memory);
  maybeReady();
  return Status::ok();
}

void PeerCore::maybeReady() {
  if (!link_ || !slab_ || !peerSlab_ || state() != PeerState::kConnecting) return;
  setupTimer_.cancel();
  // By now both sides have let each other in, where they do.
  if (facts_.unixSocket && !facts_.sameProcess)
    if (auto memory = AddressSpace::open(facts_.credentials.pid); memory.isOk())
      if (proof_.process && proof_.process->alive())  // so it was that process's number
        proof_.memory = std::move(*memory);
  startHeartbeat();
  env_.around.progress.add(shared_from_this());
  env_.status.setReady();
  PEERLANE_LOG_INFO("peer {} connected over {}", env_.number, link_->traits().transport);
  if (auto connected = std::move(events_.connected)) connected(Status::ok());
}

void PeerCore::onMessage(ControlMessage message) {
  if (over()) {
    // Only the other side's goodbye matters now, and what it said before it.
    if (auto* last = std::get_if<control::UserMessage>(&message); last && !messagesEnded())
      (void)handle(*last);
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
    if (message.code == Code::kUnavailable && env_.initiator && !link_ && !offersLink())
      return Status(Code::kUnavailable, std::string(noLink({}).message()) + "; " + why);
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
  if (link_) link_->close(failureCode());
  if (deviceLink_) deviceLink_->close(failureCode());
  if (imported_)
    for (const auto& region : imported_->all()) region->gate.close();
  if (peerSlab_) peerSlab_->gate.close();
  for (auto& [request, import] : imports_)
    for (const auto& slot : import.slots) importDone(slot, failure());
  imports_.clear();
  for (const ImportWish& wish : std::exchange(importWishes_, {})) importDone(wish.slot, failure());
  failChunkRequests();
  failStaging();
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
  if (imported_) {
    auto regions = imported_->all();
    if (peerSlab_) regions.push_back(peerSlab_);
    const auto busy = [](const std::shared_ptr<ImportedRegion>& region) {
      return region->isHeld() ? !ImportedRegion::letGo(region) : !region->gate.drained();
    };
    if (std::any_of(regions.begin(), regions.end(), busy) || imported_->isAnyHeldLeaving()) {
      if (busySince_ == Clock::time_point{}) busySince_ = Clock::now();
      const bool isLong = Clock::now() - busySince_ >= kLent;
      const bool isQuiet = isLong && unsent_.empty() && env_.connection->isTaken() &&
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
  if (!link_ || peerLeft_ || !env_.connection->open()) forget();
}

// A connection that ended without a goodbye says nothing about a process that lives and writes by
// itself.
bool PeerCore::endedForGood() const {
  if (!link_ || facts_.sameProcess) return true;
  return (!link_->traits().peerWritesAlone && !deviceLink_) || proof_.given();
}

// Who is not proven to have ended leaves his imports behind, and nothing else: descriptors and
// memory of this peer go with the last handle.
void PeerCore::forget() {
  if (std::exchange(forgotten_, true)) return;
  env_.connection->close();
  lastWordsTimer_.cancel();
  endMessages();
  processWatch_ = Watch();
  leaveTimer_.cancel();
  revokedTimer_.cancel();
  const auto revocations = std::exchange(revocations_, {});
  revocationWishes_.clear();
  Absentees::Number absentee = 0;
  if (peerLeft_ || endedForGood())
    env_.around.regions.forgetPeer(env_.number);
  else
    absentee =
        env_.around.absentees.add(env_.around.progress.loop(), env_.number, std::move(proof_));
  for (const auto& [request, done] : revocations) {
    if (absentee != 0)
      env_.around.absentees.await(absentee, done);
    else
      done();
  }
  if (auto gone = std::move(events_.gone)) gone(shared_from_this());
}

void PeerCore::endMessages() {
  const bool hasToLeave = lastWordsTimer_.pending();
  lastWordsTimer_.cancel();
  messagesEnded_.store(true, std::memory_order_release);
  messages_.setEnded(true);
  env_.around.progress.notifyWaiters();
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
  messages_.setEnded(true);
  env_.around.progress.notifyWaiters();
}

void PeerCore::setHeard() {
  if (state() != PeerState::kSilent) return;
  PEERLANE_LOG_WARN("peer {} is heard again", env_.number);
  env_.status.setHeard();
  messages_.setEnded(false);
}

Task::Turn PeerCore::turn() {
  bool moved = false;
  const bool over = this->over();
  if (!over) {
    moved = link_->poll();
    if (!link_->health().isOk() && !linkFailed_.exchange(true))
      progress().post([self = shared_from_this()] {
        // Its goodbye may lie here already, and is the better reason.
        self->env_.connection->readRest();
        self->fail(PeerState::kLost, self->link_->health());
      });
  }
  {
    const std::lock_guard lock(attachmentMutex_);
    for (auto& [type, task] : attachments_) moved |= task->turn() == Turn::kMoved;
  }
  if (mailboxesPending_.load(std::memory_order_relaxed) != 0) moved |= serveMailboxes();
  moved |= turnRevocations();
  if (over) return Turn::kFinished;
  return moved ? Turn::kMoved : Turn::kIdle;
}

bool PeerCore::serveMailboxes() {
  const std::lock_guard lock(mailboxMutex_);
  bool moved = false;
  for (const auto& mailbox : mailboxes_)
    if (mailbox->pending()) moved |= mailbox->serve();
  return moved;
}

Mailbox* PeerCore::borrowMailbox() {
  const std::lock_guard lock(mailboxMutex_);
  if (freeMailboxes_.empty()) {
    mailboxes_.push_back(std::make_unique<Mailbox>(*link_));
    freeMailboxes_.push_back(mailboxes_.back().get());
  }
  Mailbox* mailbox = freeMailboxes_.back();
  freeMailboxes_.pop_back();
  mailboxesPending_.fetch_add(1, std::memory_order_relaxed);
  return mailbox;
}

void PeerCore::returnMailbox(Mailbox* mailbox) {
  PEERLANE_CHECK(mailbox->idle());
  const std::lock_guard lock(mailboxMutex_);
  freeMailboxes_.push_back(mailbox);
  mailboxesPending_.fetch_sub(1, std::memory_order_relaxed);
}

std::shared_ptr<Task> PeerCore::attachmentFor(std::type_index type,
                                              const std::function<std::shared_ptr<Task>()>& make) {
  const std::lock_guard lock(attachmentMutex_);
  std::shared_ptr<Task>& attachment = attachments_[type];
  if (!attachment) attachment = make();
  return attachment;
}

Status PeerCore::sendUserMessage(uint32_t channel, std::vector<std::byte> content,
                                 bool alsoToSilent) {
  if (content.size() > limits::kMessageBytes)
    return Status(Code::kInvalidArgument, "user message of " + std::to_string(content.size()) +
                                              " bytes; at most " +
                                              std::to_string(limits::kMessageBytes));
  if (!alsoToSilent || over()) PEERLANE_RETURN_IF_ERROR(failure());
  if (MessageChannels::isProgram(channel)) {
    PEERLANE_RETURN_IF_ERROR(messages_.claim(channel));
    progress().post([self = shared_from_this(), channel, content = std::move(content)]() mutable {
      (void)self->env_.connection->sendIfOpen(control::UserMessage{channel, std::move(content)});
    });
    return Status::ok();
  }
  progress().post([self = shared_from_this(), channel, content = std::move(content)]() mutable {
    self->unsent_[channel].push_back(std::move(content));
    self->sendUnsent();
  });
  return Status::ok();
}

// Channels of the library's: what the peer has room for.
void PeerCore::sendUnsent() {
  for (auto each = unsent_.begin(); each != unsent_.end();) {
    auto& [channel, contents] = *each;
    while (!contents.empty() && messages_.claim(channel).isOk()) {
      (void)env_.connection->sendIfOpen(control::UserMessage{channel, std::move(contents.front())});
      contents.pop_front();
    }
    each = contents.empty() ? unsent_.erase(each) : std::next(each);
  }
}

void PeerCore::onUserMessage(uint32_t channel,
                             std::function<void(std::vector<std::byte>)> receive) {
  progress().post([self = shared_from_this(), channel, receive = std::move(receive)] {
    if (!receive) {
      self->userReceivers_.erase(channel);
      return;
    }
    std::vector<std::byte> early;
    while (self->messages_.pop(channel, early)) receive(std::exchange(early, {}));
    self->userReceivers_[channel] = receive;
    self->tellTaken();
  });
}

Status PeerCore::handle(control::UserMessage& message) {
  PEERLANE_RETURN_IF_ERROR(messages_.push(message.channel, std::move(message.content)));
  if (MessageChannels::isProgram(message.channel)) {
    env_.around.progress.notifyWaiters();
    return Status::ok();
  }
  const auto found = userReceivers_.find(message.channel);
  if (found == userReceivers_.end()) return Status::ok();
  const auto receive = found->second;  // it may replace itself
  std::vector<std::byte> content;
  while (messages_.pop(message.channel, content)) receive(std::exchange(content, {}));
  tellTaken();
  return Status::ok();
}

Status PeerCore::handle(control::MessagesTaken& message) {
  PEERLANE_RETURN_IF_ERROR(messages_.taken(message.channel, message.count));
  sendUnsent();
  env_.around.progress.notifyWaiters();
  return Status::ok();
}

// Once for all that are taken until the progress thread comes to it.
void PeerCore::tellTaken() {
  if (isTellingTaken_.exchange(true, std::memory_order_seq_cst)) return;
  progress().post([self = shared_from_this()] {
    self->isTellingTaken_.store(false, std::memory_order_seq_cst);
    for (const auto& [channel, count] : self->messages_.untold())
      (void)self->env_.connection->sendIfOpen(control::MessagesTaken{channel, count});
  });
}

std::string PeerCore::name() const {
  std::string text = "peer " + std::to_string(env_.number);
  if (facts_.credentials.pid != 0)
    return text + " (process " + std::to_string(facts_.credentials.pid) + ")";
  return facts_.unixSocket ? text : text + " (" + facts_.remoteAddress.toString() + ")";
}

std::vector<std::string> PeerCore::untaken() const {
  std::vector<std::string> lines;
  if (!met()) return lines;
  uint64_t notifications = inboxCounts_.waiting.load(std::memory_order_relaxed);
  const uint64_t passed = inboxCounts_.passed.load(std::memory_order_acquire);
  uint64_t inSlab = 0;
  for (; inSlab < slab::kNotifySlots; ++inSlab) {
    const std::byte* slot = slab() + slab::kInboxOffset +
                            (passed + inSlab) % slab::kNotifySlots * slab::kInboxStrideBytes;
    if (loadWord(slot, Width::k64) != passed + inSlab + 1) break;
  }
  notifications += inSlab;
  if (notifications != 0)
    lines.push_back(std::to_string(notifications) +
                    " notifications not taken (pollNotification, waitNotification)" +
                    (inSlab == slab::kNotifySlots ? "; the peer's next one waits" : ""));
  for (const auto& [channel, count] : messages_.waiting())
    if (MessageChannels::isProgram(channel))
      lines.push_back(std::to_string(count) + " messages not received on channel " +
                      std::to_string(channel));
  return lines;
}

std::string PeerCore::summary() const {
  if (!met()) return "peer " + std::to_string(env_.number) + " " + peerStateName(state());
  std::string line = "peer " + std::to_string(env_.number) + " context " +
                     identity_.context.toText() + " " + peerStateName(state());
  if (facts_.credentials.pid != 0) line += " pid " + std::to_string(facts_.credentials.pid);
  if (link_) line += " link " + link_->traits().transport;
  if (deviceLink_) line += " and " + deviceLink_->traits().transport;
  return line;
}

}  // namespace peerlane
