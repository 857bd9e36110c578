// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/control_connection.h"

#include <array>
#include <utility>
#include <variant>

namespace peerlane {
namespace {

constexpr size_t kBytesOfRound = 16 * 1024;
// Bounded, so that one talkative peer does not starve the others of this loop.
constexpr int kRoundsAtOnce = 8;
constexpr int kRoundsAtTheEnd = 1024;  // more than a socket holds

// Sent because of what the peer sent, so that it can make them many.
bool isAnswer(const ControlMessage& message) {
  return std::holds_alternative<control::ImportReply>(message) ||
         std::holds_alternative<control::RevokeDone>(message) ||
         std::holds_alternative<control::ChunkReply>(message) ||
         std::holds_alternative<control::StagingReply>(message) ||
         std::holds_alternative<control::StagedMoveDone>(message) ||
         std::holds_alternative<control::MessagesTaken>(message) ||
         std::holds_alternative<control::Heartbeat>(message);
}

}  // namespace

ControlConnection::ControlConnection(Fd socket, bool isUnix, std::unique_ptr<Handshake> handshake,
                                     Events events)
    : socket_(std::move(socket)),
      isUnix_(isUnix),
      handshake_(std::move(handshake)),
      events_(std::move(events)),
      lastHeard_(std::chrono::steady_clock::now()),
      alive_(std::make_shared<bool>(true)) {}

Result<std::unique_ptr<ControlConnection>> ControlConnection::create(EventLoop& loop, Fd socket,
                                                                     bool connecting,
                                                                     Handshake::Role role,
                                                                     HandshakeOptions options,
                                                                     Events events) {
  PEERLANE_ASSIGN(auto handshake, Handshake::create(role, std::move(options)));
  PEERLANE_ASSIGN(const SocketAddress local, localAddress(socket.get()));
  const bool isUnix = local.isUnix() || local.family() == SocketAddress::Family::kNone;
  if (!isUnix) PEERLANE_RETURN_IF_ERROR(setNoDelay(socket.get()));
  std::unique_ptr<ControlConnection> connection(
      new ControlConnection(std::move(socket), isUnix, std::move(handshake), std::move(events)));
  ControlConnection* self = connection.get();
  self->connecting_ = connecting;
  PEERLANE_ASSIGN(self->watch_,
                  loop.watch(self->socket_.get(), true, connecting, [self] { self->onReady(); }));
  PEERLANE_RETURN_IF_ERROR(self->queue(self->handshake_->start(), {}));
  if (!connecting) PEERLANE_RETURN_IF_ERROR(self->flush());
  return connection;
}

void ControlConnection::close() {
  *alive_ = false;
  watch_ = Watch();
  socket_.reset();
}

void ControlConnection::end(Status status) {
  if (!*alive_) return;
  close();
  // Moved out: the handler may destroy this object.
  auto ended = std::move(events_.ended);
  ended(std::move(status));
}

void ControlConnection::onReady() {
  const std::shared_ptr<bool> alive = alive_;
  if (connecting_) {
    if (Status status = connectResult(socket_.get()); !status.isOk()) {
      if (status.code() != Code::kTryAgain) end(std::move(status));
      return;
    }
    connecting_ = false;
  }
  // A peer that takes nothing any more may have said why: all of that is read before the end.
  Status sent = flush();
  isEnding_ = isEnding_ || !sent.isOk();
  Status status = readSome(isEnding_ ? kRoundsAtTheEnd : kRoundsAtOnce);
  if (!*alive) return;
  if (status.isOk()) status = std::move(sent);
  if (!status.isOk()) end(std::move(status));
}

Status ControlConnection::readSome(int rounds) {
  const std::shared_ptr<bool> alive = alive_;
  std::array<std::byte, kBytesOfRound> space;
  if (isHeld_) {
    isHeld_ = false;
    Status status = records(std::exchange(held_, {}));
    if (!*alive || !status.isOk()) return status;
  }
  for (int round = 0; round < rounds && !isHeld_; ++round) {
    std::vector<Fd> fds;
    auto got = isUnix_ ? recvWithFds(socket_.get(), space, fds) : recvSome(socket_.get(), space);
    if (!got.isOk()) return got.status().code() == Code::kTryAgain ? Status::ok() : got.status();
    if (*got == 0) {
      if (channel_) PEERLANE_RETURN_IF_ERROR(channel_->finish());
      if (handshake_ && handshake_->bytesTaken() > 0)
        return Status(Code::kCorrupt, "the connection ended after " +
                                          std::to_string(handshake_->bytesTaken()) + " of " +
                                          std::to_string(kHelloBytes) + " bytes of a hello");
      return Status(Code::kPeerLost, "the peer closed the control connection");
    }
    lastHeard_ = std::chrono::steady_clock::now();
    if (arrivedFds_.size() + fds.size() > kMaxWaitingFds)
      return Status(Code::kCorrupt,
                    "more than " + std::to_string(kMaxWaitingFds) + " descriptors wait unclaimed");
    for (Fd& fd : fds) arrivedFds_.push_back(std::move(fd));
    Status status = handle(std::span(space).first(*got));
    if (!*alive || !status.isOk()) return status;
  }
  watch();
  return Status::ok();
}

void ControlConnection::readRest() {
  if (!*alive_ || connecting_) return;
  isEnding_ = true;
  (void)readSome(kRoundsAtTheEnd);
}

// Requests that are read are answered, so whoever does not read answers is not read either.
bool ControlConnection::isFull() const {
  return !isEnding_ &&
         (answerBytes_ >= limits::kAnswerBytes || answerFds_ >= limits::kAnswerDescriptors);
}

void ControlConnection::watch() {
  watch_.setInterest(!isFull(), !outgoing_.empty() || (isHeld_ && !isFull()));
}

Status ControlConnection::handle(std::span<const std::byte> bytes) {
  if (!channel_) PEERLANE_RETURN_IF_ERROR(handshakeBytes(bytes));
  return bytes.empty() ? Status::ok() : records(bytes);
}

Status ControlConnection::handshakeBytes(std::span<const std::byte>& bytes) {
  auto progress = handshake_->feed(bytes);
  if (!progress.isOk()) {
    // Tell the peer why, as far as the socket takes it at once; then this connection ends.
    if (!handshake_->rejection().empty()) {
      (void)queue(handshake_->rejection(), {});
      (void)flush();
    }
    return progress.status();
  }
  bytes = bytes.subspan(progress->consumed);
  PEERLANE_RETURN_IF_ERROR(queue(std::move(progress->send), {}));
  if (progress->done) {
    PEERLANE_ASSIGN(channel_, SecureChannel::create(handshake_->keys()));
    const PeerIdentity identity = handshake_->peer();
    handshake_.reset();
    const std::shared_ptr<bool> alive = alive_;
    events_.authenticated(identity);
    if (!*alive) {
      bytes = {};
      return Status::ok();
    }
  }
  (void)flush();  // where nothing can be sent any more, the peer may have said why behind its hello
  return Status::ok();
}

Status ControlConnection::records(std::span<const std::byte> bytes) {
  const std::shared_ptr<bool> alive = alive_;
  for (;;) {
    if (isFull()) {
      held_.assign(bytes.begin(), bytes.end());
      isHeld_ = true;
      return Status::ok();
    }
    PEERLANE_ASSIGN(auto record, channel_->next());
    if (record) {
      PEERLANE_ASSIGN(ControlMessage message, decodeControl(*record));
      events_.message(std::move(message));
      if (!*alive) return Status::ok();
      continue;
    }
    if (bytes.empty()) return Status::ok();
    PEERLANE_ASSIGN(const size_t taken, channel_->feed(bytes));
    bytes = bytes.subspan(taken);
  }
}

Status ControlConnection::queue(std::vector<std::byte> bytes, std::span<const int> fds) {
  if (bytes.empty()) return Status::ok();
  Chunk chunk;
  chunk.bytes = std::move(bytes);
  for (const int fd : fds) {
    PEERLANE_ASSIGN(Fd copy, duplicateFd(fd));
    chunk.fds.push_back(std::move(copy));
  }
  outgoing_.push_back(std::move(chunk));
  return Status::ok();
}

Status ControlConnection::send(const ControlMessage& message, std::span<const int> fds) {
  if (!*alive_ || isLastSent_) return Status(Code::kClosed, "the control connection ended");
  // Behind what the peer does not read, a sign of life says nothing that the rest does not.
  if (std::holds_alternative<control::Heartbeat>(message) && !flushed()) return Status::ok();
  PEERLANE_CHECK(channel_ != nullptr);
  PEERLANE_CHECK(isUnix_ || fds.empty());
  PEERLANE_ASSIGN(std::vector<std::byte> plain, encodeControl(message));
  PEERLANE_ASSIGN(std::vector<std::byte> sealed, channel_->seal(plain));
  PEERLANE_RETURN_IF_ERROR(queue(std::move(sealed), fds));
  if (isAnswer(message)) {
    Chunk& chunk = outgoing_.back();
    chunk.isAnswer = true;
    chunk.answerFds = chunk.fds.size();
    answerBytes_ += chunk.bytes.size();
    answerFds_ += chunk.answerFds;
  }
  // A failing write is left for the loop: ending here could destroy the caller.
  (void)flush();
  return Status::ok();
}

Status ControlConnection::flush() {
  if (connecting_) return Status::ok();
  while (!outgoing_.empty()) {
    Chunk& chunk = outgoing_.front();
    const std::span<const std::byte> rest = std::span(chunk.bytes).subspan(chunk.sent);
    std::vector<int> fds;
    for (const Fd& fd : chunk.fds) fds.push_back(fd.get());
    auto sent = fds.empty() ? sendSome(socket_.get(), rest) : sendWithFds(socket_.get(), rest, fds);
    if (!sent.isOk()) {
      if (sent.status().code() != Code::kTryAgain) return sent.status();
      break;
    }
    chunk.fds.clear();
    chunk.sent += *sent;
    if (chunk.isAnswer) answerFds_ -= std::exchange(chunk.answerFds, 0);
    if (chunk.sent < chunk.bytes.size()) continue;
    if (chunk.isAnswer) answerBytes_ -= chunk.bytes.size();
    outgoing_.pop_front();
  }
  watch();
  return Status::ok();
}

Result<std::vector<Fd>> ControlConnection::takeFds(size_t count) {
  if (count > arrivedFds_.size())
    return Status(Code::kCorrupt, "a message announces " + std::to_string(count) +
                                      " descriptors, " + std::to_string(arrivedFds_.size()) +
                                      " came");
  std::vector<Fd> fds;
  for (size_t i = 0; i < count; ++i) {
    fds.push_back(std::move(arrivedFds_.front()));
    arrivedFds_.pop_front();
  }
  return fds;
}

}  // namespace peerlane
