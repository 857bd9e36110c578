// SPDX-License-Identifier: Apache-2.0
#include "tests/guest/traffic/traffic_side.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>

namespace peerlane::guest {
namespace {

constexpr uint32_t kRegions = 0;  // channels for messages of set-up and end
constexpr uint32_t kGoodbyes = 1;
constexpr uint32_t kArrived = 3;  // the signal
constexpr uint32_t kTag = 9;      // of messages that say what arrived
constexpr uint64_t kMostOfBlock = 16384;

// The first word of a piece: that its round is the last one.
constexpr uint64_t kLast = 0x7473616c7473616c;

uint64_t wordAt(uint64_t seed, uint64_t at) {
  uint64_t word = (seed * 0x9e3779b97f4a7c15 + at) * 0xbf58476d1ce4e5b9;
  return word ^ (word >> 29);
}

void fill(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = wordAt(seed, at);
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, bytes.size() - at));
  }
}

uint64_t firstWord(std::span<const std::byte> bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof word);
  return word;
}

bool isLost(const Status& status) {
  return status.code() == Code::kPeerLost || status.code() == Code::kPeerSilent;
}

}  // namespace

TrafficSide::TrafficSide(Peer peer, bool isLeft, const TrafficPlan& plan)
    : peer_(std::move(peer)), isLeft_(isLeft), plan_(plan) {}

Result<std::unique_ptr<TrafficSide>> TrafficSide::create(Context& context, Peer peer, bool isLeft,
                                                         const TrafficPlan& plan) {
  std::unique_ptr<TrafficSide> side(new TrafficSide(std::move(peer), isLeft, plan));
  PEERLANE_RETURN_IF_ERROR(side->share(context));
  return side;
}

Status TrafficSide::share(Context& context) {
  PEERLANE_ASSIGN(region_, context.allocate(6 * plan_.bytes));
  PEERLANE_RETURN_IF_ERROR(peer_.sendMessage(kRegions, region_.share(), kPatience));
  PEERLANE_ASSIGN(const auto reference, peer_.receiveMessage(kRegions, kPatience));
  PEERLANE_ASSIGN(theirs_, peer_.importRegion(reference));
  lastDone_ = Clock::now().time_since_epoch().count();
  return theirs_.prepare(kPatience);
}

Status TrafficSide::run() {
  for (uint64_t number = 1;; ++number) {
    auto isLast = round(number);
    if (!isLast.isOk()) return isLast.status().withContext("round " + std::to_string(number));
    done_.store(number, std::memory_order_release);
    lastDone_.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
    if (*isLast) break;
  }
  // The other end may still get the last piece.
  PEERLANE_RETURN_IF_ERROR(peer_.sendMessage(kGoodbyes, {}, kPatience));
  return peer_.receiveMessage(kGoodbyes, kPatience).status();
}

Result<bool> TrafficSide::round(uint64_t number) {
  const bool isLast = number == plan_.rounds || isStopped_.load(std::memory_order_relaxed);
  const std::span<std::byte> mine = piece(kOutbox, number);
  fill(mine, 2 * number + (isLeft_ ? 1 : 0));
  if (isLast) std::memcpy(mine.data(), &kLast, sizeof kLast);
  PEERLANE_RETURN_IF_ERROR(put(number));
  PEERLANE_RETURN_IF_ERROR(waitFor(number));
  PEERLANE_RETURN_IF_ERROR(look(kInbox, number));
  PEERLANE_RETURN_IF_ERROR(getBack(number));
  PEERLANE_RETURN_IF_ERROR(look(kReturned, number));
  return isLast || firstWord(piece(kInbox, number)) == kLast;
}

template <typename Post>
Status TrafficSide::move(const Post& post) {
  for (const auto begin = Clock::now();;) {
    const Result<Transfer> posted = post();
    Status ended = posted.isOk() ? posted->wait(kPatience) : posted.status();
    if (ended.isOk() || !plan_.again || !isLost(ended)) return ended;
    if (Clock::now() - begin > kPatience) return ended.withContext("also when made again");
    ++madeAgain_;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Status TrafficSide::put(uint64_t number) {
  const std::vector<Block> list = blocks(kOutbox, kInbox, number, 2 * number);
  PostOptions options;
  const auto* const bytes = reinterpret_cast<const std::byte*>(&number);
  if (plan_.again) {
    options.notify.message = std::span(bytes, sizeof number);
    options.notify.tag = kTag;
  } else {
    options.notify.signal = kArrived;
  }
  PEERLANE_RETURN_IF_ERROR(move([&] { return peerlane::put(peer_, list, options); }));
  moved_ += plan_.bytes;
  return Status::ok();
}

Status TrafficSide::waitFor(uint64_t number) {
  if (!plan_.again) {
    PEERLANE_ASSIGN(const Signal signal, Signal::create(peer_, kArrived));
    return signal.wait(number, kPatience);
  }
  for (;;) {
    PEERLANE_ASSIGN(const Notification came, waitNotification(peer_, kPatience));
    uint64_t which = 0;
    if (came.message.size() == sizeof which) std::memcpy(&which, came.message.data(), sizeof which);
    if (which == number) return Status::ok();
    // A put that was made again had arrived before.
    if (which == 0 || which > number)
      return Status(Code::kCorrupt, "message of round " + std::to_string(which));
  }
}

Status TrafficSide::getBack(uint64_t number) {
  const std::vector<Block> list = blocks(kReturned, kOutbox, number, 2 * number + 1);
  PEERLANE_RETURN_IF_ERROR(move([&] { return peerlane::get(peer_, list); }));
  moved_ += plan_.bytes;
  return Status::ok();
}

// All of a piece, in blocks of random sizes and in a random order.
std::vector<Block> TrafficSide::blocks(Place local, Place remote, uint64_t number,
                                       uint64_t seed) const {
  std::mt19937_64 random(seed);
  std::vector<Block> list;
  for (uint64_t at = 0; at < plan_.bytes;) {
    const uint64_t bytes = std::min(1 + random() % kMostOfBlock, plan_.bytes - at);
    list.push_back(
        {&region_, offsetOf(local, number) + at, &theirs_, offsetOf(remote, number) + at, bytes});
    at += bytes;
  }
  std::shuffle(list.begin(), list.end(), random);
  return list;
}

Status TrafficSide::look(Place place, uint64_t number) const {
  const std::span<const std::byte> bytes = piece(place, number);
  const uint64_t seed = 2 * number + (isLeft_ ? 0 : 1);
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t expected = wordAt(seed, at);
    const size_t count = std::min<size_t>(8, bytes.size() - at);
    if (std::memcmp(bytes.data() + at, &expected, count) == 0) continue;
    if (at == 0 && firstWord(bytes) == kLast) continue;
    return Status(Code::kCorrupt, "wrong bytes at " + std::to_string(at) + " of what was " +
                                      (place == kInbox ? "put here" : "got"));
  }
  return Status::ok();
}

}  // namespace peerlane::guest
