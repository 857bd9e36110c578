// SPDX-License-Identifier: Apache-2.0
//
// LinkLine: what the two ends of one link say to each other after it was made, through the
// authenticated control connection: in order, and never lost while that connection and the link
// live. For words about the wire itself (further queue pairs, a wire that is made anew), not for
// data: it is as slow as the event loops of both sides. The session implements it
// (session/line/link_lines.h), a transport gets one for each link that it prepares
// (LinkSurroundings::line), and the same transport of the peer has its other end.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace peerlane {

class LinkLine {
 public:
  // Of one message, in bytes.
  static constexpr size_t kMostBytes = 1024;
  // Messages that are kept for an end that does not listen yet. A peer that says more breaks the
  // protocol: kCorrupt ends the connection.
  static constexpr size_t kMostKept = 64;
  using Heard = std::function<void(std::span<const std::byte> words)>;

  virtual ~LinkLine() = default;

  // Any thread, from PendingLink::complete() on. Does not block, and calls nothing back. Messages
  // of one thread keep their order. Once the connection has ended, or the link was given up at
  // either side, a message is dropped without a word. Nothing holds back a side that says much:
  // what the peer does not read is kept here. Requires: at most kMostBytes.
  virtual void say(std::vector<std::byte> words) = 0;
  // Any thread. `heard` is called on the progress thread, for each message of the peer's end, in
  // order, under no lock, and never inside this call; first for those that came before. It may call
  // all functions of the line. The words live until it returns. A second call replaces the first.
  // When the line ends, `heard` is destroyed without a call: the end of the peer, or of the link,
  // is told by Link::close().
  virtual void listen(Heard heard) = 0;
  // Any thread. When it returns, `heard` is not running, was destroyed, and is not called any more;
  // so the caller holds no lock that `heard` takes. Inside `heard` it returns at once, and `heard`
  // is destroyed when it has returned. Messages that come afterwards are dropped, until listen() is
  // called again.
  virtual void stopListening() = 0;
};

}  // namespace peerlane
