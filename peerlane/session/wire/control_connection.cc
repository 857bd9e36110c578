// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/wire/control_connection.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

namespace peerlane {
namespace {

constexpr size_t kBytesOfRound = 16 * 1024;
// Bounded, so that one talkative peer does not starve the others of this loop.
constexpr int kRoundsAtOnce = 8;
constexpr int kRoundsAtTheEnd = 1024;  // more than a socket holds
// After the kernel had no memory, or too many descriptors were under way.
constexpr std::chrono::milliseconds kSendPause{10};

// Messages that are written together are written once they are so long, so that the peer begins
// with the first of them while this side makes the next.
constexpr size_t kGatheredBytes = 8 * 1024;
// Small messages are one write.
constexpr size_t kJoinedBytes = 16 * 1024;

// Messages of which a list of regions makes many; nobody but the session handles them. The slab is
// granted once.
bool isOfMany(const ControlMessage& message) {
  const auto* const reply = std::get_if<control::ImportReply>(&message);
  return (reply != nullptr && reply->request != 0) ||
         std::holds_alternative<control::ImportRequest>(message) ||
         std::holds_alternative<control::Release>(message) ||
         std::holds_alternative<control::Revoke>(message) ||
         std::holds_alternative<control::RevokeDone>(message);
}

// Messages that answer a message of the peer, so that the peer decides how many there are.
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

ControlConnection::ControlConnection(EventLoop& loop, Fd socket, bool isUnix,
                                     std::unique_ptr<Handshake> handshake, Events events)
    : loop_(loop),
      socket_(std::move(socket)),
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
  const auto patience = options.patience;
  PEERLANE_ASSIGN(auto handshake, Handshake::create(role, std::move(options)));
  PEERLANE_ASSIGN(const SocketAddress local, localAddress(socket.get()));
  const bool isUnix = local.isUnix() || local.family() == SocketAddress::Family::kNone;
  if (!isUnix) PEERLANE_RETURN_IF_ERROR(setNoDelay(socket.get()));
  std::unique_ptr<ControlConnection> connection(new ControlConnection(
      loop, std::move(socket), isUnix, std::move(handshake), std::move(events)));
  ControlConnection* self = connection.get();
  self->connecting_ = connecting;
  PEERLANE_ASSIGN(self->watch_,
                  loop.watch(self->socket_.get(), true, connecting, [self] { self->onReady(); }));
  self->queue({.bytes = self->handshake_->start()});
  if (!connecting) PEERLANE_RETURN_IF_ERROR(self->flush());
  if (patience.count() > 0)
    self->helloTimer_ = loop.after(patience, [self, patience] { self->onLate(patience); });
  return connection;
}

void ControlConnection::onLate(std::chrono::nanoseconds patience) {
  // An honest client that was merely slow connects again.
  queue({.bytes = Handshake::rejectionFor(Handshake::Reason::kLate)});
  (void)flush();
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(patience).count();
  end(Status(Code::kTimeout, "the client said " + std::to_string(handshake_->bytesTaken()) +
                                 " of " + std::to_string(kHelloBytes) + " bytes of a hello in " +
                                 std::to_string(milliseconds) + " ms"));
}

void ControlConnection::close() {
  *alive_ = false;
  watch_ = Watch();
  helloTimer_.cancel();
  sendPause_.cancel();
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
  // A peer that takes no bytes any more may have sent the reason: read everything before the end.
  Status sent = flush();
  isEnding_ = isEnding_ || !sent.isOk();
  Status status = readSome(isEnding_ ? kRoundsAtTheEnd : kRoundsAtOnce);
  if (!*alive) return;
  if (status.isOk()) status = std::move(sent);
  if (!status.isOk()) end(std::move(status));
}

Status ControlConnection::readSome(int rounds) {
  const std::shared_ptr<bool> alive = alive_;
  const Gathering answers(*this);
  std::array<std::byte, kBytesOfRound> space;
  if (isHeld_) {
    isHeld_ = false;
    Status status = records(std::exchange(held_, {}));
    if (!*alive || !status.isOk()) return status;
  }
  for (int round = 0; round < rounds && !isHeld_; ++round) {
    std::vector<Fd> fds;
    // This side takes no descriptors of a peer that has not authenticated: read without room for
    // them, the kernel drops them. So it reads no more than the hello, because the peer may have
    // sent descriptors after it.
    auto got = !channel_ ? recvSome(socket_.get(), std::span(space).first(handshake_->wanted()))
               : isUnix_ ? recvWithFds(socket_.get(), space, fds)
                         : recvSome(socket_.get(), space);
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

// Each request that is read makes an answer, so this side does not read from a peer that does not
// read its answers.
bool ControlConnection::isFull() const {
  return !isEnding_ &&
         (answerBytes_ >= limits::kAnswerBytes || answerFds_ >= limits::kAnswerDescriptors);
}

void ControlConnection::watch() {
  // What is being gathered is written soon in any case.
  const bool isGathering = gatherings_ != 0 && gathered_ != 0;
  const bool writes = !outgoing_.empty() && !sendPause_.pending() && !isGathering;
  watch_.setInterest(!isFull(), writes || (isHeld_ && !isFull()));
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
      queue({.bytes = handshake_->rejection()});
      (void)flush();
    }
    return progress.status();
  }
  bytes = bytes.subspan(progress->consumed);
  queue({.bytes = std::move(progress->send)});
  if (progress->done) {
    PEERLANE_ASSIGN(channel_, SecureChannel::create(handshake_->keys()));
    linkKey_ = handshake_->keys().links;
    const PeerIdentity identity = handshake_->peer();
    features_ = identity.features;
    handshake_.reset();
    helloTimer_.cancel();
    const std::shared_ptr<bool> alive = alive_;
    events_.authenticated(identity);
    if (!*alive) {
      bytes = {};
      return Status::ok();
    }
  }
  (void)flush();  // if sending fails, the peer may have sent the reason after its hello
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
      if (gathered_ != 0 && !isOfMany(message)) (void)flush();
      events_.message(std::move(message));
      if (!*alive) return Status::ok();
      continue;
    }
    if (bytes.empty()) return Status::ok();
    PEERLANE_ASSIGN(const size_t taken, channel_->feed(bytes));
    bytes = bytes.subspan(taken);
  }
}

