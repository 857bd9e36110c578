// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_link.h"

#include <utility>

#include "peerlane/core/text.h"
#include "peerlane/os/socket.h"

namespace peerlane {

TcpLink::TcpLink(const LinkSurroundings& surroundings, std::string name)
    : traits_{.peerWritesAlone = false,
              .transport = "tcp",
              .agentEngine = "socket",
              .wordsBy = "agent",
              .rightsEnforcedBy = "owner",
              .refused = {},
              .waker = {}},
      loop_(surroundings.loop),
      patience_(surroundings.config.connectTimeout),
      workArrived_(surroundings.workArrived),
      pipe_(new TcpPipe(surroundings.loop)),
      agent_(std::move(name), std::unique_ptr<FramePipe>(pipe_), surroundings.regions,
             surroundings.workArrived) {}

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
  if (workArrived_) workArrived_();
}

Result<Grant> TcpLink::grant(RegionGrant region, const Fd& /*backing*/) {
  // Frames name regions, not addresses: the peer learns none.
  region.base = 0;
  region.fdOffset = 0;
  region.kind = MemoryKind::kPrivate;
  return Grant{region, Fd()};
}

Result<RemoteMemory> TcpLink::attach(Grant grant) {
  return RemoteMemory{.grant = grant.region, .mapped = nullptr, .engine = "socket", .linkKey = 0};
}

void TcpLink::detach(RemoteMemory& memory) {
  memory = {};
}

void TcpLink::close(Code code) {
  limit_.cancel();
  expectation_.reset();
  dialer_.reset();
  agent_.close(code);
}

}  // namespace peerlane
