// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_connection.h"

#include <optional>
#include <utility>

#include "peerlane/core/log.h"
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

TcpConnection::TcpConnection(const LinkSurroundings& surroundings, std::string name,
                             const StreamKeys* keys, bool isFirst, Made made)
    : loop_(surroundings.loop),
      patience_(surroundings.config.connectTimeout),
      lookInterval_(surroundings.config.heartbeatInterval()),
      workArrived_(surroundings.workArrived),
      made_(std::move(made)),
      name_(name),
      isRequired_(isFirst || surroundings.config.strict),
      pipe_(new TcpPipe(surroundings.readiness, surroundings.config.peerTimeout, isFirst)),
      agent_(std::move(name), sealed(std::unique_ptr<FramePipe>(pipe_), keys, surroundings),
             surroundings.regions, surroundings.workArrived, surroundings.peerKnows) {}

void TcpConnection::dial(TcpDialer::Order order) {
  dialer_ = std::make_unique<TcpDialer>(loop_, std::move(order),
                                        [this](Result<Fd> socket) { settle(std::move(socket)); });
}

void TcpConnection::await(Fd socket, std::unique_ptr<TcpListener::Expectation> expectation,
                          const TcpCard& present) {
  present_ = present;
  expectation_ = std::move(expectation);
  if (socket) return socketArrived(std::move(socket));
  limit_ = loop_.after(patience_, [this] {
    settle(Status(Code::kTimeout, "the peer made no data connection within " +
                                      formatDuration(patience_) + " (PEERLANE_CONNECT_TIMEOUT)"));
  });
}

void TcpConnection::socketArrived(Fd socket) {
  const TcpGreeting greeting = encodeTcpGreeting(present_);
  Result<size_t> sent = sendSome(socket.get(), greeting);
  if (!sent) return settle(sent.status());
  if (*sent != greeting.size())
    return settle(Status(Code::kUnavailable, "the socket took half a greeting"));
  settle(std::move(socket));
}

void TcpConnection::settle(Result<Fd> socket) {
  limit_.cancel();
  expectation_.reset();
  dialer_.reset();
  if (!socket && !isRequired_) {
    PEERLANE_LOG_WARN("{} is not made, and done without: {}", name_, socket.status().message());
    return;
  }
  std::optional<Result<SocketAddress>> end;
  bool isMade = false;
  if (socket) {
    end = peerAddress(socket->get());
    isMade = pipe_->adopt(std::move(socket).value());
  } else {
    pipe_->fail(socket.status());
  }
  watch();
  if (workArrived_) workArrived_();
  if (isMade) made_(*end);
}

// A poll has the socket; the timer only brings it about.
void TcpConnection::watch() {
  look_ = loop_.after(lookInterval_, [this] {
    pipe_->lookSoon();
    if (workArrived_) workArrived_();
    watch();
  });
}

Status TcpConnection::health() const {
  Status health = agent_.health();
  if (!health.isOk()) return health;
  if (pipe_->isAwaited()) return Status(Code::kTryAgain, "its data connection is being made");
  if (pipe_->isStuck())
    return Status(Code::kPeerSilent, "the peer does not read its data connection");
  return health;
}

void TcpConnection::stop() {
  limit_.cancel();
  expectation_.reset();
  dialer_.reset();
  look_.cancel();
}

}  // namespace peerlane
