// SPDX-License-Identifier: Apache-2.0
//
// Port channels inside a kernel: put, get, signal, wait, poll and flush. A thread, a warp or a
// block calls them, with no host in between where memory is mapped. The same source runs in CPU
// threads. Handles are plain values, made by PortChannel::deviceHandle() (port_channel.h has the
// host's side); they are valid until the service, or the semaphore that they name, is gone.
//
//   __global__ void ping(peerlane::PortChannelHandle channel) {
//     const peerlane::port::ThisWarp warp;
//     channel.putWithSignal(warp, 0, 0, 1024);     // offsets in the channel's own two memories
//     if (!channel.wait(warp)) return;             // until the peer has signalled once more
//   }
//
// Engines. The calling threads carry a call out themselves (*inline*) where both memories have
// addresses here and the call is small enough. Else they ask the proxy, through a FIFO, or the
// resident port, where there is one. The proxy uses the copy engine or, over links that cannot map,
// an agent.
//
// Order. A signal, and a flush, covers all puts that threads of the device made through its
// semaphore before it, whichever thread made them, if they happen before it. Puts are unordered
// among each other. After a wait the whole team may read everything whose signal the wait has seen.
// A handle that is bound to one engine orders only the calls that go by that engine.
//
// Source. A put reads its source until the put was flushed, or until the peer has answered a signal
// that came after it. (With kInline: until the call returns.)
//
// The object model is that of mscclpp's PortChannel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/device_code.h"
#include "peerlane/program/ring/packet_device.h"
#include "peerlane/program/ring/resident_port_device.h"
#include "peerlane/program/words/shared_word.h"
#include "peerlane/program/words/team.h"
#include "peerlane/progress/fifo_device.h"

namespace peerlane {

enum class PortEngine : uint32_t {
  kAuto,    // by size: inline up to the limits of the handle
  kInline,  // the calling threads; refused where memory is not mapped
  kCe,      // the proxy: copy engine, or the agent of the link
  kSm,      // the resident port where there is one and it is awake; else as kCe
};

// How a call ended. In tests and `if`, a result of kOk is true.
enum class PortOutcome : uint32_t {
  kOk = 0,
  kTimeout = 1,  // the bound is over; nothing was consumed
  kEnded = 2,    // the peer, or the service, is gone: PortChannel::status() says why
  kInvalid = 3,  // refused: out of range, unknown memory; PortChannel::status() says which
};

// The result of a call on the device.
struct PortResult {
  PortOutcome outcome = PortOutcome::kOk;
  PEERLANE_DEVICE constexpr explicit operator bool() const { return outcome == PortOutcome::kOk; }
};

namespace port {

// Without a bound.
inline constexpr uint64_t kForever = ~uint64_t{0};

// The counter by which one side counts the other's signals, in the waiter's memory. It has two
// words with one kind of writer each, so a GPU's threads and its copy engine need no atomic
// operation between them.
struct alignas(64) SemaphoreLine {
  WordPair words;  // first: threads of the peer add; second: its proxy stores its running total
};

// The rest of a semaphore, in memory of the device that owns it. 64 bytes.
struct alignas(64) SemaphoreState {
  uint64_t expected = 0;  // signals that were waited for; threads of the device
  uint64_t sent = 0;      // signals that were given; threads of the device, for signalTo()
  uint64_t pushed = 0;    // position after the last request of this semaphore
  uint64_t done = 0;      // position up to which its requests are done; written by a copy engine
  uint64_t residentPushed = 0;  // the same two for the resident port
  uint64_t residentDone = 0;
};

// One memory as threads of the device see it. No address: not mapped, or removed.
struct alignas(16) MemoryEntry {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
};

// Words of the host, one pair for each semaphore, on a line of their own.
struct alignas(64) SemaphoreHealth {
  uint64_t ended = 0;  // the host stores a Code: nothing will come any more
  uint64_t fault = 0;  // a thread of the device stores why it was refused (faultWord)
  uint64_t done = 0;   // as SemaphoreState::done where a CPU writes it
};

// Why a thread of the device was refused.
enum class Fault : uint64_t {
  kNone = 0,
  kOutOfRange = 1,  // detail: the offset
  kNotMapped = 2,   // detail: the id
  kTooLarge = 3,    // detail: the size
  kMisaligned = 4,  // detail: what is not a multiple of 8 or 16
};
inline constexpr uint32_t kFaultShift = 56;
PEERLANE_DEVICE constexpr uint64_t faultWord(Fault fault, uint64_t detail) {
  return static_cast<uint64_t>(fault) << kFaultShift |
         (detail & ((uint64_t{1} << kFaultShift) - 1));
}

// The health words lie in the host's memory, so a waiter looks at them once in so many polls.
inline constexpr uint32_t kPollsPerHealthLook = 128;

}  // namespace port

// Signals alone: a semaphore whose peer is mapped. One thread of the team acts.
struct PortSemaphoreHandle {
  const port::SemaphoreLine* inbound = nullptr;  // this side's
  port::SemaphoreLine* outbound = nullptr;  // the peer's, mapped; null: only the proxy reaches it
  port::SemaphoreState* state = nullptr;
  const uint64_t* done = nullptr;  // position up to which this semaphore's requests are done
  port::SemaphoreHealth* health = nullptr;

