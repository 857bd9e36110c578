// SPDX-License-Identifier: Apache-2.0
//
// TrafficSide: one end of a connection over which both ends write to each other in rounds, and look
// at every byte. In a round each end puts a piece in many blocks and adds to a signal, waits for
// the other's, looks at it, and gets the other's piece once more. There is room for two pieces of
// each kind, so the end of one round tells that the place of the next is free: nothing but the link
// under test says so. Confined to one thread, but for done(), lastDone() and stop().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/peerlane.h"

namespace peerlane::guest {

using Clock = std::chrono::steady_clock;

inline constexpr std::chrono::seconds kPatience{120};  // a bound for an emulator, no pace

// Rounds that both ends agree on by what they were started with.
struct TrafficPlan {
  uint64_t rounds = 0;  // 0: until stop() here or there, or until the connection ends
  uint64_t bytes = 0;   // of a piece
  // A transfer that failed for the link is made again: by another link, if there is one. What
  // arrives is then told by messages, which say what they are.
  bool again = false;
};

class TrafficSide {
 public:
  // `isLeft`: the two ends fill their pieces with different bytes. Errors: as of the calls.
  static Result<std::unique_ptr<TrafficSide>> create(Context& context, Peer peer, bool isLeft,
                                                     const TrafficPlan& plan);

  // All rounds; OK when both ends have seen all. kCorrupt: a byte is wrong; else how a transfer or
  // a wait ended.
  Status run();
  // Both ends stop after a round that has not begun yet.
  void stop() { isStopped_.store(true, std::memory_order_relaxed); }

  const Peer& peer() const { return peer_; }
  // Rounds of which all was seen here.
  uint64_t done() const { return done_.load(std::memory_order_acquire); }
  Clock::time_point lastDone() const {
    return Clock::time_point(Clock::duration(lastDone_.load(std::memory_order_acquire)));
  }
  // What this end has put and got.
  uint64_t moved() const { return moved_; }
  // Transfers that were made again.
  uint64_t madeAgain() const { return madeAgain_; }

 private:
  TrafficSide(Peer peer, bool isLeft, const TrafficPlan& plan);
  Status share(Context& context);

  // One round; true: it was the last.
  Result<bool> round(uint64_t number);
  Status put(uint64_t number);
  Status waitFor(uint64_t number);
  Status getBack(uint64_t number);
  // Posts until it is done, or cannot be made again.
  template <typename Post>
  Status move(const Post& post);

  // Places of the region, of either side: what it sends, what it receives, what it got back.
  enum Place : uint64_t { kOutbox, kInbox, kReturned };
  uint64_t offsetOf(Place place, uint64_t number) const {
    return (2 * place + number % 2) * plan_.bytes;
  }
  std::span<std::byte> piece(Place place, uint64_t number) const {
    return {region_.data() + offsetOf(place, number), plan_.bytes};
  }
  std::vector<Block> blocks(Place local, Place remote, uint64_t number, uint64_t seed) const;
  Status look(Place place, uint64_t number) const;

  Peer peer_;
  const bool isLeft_;
  const TrafficPlan plan_;
  Region region_;
  RemoteRegion theirs_;
  std::atomic<bool> isStopped_ = false;
  std::atomic<uint64_t> done_ = 0;
  std::atomic<Clock::rep> lastDone_ = 0;
  uint64_t moved_ = 0;
  uint64_t madeAgain_ = 0;
};

}  // namespace peerlane::guest
