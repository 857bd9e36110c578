// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/intruder.h"

#include <poll.h>
#include <sys/socket.h>

#include "peerlane/os/process.h"
#include "peerlane/os/socket.h"
#include "peerlane/os/unix_peer.h"
#include "peerlane/session/peer/peer_slab.h"
#include "peerlane/transport/tcp/tcp_offer.h"
#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

constexpr int kPatienceMs = 10'000;

bool becomes(int fd, short event) {
  pollfd one{.fd = fd, .events = event, .revents = 0};
  return ::poll(&one, 1, kPatienceMs) == 1;
}

Fd connectTo(const std::string& text) {
  Fd socket = MUST(connectStart(MUST(SocketAddress::parse(text))));
  EXPECT_TRUE(becomes(socket.get(), POLLOUT));
  EXPECT_OK(connectResult(socket.get()));
  return socket;
}

void sendAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto sent = sendSome(fd, bytes);
    if (!sent.isOk() && (sent.status().code() != Code::kTryAgain || !becomes(fd, POLLOUT))) return;
    if (sent.isOk()) bytes = bytes.subspan(*sent);
  }
}

ContextId someContext() {
  std::array<std::byte, ContextId::kBytes> bytes;
  EXPECT_OK(fillRandom(bytes));
  return ContextId(bytes);
}

}  // namespace

Intruder::Intruder(const std::string& address) : socket_(connectTo(address)) {}

void Intruder::send(std::span<const std::byte> bytes) const {
  sendAll(socket_.get(), bytes);
}

void Intruder::sendWithFiles(std::span<const std::byte> bytes, std::span<const int> fds) const {
  (void)peerlane::sendWithFds(socket_.get(), bytes, fds);
}

void Intruder::finish() const {
  ::shutdown(socket_.get(), SHUT_WR);
}

std::span<std::byte> Intruder::receive() {
  for (;;) {
    const auto got = recvSome(socket_.get(), space_);
    if (got.isOk()) return std::span(space_).first(*got);
    if (got.status().code() != Code::kTryAgain || !becomes(socket_.get(), POLLIN)) return {};
  }
}

bool Intruder::seesTheEnd() {
  for (;;) {
    const auto got = recvSome(socket_.get(), space_);
    if (got.isOk() && *got == 0) return true;
    if (got.isOk()) continue;
    if (got.status().code() != Code::kTryAgain) return true;
    if (!becomes(socket_.get(), POLLIN)) return false;
  }
}

Intruder::Bytes Intruder::hello(const Secret& secret, uint64_t features) {
  HandshakeOptions options;
  options.features = features;
  options.secret = secret;
  options.self = someContext();
  options.features = features;
  options.hostIdentity = 1;  // of another host: no better way is looked for
  handshake_ = MUST(Handshake::create(Handshake::Role::kInitiator, std::move(options)));
  return handshake_->start();
}

Status Intruder::refusal(const Secret& secret) {
  send(hello(secret));
  for (;;) {
    const auto bytes = receive();
    if (bytes.empty()) return Status(Code::kPeerLost, "the end, and no reason");
    if (auto progress = handshake_->feed(bytes); !progress.isOk()) return progress.status();
  }
}

void Intruder::enter(const Secret& secret, uint64_t features) {
  send(hello(secret, features));
  for (bool done = false; !done;) {
    if (rest_.empty()) rest_ = receive();
    ASSERT_FALSE(rest_.empty()) << "no answer to the hello";
    const HandshakeProgress progress = MUST(handshake_->feed(rest_));
    rest_ = rest_.subspan(progress.consumed);
    done = progress.done;
  }
  channel_ = MUST(SecureChannel::create(handshake_->keys()));
}

Intruder::Bytes Intruder::sealed(std::span<const std::byte> plain) {
  return MUST(channel_->seal(plain));
}
Intruder::Bytes Intruder::sealed(const ControlMessage& message) {
  return sealed(MUST(encodeControl(message)));
}

ControlMessage Intruder::hearAny() {
  for (;;) {
    if (const auto record = MUST(channel_->next())) return MUST(decodeControl(*record));
    if (rest_.empty()) rest_ = receive();
    if (rest_.empty()) MUST(Result<int>(Status(Code::kPeerLost, "nothing more is heard")));
    rest_ = rest_.subspan(MUST(channel_->feed(rest_)));
  }
}

bool Intruder::isQuiet() {
  constexpr uint64_t kMark = 0x5157;
  say(control::Heartbeat{kMark, false});
  for (;;) {
    const ControlMessage message = hearAny();
    const auto* beat = std::get_if<control::Heartbeat>(&message);
    if (beat == nullptr) return false;
    if (beat->reply && beat->sequence == kMark) return true;
  }
}

void Intruder::becomePeer(const std::vector<control::LinkOffer>& besides) {
  TcpOffer mine;
  mine.token = makeTcpToken();
  control::Offers offers{{{"tcp", encodeTcpOffer(mine), 0}}};
  offers.links.insert(offers.links.end(), besides.begin(), besides.end());
  say(offers);
  TcpOffer theirs;
  for (bool more = true; more;) {
    const auto offered = hear<control::Offers>();
    for (const control::LinkOffer& offer : offered.links)
      if (offer.transport == "tcp") theirs = MUST(parseTcpOffer(offer.blob));
    more = offered.more;
    if (more) say(control::Accepted{});  // the rest, please
  }
  ASSERT_FALSE(theirs.port == 0) << "tcp is not offered";
  control::Accepted accepted{{"tcp"}, {}};
  for (const control::LinkOffer& offer : besides) accepted.links.push_back(offer.transport);
  say(accepted);
  data_ = connectTo("127.0.0.1:" + std::to_string(theirs.port));
  sendAll(data_.get(), encodeTcpGreeting(cardOf(theirs.token, 0)));
  control::ImportReply slab;
  slab.link = "tcp";
  slab.bytes = slab::kBytes;
  slab.access = 3;
  slab.allocation = slab.generation = 1;
  say(slab);
  (void)hear<control::Accepted>();
  (void)hear<control::ImportReply>();
}

}  // namespace peerlane