  // How often the peer has signalled so far. Acquire.
  PEERLANE_DEVICE uint64_t value() const {
    const port::WordPair words = port::loadPairAcquire(&inbound->words);
    return words.first + words.second;
  }

  // Consumes `count` signals; the whole team goes on when they are there. With a bound, in
  // nanoseconds, a wait that ends without them consumes nothing.
  template <class Team>
  PEERLANE_DEVICE PortResult wait(const Team& team, uint64_t count = 1,
                                  uint64_t bound = port::kForever) const {
    uint32_t outcome = 0;
    if (team.rank() == 0)
      outcome = static_cast<uint32_t>(bound == port::kForever ? waitForever(count)
                                                              : waitBounded(count, bound));
    return {static_cast<PortOutcome>(team.agree(outcome))};
  }

  // Consumes `count` signals if they are there; kTimeout when not.
  template <class Team>
  PEERLANE_DEVICE PortResult poll(const Team& team, uint64_t count = 1) const {
    uint32_t outcome = 0;
    if (team.rank() == 0) outcome = static_cast<uint32_t>(claim(count, loadHealth()));
    return {static_cast<PortOutcome>(team.agree(outcome))};
  }

  // Waits until the peer has signalled `total` in all; consumes nothing.
  template <class Team>
  PEERLANE_DEVICE PortResult waitUntil(const Team& team, uint64_t total,
                                       uint64_t bound = port::kForever) const {
    uint32_t outcome = 0;
    if (team.rank() == 0) outcome = static_cast<uint32_t>(awaitTotal(total, bound));
    return {static_cast<PortOutcome>(team.agree(outcome))};
  }

  // Takes LL packets (PortChannelHandle::putPackets) that the peer writes to `packets`, memory of
  // this device, and stores their `bytes` bytes of data to `to`. Needs no signal; the semaphore
  // tells when no packets will come any more. Requires: as writePackets(). kTimeout, kEnded: some
  // may have been taken.
  template <class Team>
  PEERLANE_DEVICE PortResult takePackets(const Team& team, const std::byte* packets, std::byte* to,
                                         uint64_t bytes, uint32_t flag,
                                         uint64_t bound = port::kForever) const {
    const auto* const pairs = reinterpret_cast<const port::WordPair*>(packets);
    auto* const words = reinterpret_cast<uint32_t*>(to);
    PortOutcome outcome = PortOutcome::kOk;
    uint64_t begin = 0;
    for (uint64_t i = team.rank();
         i < bytes / port::kPacketDataBytes && outcome == PortOutcome::kOk; i += team.size())
      for (uint32_t polls = 1; !port::readPacket(pairs + i, words + 2 * i, flag); ++polls) {
        port::pauseBetween(polls);
        if (polls % port::kPollsPerHealthLook != 0) continue;
        if (loadHealth() != 0 && !port::readPacket(pairs + i, words + 2 * i, flag)) {
          outcome = PortOutcome::kEnded;
          break;
        }
        if (bound == port::kForever) continue;
        const uint64_t now = port::nanoseconds();
        if (begin == 0) begin = now;
        if (now - begin < bound) continue;
        outcome = PortOutcome::kTimeout;
        break;
      }
    // Also the barrier after which the whole team may read all of it.
    if (team.any(outcome == PortOutcome::kEnded)) return {PortOutcome::kEnded};
    if (team.any(outcome == PortOutcome::kTimeout)) return {PortOutcome::kTimeout};
    return {};
  }

