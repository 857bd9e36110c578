// SPDX-License-Identifier: Apache-2.0
//
// Dialer: one call of connect() to a context that may be reached at several addresses. They are
// raced as by "Happy Eyeballs" (RFC 8305): one begins when the one before has failed, or has kept
// quiet for a moment; the first at which the other side shows that it knows the secret wins, and
// the others end before it has seen a peer there. One address that cannot be resolved, does not
// answer, or leads to somebody else costs nothing but its own attempt, and the end of them all says
// why each one failed.
//
// Threads: used once, by one thread, not the progress thread.
// Owner: the call of Connector that dials.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/os/socket_address.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class Dialer {
 public:
  using Clock = std::chrono::steady_clock;
  using Done = std::function<void(const std::shared_ptr<PeerCore>&, Status)>;
  // Makes a peer of a socket whose connect is in progress; `done` is called once. Progress thread.
  using Begin = std::function<std::shared_ptr<PeerCore>(Fd socket, std::function<bool()> mayGoOn,
                                                        const Done& done)>;

  // `whom`: for timeouts and dumps.
  Dialer(Progress& progress, std::string whom, Begin begin)
      : progress_(progress), whom_(std::move(whom)), begin_(std::move(begin)) {}
  ~Dialer();
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  // In the order of preference. Names are looked up meanwhile, for as long as dial() lasts.
  void add(const std::string& text);
  // One that is not tried, and why.
  void leaveOut(const std::string& text, const std::string& why);

  // The peer, ready or turned back (PeerCore::turnedBack). Errors: the most telling one of
  // kPermissionDenied, kNotSupported, kTimeout and kUnavailable; kInvalidArgument when no address
  // can be read. Each says of every address why, and, where the time is over, what was waited for.
  Result<std::shared_ptr<PeerCore>> dial(Clock::time_point deadline);

 private:
  // Before the next one begins though this one has not failed. A listener at a Unix socket is on
  // this host: its answer is worth a longer wait than the worse link at its other addresses.
  static constexpr std::chrono::milliseconds kStagger{250};
  static constexpr std::chrono::milliseconds kUnixStagger{2000};
  // Between two tries where the other side has no room: at least, and as much again by chance.
  static constexpr std::chrono::milliseconds kRetry{5};
  // Between looks at names that are being looked up.
  static constexpr std::chrono::milliseconds kLookUp{10};

  struct Attempt;
  struct Race;
  struct LookUp;
  using Attempts = std::vector<std::shared_ptr<Attempt>>;

  void takeLookUps();
  void startDue(Clock::time_point now);
  void start(const std::shared_ptr<Attempt>& attempt, Clock::time_point now);
  void failed(Attempt& attempt, const Status& why, Clock::time_point now);
  // The attempt that decides, if one has.
  std::shared_ptr<Attempt> takeEnded(Clock::time_point now);
  Clock::time_point nextLook(Clock::time_point deadline) const;
  bool isOver() const;
  void abandon();
  void noteWhatIsOpen();
  std::string openInWords() const;
  Status verdict(const std::string& head) const;

  Progress& progress_;
  const std::string whom_;
  const Begin begin_;
  std::shared_ptr<Race> race_;
  Attempts attempts_;
  std::vector<std::pair<std::string, std::string>> leftOut_;
  std::vector<std::pair<std::string, Status>> unread_;  // no address came of them
  std::vector<std::shared_ptr<LookUp>> lookUps_;
  Clock::time_point nextStart_{};
  // Seeded by the clock: std::random_device takes 10 us where a hypervisor answers cpuid.
  std::minstd_rand chance_{static_cast<uint32_t>(Clock::now().time_since_epoch().count())};
  std::string asked_;  // constant while dial() lasts
  mutable Mutex lastMutex_;
  std::string last_ PEERLANE_GUARDED_BY(lastMutex_);  // the last attempt that failed, and why
};

}  // namespace peerlane