void ControlConnection::queue(Chunk chunk) {
  if (chunk.bytes.empty()) return;
  gathered_ += chunk.bytes.size();
  queuedFds_ += chunk.fds.size();
  answerBytes_ += chunk.answerBytes;
  answerFds_ += chunk.answerFds;
  const bool isJoined = chunk.fds.empty() && !outgoing_.empty() &&
                        outgoing_.back().bytes.size() + chunk.bytes.size() <= kJoinedBytes;
  if (!isJoined) return outgoing_.push_back(std::move(chunk));
  Chunk& last = outgoing_.back();
  last.bytes.insert(last.bytes.end(), chunk.bytes.begin(), chunk.bytes.end());
  last.answerBytes += chunk.answerBytes;
}

void ControlConnection::Gathering::end() {
  if (*alive_ && --connection_.gatherings_ == 0 && connection_.gathered_ != 0)
    (void)connection_.flush();
}

Status ControlConnection::send(const ControlMessage& message, std::vector<Fd> fds) {
  if (!*alive_ || isLastSent_) return Status(Code::kClosed, "the control connection ended");
  // Queued after messages that the peer does not read, a heartbeat tells it nothing new.
  if (std::holds_alternative<control::Heartbeat>(message) && !flushed()) return Status::ok();
  PEERLANE_CHECK(channel_ != nullptr);
  PEERLANE_CHECK(isUnix_ || fds.empty());
  PEERLANE_ASSIGN(std::vector<std::byte> plain, encodeControl(message, features_));
  Chunk chunk;
  chunk.fds = std::move(fds);
  // Last: a sealed record must go out, because no later one opens without it.
  PEERLANE_ASSIGN(chunk.bytes, channel_->seal(plain));
  if (isAnswer(message)) {
    chunk.answerFds = chunk.fds.size();
    chunk.answerBytes = chunk.bytes.size();
  }
  queue(std::move(chunk));
  const bool isGathered = gatherings_ != 0 && gathered_ < kGatheredBytes && isOfMany(message);
  // A failing write is left for the loop: ending here could destroy the caller.
  if (!isGathered) (void)flush();
  return Status::ok();
}

Status ControlConnection::flush() {
  gathered_ = 0;
  if (connecting_ || sendPause_.pending()) return Status::ok();
  while (!outgoing_.empty()) {
    Chunk& chunk = outgoing_.front();
    const std::span<const std::byte> rest = std::span(chunk.bytes).subspan(chunk.sent);
    std::vector<int> fds;
    for (const Fd& fd : chunk.fds) fds.push_back(fd.get());
    auto sent = fds.empty() ? sendSome(socket_.get(), rest) : sendWithFds(socket_.get(), rest, fds);
    if (!sent.isOk() && sent.status().code() == Code::kUnavailable) {
      // The socket may say all the while that it is ready: look again later, and not at once.
      sendPause_ = loop_.after(kSendPause, [this] { watch_.setInterest(!isFull(), true); });
      watch();
      return Status::ok();
    }
    if (!sent.isOk()) {
      if (sent.status().code() == Code::kTryAgain) break;
      watch_.setInterest(true, true);  // the loop must see it, also for other callers
      return sent.status();
    }
    queuedFds_ -= chunk.fds.size();
    chunk.fds.clear();
    chunk.sent += *sent;
    answerFds_ -= std::exchange(chunk.answerFds, 0);
    if (chunk.sent < chunk.bytes.size()) continue;
    answerBytes_ -= chunk.answerBytes;
    outgoing_.pop_front();
  }
  watch();
  return Status::ok();
}

Result<std::vector<Fd>> ControlConnection::takeFds(size_t count) {
  const bool isShort =
      std::any_of(arrivedFds_.begin(), arrivedFds_.end(), [](const Fd& fd) { return !fd; });
  if (count > arrivedFds_.size() && !isShort)
    return Status(Code::kCorrupt, "a message announces " + std::to_string(count) +
                                      " descriptors, " + std::to_string(arrivedFds_.size()) +
                                      " came");
  std::vector<Fd> fds;
  for (size_t i = 0; i < count; ++i) {
    Fd fd = std::move(arrivedFds_.front());
    arrivedFds_.pop_front();
    if (!fd)
      return Status(Code::kUnavailable,
                    "descriptors that the peer sent were lost, because this process has no free "
                    "ones; raise `ulimit -n`");
    fds.push_back(std::move(fd));
  }
  return fds;
}

}  // namespace peerlane