  // Adds `count` to the counter that the peer waits for. Everything that the team has stored
  // before, also in the peer's memory, is visible there first. Requires: a mapped peer.
  template <class Team>
  PEERLANE_DEVICE void signal(const Team& team, uint64_t count = 1) const {
    team.sync();
    if (team.rank() != 0) return;
    // The count for signalTo() comes last: a release would wait for it.
    port::addRelease(&outbound->words.first, count);
    (void)port::fetchAdd(&state->sent, count);
  }

  // --- By one thread ---
  PEERLANE_DEVICE uint64_t loadHealth() const { return port::loadRelaxed(&health->ended); }

  PEERLANE_DEVICE PortOutcome awaitTotal(uint64_t total, uint64_t bound) const {
    uint64_t begin = 0;
    for (uint32_t polls = 1;; ++polls) {
      if (value() >= total) return PortOutcome::kOk;
      port::pauseBetween(polls);
      if (polls % port::kPollsPerHealthLook != 0) continue;
      if (loadHealth() != 0) return value() >= total ? PortOutcome::kOk : PortOutcome::kEnded;
      if (bound == port::kForever) continue;
      const uint64_t now = port::nanoseconds();
      if (begin == 0) begin = now;
      if (now - begin >= bound) return PortOutcome::kTimeout;
    }
  }
  // The waiter takes its place in the line of waiters first: this costs nothing while the signal is
  // under way.
  PEERLANE_DEVICE PortOutcome waitForever(uint64_t count) const {
    return awaitTotal(port::fetchAdd(&state->expected, count) + count, port::kForever);
  }
  // A waiter that may give up takes no place: a later waiter's place would be one too far.
  PEERLANE_DEVICE PortOutcome waitBounded(uint64_t count, uint64_t bound) const {
    const uint64_t begin = port::nanoseconds();
    for (uint32_t polls = 1;; ++polls) {
      const PortOutcome claimed = claim(count, loadHealth());
      if (claimed != PortOutcome::kTimeout) return claimed;
      if (port::nanoseconds() - begin >= bound) return PortOutcome::kTimeout;
      port::pauseBetween(polls);
    }
  }
  // `ended`: read before the line, so that signals that came before the end still count.
  PEERLANE_DEVICE PortOutcome claim(uint64_t count, uint64_t ended) const {
    for (;;) {
      const uint64_t before = port::loadRelaxed(&state->expected);
      if (value() < before + count) return ended != 0 ? PortOutcome::kEnded : PortOutcome::kTimeout;
      if (port::exchangeIf(&state->expected, before, before + count)) return PortOutcome::kOk;
    }
  }
};

// A place in one of the service's memories.
struct PortPlace {
  uint32_t memory = 0;  // MemoryId
  uint64_t offset = 0;
};

// A semaphore with two memories of its own and a way to the proxy. Offsets are in bytes. A call
// that leaves its memories' ranges returns kInvalid; where the proxy has to find that, it ends the
// semaphore at both sides. Calls that wait return kEnded when the service or the peer is gone;
// requests and signals issued after that are dropped.
struct PortChannelHandle {
  PortSemaphoreHandle semaphore;
  port::FifoHandle fifo;
  const port::MemoryEntry* memories = nullptr;
  uint32_t memoryCount = 0;
  uint32_t number = 0;  // of the semaphore
  PortPlace remote{};   // where offsets of the short calls are; its offset is 0, as the next one's
  PortPlace local{};
  port::MemoryEntry remoteEntry{};
  port::MemoryEntry localEntry{};
  PortEngine engine = PortEngine::kAuto;
  // Calls of up to so many bytes go inline, by kind of team.
  uint64_t inlineBytes[port::kTeamKinds] = {};
  // Calls of more bytes, and of up to `residentBytes`, ask the resident port.
  port::ResidentHandle resident{};
  uint64_t residentBytes = 0;

