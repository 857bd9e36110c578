// SPDX-License-Identifier: Apache-2.0
//
// ControlConnection: one authenticated, encrypted stream of control messages with a peer, and the
// descriptors that travel beside them on Unix sockets. Nothing of the peer is parsed before the
// handshake is done. Confined to the progress thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

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

  // Called from the event loop. After `ended` nothing is called any more. close() may be called
  // inside any of them; destruction must wait until they returned.
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
  // their way. Errors are those of encoding. A broken socket is told by `ended`. A heartbeat is
  // left out while anything waits: at most one is queued. While answers of this side wait beyond
  // limits::kAnswerBytes or kAnswerDescriptors, nothing is read from the peer.
  Status send(const ControlMessage& message, std::vector<Fd> fds = {});
  // The same for a connection that may not be authenticated yet, or have ended, or on which the
  // last message was sent: then nothing is sent.
  Status sendIfOpen(const ControlMessage& message) {
    return *alive_ && channel_ && !isLastSent_
               ? send(message)
               : Status(Code::kClosed, "the control connection is not open");
  }
  // The last one: what is sent afterwards is dropped. A peer that has heard it may close at once,
  // and what would then still come might cost this side its answer.
  Status sendLast(const ControlMessage& message) {
    Status sent = sendIfOpen(message);
    isLastSent_ = true;
    return sent;
  }
  // The next `count` descriptors that came in; kCorrupt when fewer came; kUnavailable when this
  // process had no room for one of them: they are lost, and nobody broke a rule.
  Result<std::vector<Fd>> takeFds(size_t count);

  // Neither side ended it yet.
  bool open() const { return *alive_; }
  bool isUnix() const { return isUnix_; }
  int socket() const { return socket_.get(); }
  // When bytes last came in.
  std::chrono::steady_clock::time_point lastHeard() const { return lastHeard_; }
  // Descriptors that wait to be sent: of a peer who asks and does not read.
  size_t queuedFds() const {
    size_t count = 0;
    for (const Chunk& chunk : outgoing_) count += chunk.fds.size();
    return count;
  }
  // Takes in all that lies in the socket, for who knows by other means that the peer ends. May call
  // `message`, and whatever that does.
  void readRest();
  // Everything queued is on the wire.
  bool flushed() const { return outgoing_.empty(); }
  // And nothing of it is lost when this socket is closed though the peer has sent more.
  bool isTaken() const { return flushed() && bytesOnTheWay(socket_.get()) == 0; }
  // No events after this call.
  void close();

  ~ControlConnection() { *alive_ = false; }

 private:
  struct Chunk {
    std::vector<std::byte> bytes;
    size_t sent = 0;
    std::vector<Fd> fds;  // travel with the first byte
    size_t answerFds = 0;
    bool isAnswer = false;  // to what the peer asked
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
  void queue(std::vector<std::byte> bytes);
  void end(Status status);

  EventLoop& loop_;
  Fd socket_;
  const bool isUnix_;
  bool connecting_ = false;
  bool isLastSent_ = false;
  std::unique_ptr<Handshake> handshake_;
  std::unique_ptr<SecureChannel> channel_;
  Events events_;
  Watch watch_;
  Timer helloTimer_;
  Timer sendPause_;  // the kernel had no room for what is to be sent
  std::deque<Chunk> outgoing_;
  // Of outgoing_: what the peer asked for and does not read. Nothing more is read from it
  // meanwhile.
  size_t answerBytes_ = 0;
  size_t answerFds_ = 0;
  std::vector<std::byte> held_;  // received then, and not looked at
  bool isHeld_ = false;          // there is some, be it inside channel_
  bool isEnding_ = false;        // all of it is read, whatever is queued
  std::deque<Fd> arrivedFds_;    // an empty one: some are missing from here on
  std::chrono::steady_clock::time_point lastHeard_;
  std::shared_ptr<bool>
      alive_;  // false once destroyed or closed: events may end us in the middle of a loop
};

}  // namespace peerlane
