// SPDX-License-Identifier: Apache-2.0
//
// ControlConnection: one authenticated, encrypted stream of control messages with a peer, and the
// descriptors that travel beside them on Unix sockets. It parses no message of the peer before the
// handshake is done. Confined to the progress thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "peerlane/core/key_bytes.h"
#include "peerlane/core/limits.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/socket.h"
#include "peerlane/os/unix_peer.h"
#include "peerlane/session/wire/control_message.h"
#include "peerlane/session/wire/handshake.h"
#include "peerlane/session/wire/secure_channel.h"

namespace peerlane {

class ControlConnection {
 public:
  // Descriptors received and not yet taken, in the order of sending. More than this is an attack or
  // a defect.
  static constexpr size_t kMaxWaitingFds = 64;

  // Called from the event loop. `ended` is the last call. close() may be called inside any of them;
  // destruction must wait until they returned.
  struct Events {
    std::function<void(const PeerIdentity&)> authenticated;
    std::function<void(ControlMessage)> message;
    std::function<void(Status)> ended;
  };

  // Takes a connected socket, or one whose connect is in progress (`connecting`).
  static Result<std::unique_ptr<ControlConnection>> create(EventLoop& loop, Fd socket,
                                                           bool connecting, Handshake::Role role,
                                                           HandshakeOptions options, Events events);

  // Queues a message and writes what the socket takes. The descriptors are closed once they are on
  // their way. Errors are those of encoding. `ended` reports a broken socket. A heartbeat is left
  // out while any message waits to be written: at most one is queued. While this side's unsent
  // answers exceed limits::kAnswerBytes or kAnswerDescriptors, it reads nothing from the peer.
  Status send(const ControlMessage& message, std::vector<Fd> fds = {});
  // While one of them exists, the messages of which a list of regions makes many (imports,
  // releases, revocations, their answers) are written together: when the last of them ends, when
  // enough have gathered, or before any other message. Requires: no function of the program is
  // called meanwhile, because it may wait for what the peer does with them.
  class Gathering {
   public:
    explicit Gathering(ControlConnection& connection)
        : connection_(connection), alive_(connection.alive_) {
      ++connection_.gatherings_;
    }
    ~Gathering() { end(); }
    Gathering(const Gathering&) = delete;
    Gathering& operator=(const Gathering&) = delete;

   private:
    void end();
    ControlConnection& connection_;
    const std::shared_ptr<bool> alive_;
  };
  // The same for a connection that may not be authenticated yet, may have ended, or may have sent
  // its last message: then it sends nothing and returns kClosed.
  Status sendIfOpen(const ControlMessage& message) {
    return *alive_ && channel_ && !isLastSent_
               ? send(message)
               : Status(Code::kClosed, "the control connection is not open");
  }
  // Sends the last message of this connection (a goodbye); later ones are dropped. A peer that has
  // received it may close at once, and a message sent after that could reset the connection, so
  // that this side loses the peer's answer.
  Status sendLast(const ControlMessage& message) {
    Status sent = sendIfOpen(message);
    isLastSent_ = true;
    return sent;
  }
  // The next `count` descriptors that came in; kCorrupt when fewer came; kUnavailable when this
  // process had no room for one of them: they are lost, and the peer did nothing wrong.
  Result<std::vector<Fd>> takeFds(size_t count);

  // True until either side ended it.
  bool open() const { return *alive_; }
  bool isUnix() const { return isUnix_; }
  int socket() const { return socket_.get(); }
  // SessionKeys::links, once; all zero before the handshake.
  KeyBytes takeLinkKey() { return std::exchange(linkKey_, KeyBytes()); }
  // When this side last received bytes.
  std::chrono::steady_clock::time_point lastHeard() const { return lastHeard_; }
  // Descriptors that wait to be sent, because the peer asks and does not read.
  size_t queuedFds() const { return queuedFds_; }
  // Reads and handles everything in the socket's buffer, for a caller that knows by other means
  // that the peer has ended, even if sending already fails. May call `message`, which may close
  // this connection.
  void readRest();
  // True when the kernel has taken every queued message.
  bool flushed() const { return outgoing_.empty(); }
  // True when, in addition, no byte of them is lost if this socket is closed while unread bytes of
  // the peer wait in it.
  bool isTaken() const { return flushed() && bytesOnTheWay(socket_.get()) == 0; }
  // No events after this call.
  void close();

  ~ControlConnection() { *alive_ = false; }

 private:
  struct Chunk {
    std::vector<std::byte> bytes;
    size_t sent = 0;
    std::vector<Fd> fds{};  // travel with the first byte
    // Of both, what answers requests of the peer.
    size_t answerFds = 0;
    size_t answerBytes = 0;
  };

  ControlConnection(EventLoop& loop, Fd socket, bool isUnix, std::unique_ptr<Handshake> handshake,
                    Events events);
  void onReady();
  void onLate(std::chrono::nanoseconds patience);
  Status readSome(int rounds);
  Status handle(std::span<const std::byte> bytes);
  Status handshakeBytes(std::span<const std::byte>& bytes);
  Status records(std::span<const std::byte> bytes);
  Status flush();
  bool isFull() const;
  void watch();
  void queue(Chunk chunk);
  void end(Status status);

  EventLoop& loop_;
  Fd socket_;
  const bool isUnix_;
  bool connecting_ = false;
  bool isLastSent_ = false;
  KeyBytes linkKey_;
  uint64_t features_ = 0;  // that both sides have
  std::unique_ptr<Handshake> handshake_;
  std::unique_ptr<SecureChannel> channel_;
  Events events_;
  Watch watch_;
  Timer helloTimer_;
  Timer sendPause_;  // the kernel had no room for what is to be sent
  std::deque<Chunk> outgoing_;
  size_t queuedFds_ = 0;   // in outgoing_
  size_t gatherings_ = 0;  // that exist
  size_t gathered_ = 0;    // bytes queued since the last flush()
  // Bytes in outgoing_ that answer requests of a peer that does not read them. Above the limit this
  // side reads nothing more from it.
  size_t answerBytes_ = 0;
  size_t answerFds_ = 0;
  std::vector<std::byte> held_;  // bytes received meanwhile, not yet handled
  bool isHeld_ = false;          // there are held bytes, here or inside channel_
  bool isEnding_ = false;        // read everything, however much is queued
  std::deque<Fd> arrivedFds_;    // an empty one: some are missing from here on
  std::chrono::steady_clock::time_point lastHeard_;
  std::shared_ptr<bool>
      alive_;  // false once destroyed or closed: events may end us in the middle of a loop
};

}  // namespace peerlane