  // Copies bytes from `localOffset` to `remoteOffset` at the peer.
  template <class Team>
  PEERLANE_DEVICE PortResult put(const Team& team, uint64_t remoteOffset, uint64_t localOffset,
                                 uint64_t bytes) const {
    return move(team, port::kPutVerb, {remote.memory, remoteOffset}, {local.memory, localOffset},
                remoteEntry, localEntry, bytes, 0);
  }
  template <class Team>
  PEERLANE_DEVICE PortResult put(const Team& team, PortPlace to, PortPlace from,
                                 uint64_t bytes) const {
    return move(team, port::kPutVerb, to, from, entry(to), entry(from), bytes, 0);
  }
  // Copies bytes from the peer. They are here after the next flush.
  template <class Team>
  PEERLANE_DEVICE PortResult get(const Team& team, uint64_t localOffset, uint64_t remoteOffset,
                                 uint64_t bytes) const {
    return move(team, port::kGetVerb, {local.memory, localOffset}, {remote.memory, remoteOffset},
                localEntry, remoteEntry, bytes, 0);
  }
  template <class Team>
  PEERLANE_DEVICE PortResult get(const Team& team, PortPlace to, PortPlace from,
                                 uint64_t bytes) const {
    return move(team, port::kGetVerb, to, from, entry(to), entry(from), bytes, 0);
  }
  // A put and a signal in one request: a wait of the peer that sees the signal sees the bytes.
  template <class Team>
  PEERLANE_DEVICE PortResult putWithSignal(const Team& team, uint64_t remoteOffset,
                                           uint64_t localOffset, uint64_t bytes,
                                           uint64_t count = 1) const {
    return move(team, port::kPutVerb | port::kSignalVerb, {remote.memory, remoteOffset},
                {local.memory, localOffset}, remoteEntry, localEntry, bytes, count);
  }
  template <class Team>
  PEERLANE_DEVICE PortResult putWithSignal(const Team& team, PortPlace to, PortPlace from,
                                           uint64_t bytes, uint64_t count = 1) const {
    return move(team, port::kPutVerb | port::kSignalVerb, to, from, entry(to), entry(from), bytes,
                count);
  }
  // The same, and waits until the source may be written again.
  template <class Team>
  PEERLANE_DEVICE PortResult putWithSignalAndFlush(const Team& team, uint64_t remoteOffset,
                                                   uint64_t localOffset, uint64_t bytes,
                                                   uint64_t bound = port::kForever) const {
    return move(team, port::kPutVerb | port::kSignalVerb | port::kFlushVerb,
                {remote.memory, remoteOffset}, {local.memory, localOffset}, remoteEntry, localEntry,
                bytes, 1, bound);
  }

