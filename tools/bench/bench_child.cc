// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench_child.h"

#include <fcntl.h>

#include <cstring>
#include <optional>

#include "tools/bench/host/bench_connect.h"
#include "tools/bench/host/bench_message.h"
#include "tools/bench/host/bench_pingpong.h"
#include "tools/bench/setup/bench_setup.h"
#include "tools/bench/sides/bench_endpoint.h"
#include "tools/bench/sides/bench_request.h"
#include "tools/ceiling/ceiling_socket.h"
#include "tools/memory/byte_pattern.h"

namespace peerlane::bench {
namespace {

class Child {
 public:
  explicit Child(int pipe) : pipe_(Descriptor(pipe)) {}

  // Until the parent is gone.
  void serve() {
    for (;;) {
      auto message = pipe_.receive();
      if (!message) return;
      const Status done = answer(*message);
      if (done.isOk()) continue;
      const std::string why = done.toString();
      if (!pipe_.send(kFailed, std::as_bytes(std::span(why))).isOk()) return;
    }
  }

 private:
  Status answer(const BenchMessage& message);
  Status setUp(const BenchMessage& message);
  Status makeRegions();
  Status fill(const FillRequest& request);
  Status verify(const BenchMessage& message);
  Status listen();
  Status connectMore(const BenchMessage& message);

  BenchPipe pipe_;
  std::unique_ptr<BenchEndpoint> endpoint_;
  std::optional<PingpongPartner> pingpong_;
  std::optional<ConnectPartner> connect_;
  std::optional<MessagePartner> messages_;
  std::optional<SetupPartner> setup_;
  std::unique_ptr<RawSocket> socket_;
};

Status Child::setUp(const BenchMessage& message) {
  PEERLANE_ASSIGN(const EndpointSetup setup, message.as<EndpointSetup>());
  PEERLANE_ASSIGN(endpoint_, BenchEndpoint::create(setup));
  PEERLANE_RETURN_IF_ERROR(endpoint_->adoptFlags(message.descriptors.at(0)));
  const std::string ticket = endpoint_->context().ticket();
  return pipe_.send(kTicketIs, std::as_bytes(std::span(ticket)));
}

Status Child::makeRegions() {
  PEERLANE_ASSIGN(const Peer peer, endpoint_->context().accept());
  PEERLANE_RETURN_IF_ERROR(endpoint_->exportRegions(pipe_));
  PEERLANE_RETURN_IF_ERROR(endpoint_->importRegions(pipe_, peer));
  pingpong_.emplace(*endpoint_);
  connect_.emplace(*endpoint_);
  messages_.emplace(*endpoint_);
  setup_.emplace(*endpoint_);
  return pipe_.send(kReady, {});
}

Status Child::fill(const FillRequest& request) {
  const Region& region = request.isSource ? endpoint_->source() : endpoint_->destination();
  fillPattern({region.data(), request.bytes}, request.seed);
  return pipe_.send(kReady, {});
}

Status Child::verify(const BenchMessage& message) {
  VerifyRequest request;
  std::memcpy(&request, message.content.data(), sizeof(request));
  uint64_t wrong = 0;
  uint64_t total = 0;
  for (size_t at = sizeof(request); at < message.content.size(); at += sizeof(VerifyPiece)) {
    VerifyPiece piece;
    std::memcpy(&piece, message.content.data() + at, sizeof(piece));
    wrong += countWrong({endpoint_->destination().data() + piece.offset, piece.bytes}, request.seed,
                        piece.sourceOffset);
    total += piece.bytes;
  }
  if (request.signals > 0) {
    PEERLANE_ASSIGN(const Signal signal, Signal::create(endpoint_->peer(), 0));
    if (signal.value() != request.signals) wrong = total;
  }
  return pipe_.send(kWrongIs, wrong);
}

Status Child::listen() {
  PEERLANE_ASSIGN(const RawSocket::Listener listener, RawSocket::listen());
  PEERLANE_RETURN_IF_ERROR(pipe_.send(kPortIs, listener.port));
  PEERLANE_ASSIGN(socket_, RawSocket::accept(listener));
  return pipe_.send(kReady, {});
}

Status Child::connectMore(const BenchMessage& message) {
  ExtraPeersRequest request;
  std::memcpy(&request, message.content.data(), sizeof(request));
  const std::string ticket(reinterpret_cast<const char*>(message.content.data()) + sizeof(request),
                           message.content.size() - sizeof(request));
  return connect_->connectMore(pipe_, request.count, ticket);
}

Status Child::answer(const BenchMessage& message) {
  switch (message.kind) {
    case kSetup: return setUp(message);
    case kMakeRegions: return makeRegions();
    case kFill: {
      PEERLANE_ASSIGN(const FillRequest request, message.as<FillRequest>());
      return fill(request);
    }
    case kVerify: return verify(message);
    case kPingpong: {
      PEERLANE_ASSIGN(const PingpongRequest request, message.as<PingpongRequest>());
      return pingpong_->serve(pipe_, request);
    }
    case kRawPingpong: {
      PEERLANE_ASSIGN(const PingpongRequest request, message.as<PingpongRequest>());
      return pingpong_->serveRaw(pipe_, request);
    }
    case kListen: return listen();
    case kServeSocket: {
      PEERLANE_ASSIGN(const SocketRequest request, message.as<SocketRequest>());
      PEERLANE_RETURN_IF_ERROR(socket_->greet(false));
      PEERLANE_RETURN_IF_ERROR(
          socket_->serve(request, endpoint_->source().data(), endpoint_->destination().data()));
      return pipe_.send(kReady, {});
    }
    case kAcceptPeer: {
      PEERLANE_ASSIGN(const ConnectCheck check, message.as<ConnectCheck>());
      return connect_->acceptPeer(pipe_, check);
    }
    case kOpenMessages: {
      PEERLANE_ASSIGN(const MessageSetup setup, message.as<MessageSetup>());
      return messages_->open(pipe_, setup, message.descriptors.at(0));
    }
    case kMessages: {
      PEERLANE_ASSIGN(const MessagesRequest request, message.as<MessagesRequest>());
      return messages_->serve(pipe_, request);
    }
    case kExtraPeers: return connectMore(message);
    case kSetUpPieces: {
      PEERLANE_ASSIGN(const SetupRequest request, message.as<SetupRequest>());
      return setup_->registerPieces(pipe_, request);
    }
    case kSharePieces: return setup_->share(pipe_);
    case kCheckPieces: {
      PEERLANE_ASSIGN(const uint64_t seed, message.as<uint64_t>());
      return setup_->check(pipe_, seed);
    }
    case kEndPieces: return setup_->unregister(pipe_);
    default:
      return Status(Code::kInternal,
                    "bench request " + std::to_string(message.kind) + " is unknown");
  }
}

}  // namespace

int runBenchChild(int pipe) {
  // Only a parent of ours leaves a pipe here.
  if (::fcntl(pipe, F_GETFD) < 0) return 2;
  ::fcntl(pipe, F_SETFD, FD_CLOEXEC);
  Child(pipe).serve();
  return 0;
}

}  // namespace peerlane::bench
