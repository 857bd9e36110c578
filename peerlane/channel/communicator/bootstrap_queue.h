// SPDX-License-Identifier: Apache-2.0
//
// BootstrapNote: a control message (note) of the bootstrap in which ranks find each other.
// BootstrapQueue: one queue for the notes of all other ranks, so that a rank waits for none in
// particular. docs/wire.md has the format. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

struct BootstrapNote {
  enum class Kind : uint8_t {
    kHello = 1,   // I am `rank` of `ranks`, and `text` is my ticket
    kWant = 2,    // to rank 0: tickets, from that of `rank` on
    kTicket = 3,  // of `rank`, from rank 0
    kMet = 4,     // to rank 0: I am connected with everybody
    kGo = 5,      // from rank 0: and so is everybody else
    kGaveUp = 6,  // nobody gets a communicator: `code`, `text`
  };
  Kind kind = Kind::kHello;
  Code code = Code::kOk;
  uint32_t rank = 0;
  uint32_t ranks = 0;
  std::string text{};
};

class BootstrapQueue : public std::enable_shared_from_this<BootstrapQueue> {
 public:
  struct Received {
    size_t guest = 0;
    Result<BootstrapNote> note;  // kCorrupt: the guest sent something else
  };

  // From now on the queue takes the notes of `peer`, guest number `guest`, also those that came
  // before.
  void subscribe(PeerCore& peer, size_t guest);
  // The queue takes no more notes of the peer; later ones are kept for other receivers.
  static void unsubscribe(PeerCore& peer);
  static Status sendNote(PeerCore& peer, const BootstrapNote& note);
  // Whether the bytes are (the first piece of) a hello.
  static bool isHello(const std::vector<std::byte>& bytes);

  // Takes no lock.
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  std::optional<Received> next();

 private:
  struct Partial {
    BootstrapNote note;
    bool isOver = false;  // nothing more is taken from this guest
  };
  void add(size_t guest, Partial& partial, const std::vector<std::byte>& bytes);
  void push(size_t guest, Result<BootstrapNote> note);

  Mutex mutex_;
  std::deque<Received> received_ PEERLANE_GUARDED_BY(mutex_);
  std::map<size_t, size_t> untaken_ PEERLANE_GUARDED_BY(mutex_);  // of received_, by guest
  std::atomic<size_t> count_{0};                                  // of received_
};

}  // namespace peerlane