  // Writes `bytes` bytes from `localOffset` as LL packets (packet_device.h), which take twice the
  // room, to `remoteOffset`, where the peer takes them (takePackets) without a signal. The team
  // does so itself, whatever the engine; refused where memory is not mapped. `remoteOffset` must be
  // a multiple of 16, `localOffset` and `bytes` of 8, and `flag` neither 0 nor the one that lies
  // there. Ordered with no other call.
  template <class Team>
  PEERLANE_DEVICE PortResult putPackets(const Team& team, uint64_t remoteOffset,
                                        uint64_t localOffset, uint64_t bytes, uint32_t flag) const {
    if (remoteEntry.address == nullptr) return {refuse(port::Fault::kNotMapped, remote.memory)};
    if (localEntry.address == nullptr) return {refuse(port::Fault::kNotMapped, local.memory)};
    if (const uint64_t odd = remoteOffset % port::kPacketBytes != 0      ? remoteOffset
                             : localOffset % port::kPacketDataBytes != 0 ? localOffset
                             : bytes % port::kPacketDataBytes != 0       ? bytes
                                                                         : 0;
        odd != 0)
      return {refuse(port::Fault::kMisaligned, odd)};
    if (bytes >> 62 != 0) return {refuse(port::Fault::kTooLarge, bytes)};
    if (check({remote.memory, remoteOffset}, remoteEntry, port::packetRoom(bytes)) !=
            PortOutcome::kOk ||
        check({local.memory, localOffset}, localEntry, bytes) != PortOutcome::kOk)
      return {PortOutcome::kInvalid};
    port::writePackets(team, remoteEntry.address + remoteOffset, localEntry.address + localOffset,
                       bytes, flag);
    return {};
  }
  template <class Team>
  PEERLANE_DEVICE PortResult takePackets(const Team& team, const std::byte* packets, std::byte* to,
                                         uint64_t bytes, uint32_t flag,
                                         uint64_t bound = port::kForever) const {
    return semaphore.takePackets(team, packets, to, bytes, flag, bound);
  }

  // Adds `count` to the counter that the peer waits for, after all puts of this semaphore.
  template <class Team>
  PEERLANE_DEVICE PortResult signal(const Team& team, uint64_t count = 1) const {
    team.sync();
    uint32_t outcome = 0;
    if (team.rank() == 0) {
      const PortOutcome sent = sendSignal(count);
      if (sent == PortOutcome::kOk) (void)port::fetchAdd(&semaphore.state->sent, count);
      outcome = static_cast<uint32_t>(sent);
    }
    return {static_cast<PortOutcome>(team.agree(outcome))};
  }
  // Raises the number of all signals to the peer to `total`; does nothing where it is that much.
  template <class Team>
  PEERLANE_DEVICE PortResult signalTo(const Team& team, uint64_t total) const {
    team.sync();
    uint32_t outcome = 0;
    if (team.rank() == 0) {
      const uint64_t before = port::fetchRaise(&semaphore.state->sent, total);
      if (before < total) outcome = static_cast<uint32_t>(sendSignal(total - before));
    }
    return {static_cast<PortOutcome>(team.agree(outcome))};
  }

  template <class Team>
  PEERLANE_DEVICE PortResult wait(const Team& team, uint64_t count = 1,
                                  uint64_t bound = port::kForever) const {
    return semaphore.wait(team, count, bound);
  }
  template <class Team>
  PEERLANE_DEVICE PortResult poll(const Team& team, uint64_t count = 1) const {
    return semaphore.poll(team, count);
  }
  template <class Team>
  PEERLANE_DEVICE PortResult waitUntil(const Team& team, uint64_t total,
                                       uint64_t bound = port::kForever) const {
    return semaphore.waitUntil(team, total, bound);
  }
  PEERLANE_DEVICE uint64_t value() const { return semaphore.value(); }

  // Waits until every put through this semaphore before it has reached the peer, so that the
  // sources may be written, and every get has its bytes here.
  template <class Team>
  PEERLANE_DEVICE PortResult flush(const Team& team, uint64_t bound = port::kForever) const {
    team.sync();
    uint32_t outcome = 0;
    if (team.rank() == 0) outcome = static_cast<uint32_t>(flushAlone(bound));
    return {static_cast<PortOutcome>(team.agree(outcome))};
  }

  // Asks the handler that the service has for `kind` (ProxyService::onRequest). The operands have
  // the widths of PortRequest: ids of 20 bits, offsets and sizes of 48.
  PEERLANE_DEVICE PortResult request(uint32_t kind, uint32_t to, uint32_t from, uint64_t toOffset,
                                     uint64_t fromOffset, uint64_t bytes,
                                     uint64_t value = 1) const {
    return {push({port::kCustomVerb, kind, to, from, toOffset, fromOffset, bytes, value}, nullptr)};
  }

