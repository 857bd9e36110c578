// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_link.h"

#include <utility>

#include "peerlane/core/text.h"
#include "peerlane/os/socket.h"
#include "peerlane/transport/tcp/sealed_pipe.h"

namespace peerlane {
namespace {

std::unique_ptr<FramePipe> sealed(std::unique_ptr<FramePipe> socket, const StreamKeys* keys,
                                  const LinkSurroundings& surroundings) {
  if (keys == nullptr) return socket;
  return std::make_unique<SealedPipe>(std::move(socket), *keys, surroundings.copyTeam);
}

}  // namespace

TcpLink::TcpLink(const LinkSurroundings& surroundings, std::string name, const StreamKeys* keys)
    : traits_{.transport = "tcp",
              .scope = LinkScope::kNetwork,
              .abilities = abilities(),
              .peerWritesAlone = false,
              .agentEngine = "socket",
              .protection = keys == nullptr
                                ? "not encrypted"
                                : std::string("encrypted (") + aeadCipherName(keys->cipher) + ")"},
      loop_(surroundings.loop),
      patience_(surroundings.config.connectTimeout),
      lookInterval_(surroundings.config.heartbeatInterval()),
      workArrived_(surroundings.workArrived),
      pipe_(new TcpPipe(surroundings.readiness, surroundings.config.peerTimeout)),
      agent_(std::move(name), sealed(std::unique_ptr<FramePipe>(pipe_), keys, surroundings),
             surroundings.regions, surroundings.workArrived) {}

void TcpLink::dial(TcpDialer::Order order) {
  dialer_ = std::make_unique<TcpDialer>(loop_, std::move(order),
                                        [this](Result<Fd> socket) { settle(std::move(socket)); });
}

void TcpLink::await(Fd socket, std::unique_ptr<TcpListener::Expectation> expectation,
                    const TcpToken& present) {
  present_ = present;
  expectation_ = std::move(expectation);
  if (socket) return socketArrived(std::move(socket));
  limit_ = loop_.after(patience_, [this] {
    settle(Status(Code::kTimeout,
                  "the peer made no data connection within " + formatDuration(patience_)));
  });
}

void TcpLink::socketArrived(Fd socket) {
  const TcpGreeting greeting = encodeTcpGreeting(present_);
  Result<size_t> sent = sendSome(socket.get(), greeting);
  if (!sent) return settle(sent.status());
  if (*sent != greeting.size())
    return settle(Status(Code::kUnavailable, "the socket took half a greeting"));
  settle(std::move(socket));
}

void TcpLink::settle(Result<Fd> socket) {
  limit_.cancel();
  expectation_.reset();
  if (socket)
    pipe_->adopt(std::move(socket).value());
  else
    pipe_->fail(socket.status());
  dialer_.reset();
  watch();
  if (workArrived_) workArrived_();
}

// A poll has the socket; the timer only brings it about.
void TcpLink::watch() {
  look_ = loop_.after(lookInterval_, [this] {
    pipe_->lookSoon();
    if (workArrived_) workArrived_();
    watch();
  });
}

LinkAbilities TcpLink::abilities() {
  LinkAbilities abilities;
  abilities.allow(MemoryPlace::kHost, {MemoryExport::kNone, MemoryExport::kDescriptor},
                  {Ability::kGrants, Ability::kAttaches, Ability::kByAgent, Ability::kFromHere,
                   Ability::kSendsWords},
                  Enforcer::kOwner);
  return abilities;
}

// Frames name regions by their numbers: the peer learns no address.
Result<LinkPart> TcpLink::grant(const RegionRecord& /*region*/) {
  return LinkPart();
}

Result<RemoteMemory> TcpLink::attach(Grant grant) {
  if (!grant.own.blob.empty())
    return Status(Code::kCorrupt, "a grant over tcp with a part of " +
                                      std::to_string(grant.own.blob.size()) +
                                      " bytes; it has none");
  return RemoteMemory{.grant = std::move(grant.region),
                      .engine = "socket",
                      .refusesInOrder = true,
                      .enforcer = Enforcer::kOwner};
}

Status TcpLink::health() const {
  Status health = agent_.health();
  if (!health.isOk()) return health;
  if (pipe_->isAwaited()) return Status(Code::kTryAgain, "its data connection is being made");
  if (pipe_->isStuck())
    return Status(Code::kPeerSilent, "the peer does not read its data connection");
  return health;
}

void TcpLink::detach(RemoteMemory& memory) {
  memory = {};
}

void TcpLink::close(Code code) {
  limit_.cancel();
  expectation_.reset();
  dialer_.reset();
  look_.cancel();
  agent_.close(code);
}

}  // namespace peerlane