  // --- By one thread ---
  PEERLANE_DEVICE bool hasRequestsUnderWay() const {
    return port::loadRelaxed(&semaphore.state->pushed) > port::loadAcquire(semaphore.done);
  }
  // The same of the resident port.
  PEERLANE_DEVICE bool isResidentBusy() const {
    return resident.state != nullptr && port::loadRelaxed(&semaphore.state->residentPushed) >
                                            port::loadAcquire(&semaphore.state->residentDone);
  }

 private:
  PEERLANE_DEVICE port::MemoryEntry entry(PortPlace place) const {
    if (place.memory >= memoryCount) return {};
    const port::WordPair words =
        port::loadPairAcquire(reinterpret_cast<const port::WordPair*>(memories + place.memory));
    return {reinterpret_cast<std::byte*>(words.first), words.second};
  }

  PEERLANE_DEVICE PortOutcome refuse(port::Fault fault, uint64_t detail) const {
    port::storeRelaxed(&semaphore.health->fault, port::faultWord(fault, detail));
    return PortOutcome::kInvalid;
  }

  // `end` gets the position after the request.
  PEERLANE_DEVICE PortOutcome push(const port::PortRequest& request, uint64_t* end) const {
    if (!port::isEncodable(request)) return refuse(port::Fault::kTooLarge, request.bytes);
    const uint64_t behind = port::push(fifo, request);
    if (behind == 0) return PortOutcome::kEnded;
    if (end != nullptr) *end = behind;
    return PortOutcome::kOk;
  }
  // Pushes a request of this semaphore. Threads that look for requests under way must know of it,
  // so the thread whose signal has to see it publishes its position, after the push.
  PEERLANE_DEVICE PortOutcome pushOwn(const port::PortRequest& request, uint64_t* end) const {
    uint64_t behind = 0;
    const PortOutcome pushed = push(request, &behind);
    if (pushed != PortOutcome::kOk) return pushed;
    port::raise(&semaphore.state->pushed, behind);
    if (end != nullptr) *end = behind;
    return PortOutcome::kOk;
  }

  // A signal must come after all puts, whichever thread made them. The proxy does not see how far
  // the resident port is, so the caller waits for the resident port, which takes microseconds.
  PEERLANE_DEVICE void awaitResident() const {
    for (uint32_t looks = 1; isResidentBusy() && semaphore.loadHealth() == 0; ++looks)
      port::pauseBetween(looks);
  }
  PEERLANE_DEVICE bool pushOwnResident(const port::ResidentRequest& request, uint64_t* end) const {
    uint64_t behind = 0;
    if (!port::pushResident(resident, request, behind)) return false;
    port::raise(&semaphore.state->residentPushed, behind);
    if (end != nullptr) *end = behind;
    return true;
  }

  // The requests of this semaphore that are under way elsewhere. A caller that goes on must fence.
  struct UnderWay {
    bool requests = false;
    bool resident = false;
  };
  PEERLANE_DEVICE UnderWay underWay() const {
    const uint64_t pushed = port::loadRelaxed(&semaphore.state->pushed);
    const uint64_t done = port::loadAhead(semaphore.done);
    if (resident.state == nullptr) return {pushed > done, false};
    const uint64_t residentPushed = port::loadRelaxed(&semaphore.state->residentPushed);
    const uint64_t residentDone = port::loadAhead(&semaphore.state->residentDone);
    return {pushed > done, residentPushed > residentDone};
  }

  PEERLANE_DEVICE PortOutcome sendSignal(uint64_t count) const {
    const bool mayGoInline = semaphore.outbound != nullptr && engine != PortEngine::kCe;
    UnderWay others;
    if (mayGoInline && engine != PortEngine::kInline) others = underWay();
    if (mayGoInline && !others.requests) {
      if (others.resident) {
        const port::ResidentRequest request{nullptr,
                                            nullptr,
                                            0,
                                            count,
                                            &semaphore.outbound->words.first,
                                            &semaphore.state->residentDone};
        if (port::fitsResident(request) && pushOwnResident(request, nullptr))
          return PortOutcome::kOk;
        awaitResident();
      }
      port::fenceSystem();
      port::addBehind(&semaphore.outbound->words.first, count);
      return PortOutcome::kOk;
    }
    awaitResident();
    constexpr uint64_t kMost = (uint64_t{1} << port::kValueBits) - 1;
    for (; count > kMost; count -= kMost) {
      const PortOutcome part = pushOwn({port::kSignalVerb, number, 0, 0, 0, 0, 0, kMost}, nullptr);
      if (part != PortOutcome::kOk) return part;
    }
    return pushOwn({port::kSignalVerb, number, 0, 0, 0, 0, 0, count}, nullptr);
  }

  // Waits until `*done` is at least `position`.
  PEERLANE_DEVICE PortOutcome awaitDone(const uint64_t* done, uint64_t position,
                                        uint64_t bound) const {
    uint64_t begin = 0;
    for (uint32_t polls = 1;; ++polls) {
      if (port::loadAcquire(done) >= position) return PortOutcome::kOk;
      port::pauseBetween(polls);
      if (polls % port::kPollsPerHealthLook != 0) continue;
      if (semaphore.loadHealth() != 0)
        return port::loadAcquire(done) >= position ? PortOutcome::kOk : PortOutcome::kEnded;
      if (bound == port::kForever) continue;
      const uint64_t now = port::nanoseconds();
      if (begin == 0) begin = now;
      if (now - begin >= bound) return PortOutcome::kTimeout;
    }
  }
  PEERLANE_DEVICE PortOutcome flushAlone(uint64_t bound) const {
    port::fenceSystem();
    if (engine == PortEngine::kInline) return PortOutcome::kOk;
    if (isResidentBusy()) {
      const PortOutcome drained =
          awaitDone(&semaphore.state->residentDone,
                    port::loadRelaxed(&semaphore.state->residentPushed), bound);
      if (drained != PortOutcome::kOk) return drained;
    }
    if (!hasRequestsUnderWay()) return PortOutcome::kOk;
    uint64_t position = 0;
    const PortOutcome pushed = pushOwn({port::kFlushVerb, number, 0, 0, 0, 0, 0, 1}, &position);
    return pushed == PortOutcome::kOk ? awaitDone(semaphore.done, position, bound) : pushed;
  }

  // Refuses places out of range for calls that go inline; for the others the proxy does.
  PEERLANE_DEVICE PortOutcome check(PortPlace place, const port::MemoryEntry& memory,
                                    uint64_t bytes) const {
    if (place.offset <= memory.bytes && bytes <= memory.bytes - place.offset)
      return PortOutcome::kOk;
    return refuse(port::Fault::kOutOfRange, place.offset);
  }

  template <class Team>
  PEERLANE_DEVICE PortResult move(const Team& team, uint32_t verbs, PortPlace to, PortPlace from,
                                  const port::MemoryEntry& toEntry,
                                  const port::MemoryEntry& fromEntry, uint64_t bytes,
                                  uint64_t count, uint64_t bound = port::kForever) const {
    const bool isMapped = toEntry.address != nullptr && fromEntry.address != nullptr;
    const bool isSmall = bytes <= inlineBytes[static_cast<uint32_t>(Team::kKind)];
    if (engine == PortEngine::kInline || (engine == PortEngine::kAuto && isMapped && isSmall))
      return moveInline(team, verbs, to, from, toEntry, fromEntry, bytes, count, bound);
    // All stores of the team are done before one thread of it asks for the bytes.
    team.sync();
    uint32_t outcome = 0;
    if (team.rank() == 0) {
      if (count == 0) verbs &= ~uint32_t{port::kSignalVerb};
      bool isServed = false;
      const bool wantsResident =
          resident.state != nullptr && isMapped &&
          (engine == PortEngine::kSm || (engine == PortEngine::kAuto && bytes <= residentBytes));
      PortOutcome moved = PortOutcome::kOk;
      if (wantsResident)
        moved = moveResident(verbs, to, from, toEntry, fromEntry, bytes, count, bound, isServed);
      if (!isServed && moved == PortOutcome::kOk)
        moved = moveByProxy(wantsResident ? verbs | port::kWakeVerb : verbs, to, from, bytes, count,
                            bound);
      // A signal whose flush timed out was requested all the same.
      if ((verbs & port::kSignalVerb) != 0 &&
          (moved == PortOutcome::kOk || moved == PortOutcome::kTimeout))
        (void)port::fetchAdd(&semaphore.state->sent, count);
      outcome = static_cast<uint32_t>(moved);
    }
    return {static_cast<PortOutcome>(team.agree(outcome))};
  }

  PEERLANE_DEVICE PortOutcome moveByProxy(uint32_t verbs, PortPlace to, PortPlace from,
                                          uint64_t bytes, uint64_t count, uint64_t bound) const {
    if ((verbs & (port::kSignalVerb | port::kFlushVerb)) != 0) awaitResident();
    uint64_t position = 0;
    const PortOutcome pushed = pushOwn({verbs, number, to.memory, from.memory, to.offset,
                                        from.offset, bytes, count == 0 ? 1 : count},
                                       &position);
    if (pushed != PortOutcome::kOk || (verbs & port::kFlushVerb) == 0) return pushed;
    return awaitDone(semaphore.done, position, bound);
  }

  // `isServed`: the resident port took the request. Else it is shut, or the signal must come after
  // requests that the proxy has under way.
  PEERLANE_DEVICE PortOutcome moveResident(uint32_t verbs, PortPlace to, PortPlace from,
                                           const port::MemoryEntry& toEntry,
                                           const port::MemoryEntry& fromEntry, uint64_t bytes,
                                           uint64_t count, uint64_t bound, bool& isServed) const {
    const bool signals = (verbs & port::kSignalVerb) != 0;
    if (signals && (semaphore.outbound == nullptr || hasRequestsUnderWay()))
      return PortOutcome::kOk;
    if (check(to, toEntry, bytes) != PortOutcome::kOk ||
        check(from, fromEntry, bytes) != PortOutcome::kOk)
      return PortOutcome::kInvalid;
    const port::ResidentRequest request{toEntry.address + to.offset,
                                        fromEntry.address + from.offset,
                                        bytes,
                                        count,
                                        signals ? &semaphore.outbound->words.first : nullptr,
                                        &semaphore.state->residentDone};
    if (!port::fitsResident(request)) return PortOutcome::kOk;
    uint64_t position = 0;
    isServed = pushOwnResident(request, &position);
    if (!isServed || (verbs & port::kFlushVerb) == 0) return PortOutcome::kOk;
    return awaitDone(&semaphore.state->residentDone, position, bound);
  }

  template <class Team>
  PEERLANE_DEVICE PortResult moveInline(const Team& team, uint32_t verbs, PortPlace to,
                                        PortPlace from, const port::MemoryEntry& toEntry,
                                        const port::MemoryEntry& fromEntry, uint64_t bytes,
                                        uint64_t count, uint64_t bound) const {
    // All threads of the team find the same, so they need not ask each other.
    if (toEntry.address == nullptr) return {refuse(port::Fault::kNotMapped, to.memory)};
    if (fromEntry.address == nullptr) return {refuse(port::Fault::kNotMapped, from.memory)};
    if (check(to, toEntry, bytes) != PortOutcome::kOk ||
        check(from, fromEntry, bytes) != PortOutcome::kOk)
      return {PortOutcome::kInvalid};
    // As with the proxy: the copy includes the stores of the team's other threads, and no thread
    // goes on before the source may be written.
    team.sync();
    team.copy(toEntry.address + to.offset, fromEntry.address + from.offset, bytes);
    if ((verbs & port::kSignalVerb) == 0) {
      team.sync();
      return {};
    }
    const PortResult signalled = signal(team, count);
    return signalled && (verbs & port::kFlushVerb) != 0 ? flush(team, bound) : signalled;
  }
};

}  // namespace peerlane
