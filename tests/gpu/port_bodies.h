// SPDX-License-Identifier: Apache-2.0
//
// The bodies of port_kernels.h. `team` calls the channel where `calls`; `block`, to which it
// belongs, makes and looks at the bytes: those are of other threads than the caller's. No state.
#pragma once

#include "tests/gpu/port_kernels.h"

namespace peerlane::gputest {

PEERLANE_DEVICE inline uint32_t portWord(uint64_t index, uint64_t round, uint32_t side) {
  return static_cast<uint32_t>(index * 0x9E3779B1u + round * 0x85EBCA6Bu + side * 0xC2B2AE35u + 1);
}

// One launch of one block, and all that its threads share.
template <class Team, class Block>
class PortPlayer {
 public:
  PEERLANE_DEVICE PortPlayer(const Team& team, bool calls, const Block& block, uint32_t index,
                             uint32_t blocks, const PortJob& job)
      : team_(team), calls_(calls), block_(block), index_(index), blocks_(blocks), job_(job) {}

  PEERLANE_DEVICE void play(PortBody body) {
    const uint64_t begin = port::nanoseconds();
    // A block that has played goes on where it ended.
    first_ = job_.notes->count[index_];
    block_.sync();
    switch (body) {
      case PortBody::kNothing: break;
      case PortBody::kPingPong: pingPong(job_.channel, job_.side, job_.out, job_.in); break;
      case PortBody::kExchange: exchange(); break;
      case PortBody::kExchangeBlocks: exchangeBlocks(); break;
      case PortBody::kStress:
        if (index_ == 0)
          stressSend();
        else
          stressReceive();
        break;
      case PortBody::kPutAndFlush: putAndFlush(); break;
      case PortBody::kAnswer: answer(); break;
      case PortBody::kFlushAtOnce: flushAtOnce(); break;
      case PortBody::kLookAtSlices: lookAtSlices(); break;
      case PortBody::kGet: get(); break;
      case PortBody::kSignals: signals(); break;
      case PortBody::kPushes: pushes(); break;
      case PortBody::kLookAtPushes: lookAtPushes(); break;
      case PortBody::kRequests: requests(); break;
      case PortBody::kSelf:
        if (index_ == 0)
          pingPong(job_.channel, 0, job_.out, job_.in);
        else
          pingPong(job_.second, 1, job_.otherOut, job_.otherIn);
        break;
      case PortBody::kWait: wait(); break;
      case PortBody::kPut: put(true); break;
      case PortBody::kPutMade: put(false); break;
      case PortBody::kPackets: packets(); break;
    }
    if (wrong_ != 0) (void)port::fetchAdd(&job_.notes->wrong, wrong_);
    if (block_.rank() != 0) return;
    port::raise(&job_.notes->outcome, outcome_);
    job_.notes->count[index_] = first_ + played_;
    if (index_ == 0) job_.notes->nanoseconds = port::nanoseconds() - begin;
  }

 private:
  // Everybody's bytes are made before the call, and everybody knows what came of it. False: no more
  // rounds.
  template <class Call>
  PEERLANE_DEVICE bool call(const Call& theCall) {
    block_.sync();
    uint32_t outcome = 0;
    if (calls_) outcome = static_cast<uint32_t>(theCall().outcome);
    outcome = block_.agree(outcome);
    if (outcome != 0) outcome_ = outcome;
    return outcome == 0;
  }
  PEERLANE_DEVICE PortResult await(const PortChannelHandle& channel) const {
    if (job_.polls == 0) return channel.wait(team_);
    for (;;) {
      const PortResult polled = channel.poll(team_);
      if (polled.outcome != PortOutcome::kTimeout) return polled;
    }
  }

  PEERLANE_DEVICE void make(std::byte* at, uint64_t bytes, uint64_t round, uint32_t side) const {
    auto* const words = reinterpret_cast<uint32_t*>(at);
    for (uint64_t i = block_.rank(); i < bytes / 4; i += block_.size())
      words[i] = portWord(i, round, side);
  }
  PEERLANE_DEVICE void look(const std::byte* at, uint64_t bytes, uint64_t round, uint32_t side) {
    const auto* const words = reinterpret_cast<const uint32_t*>(at);
    for (uint64_t i = block_.rank(); i < bytes / 4; i += block_.size())
      wrong_ += words[i] != portWord(i, round, side) ? 1 : 0;
  }
  PEERLANE_DEVICE uint64_t round() const { return first_ + played_ + 1; }
  PEERLANE_DEVICE bool goesOn() const { return played_ < job_.rounds; }

  PEERLANE_DEVICE void pingPong(const PortChannelHandle& channel, uint32_t side, std::byte* out,
                                const std::byte* in) {
    for (; goesOn(); ++played_)
      for (uint32_t half = 0; half < 2; ++half) {
        if (half == side) {
          make(out + job_.at, job_.bytes, round(), side);
          if (!call([&] { return channel.putWithSignal(team_, job_.at, job_.at, job_.bytes); }))
            return;
        } else {
          if (!call([&] { return await(channel); })) return;
          look(in + job_.at, job_.bytes, round(), 1 - side);
        }
      }
  }

  // The first signal says that the bytes of the last round were looked at.
  PEERLANE_DEVICE void exchange() {
    const PortChannelHandle& channel = job_.channel;
    for (; goesOn(); ++played_) {
      if (!call([&] { return channel.signal(team_); })) return;
      if (!call([&] { return await(channel); })) return;
      make(job_.out, job_.bytes, round(), job_.side);
      if (!call([&] { return channel.putWithSignal(team_, 0, 0, job_.bytes); })) return;
      if (!call([&] { return await(channel); })) return;
      look(job_.in, job_.bytes, round(), 1 - job_.side);
    }
  }

  // `second` counts who is ready.
  PEERLANE_DEVICE void exchangeBlocks() {
    const uint64_t slice = job_.bytes / blocks_ / 16 * 16;
    const uint64_t at = index_ * slice;
    for (; goesOn(); ++played_) {
      const uint64_t total = round() * blocks_;
      if (!call([&] { return job_.second.signal(team_); })) return;
      if (!call([&] { return job_.second.semaphore.waitUntil(team_, total); })) return;
      make(job_.out + at, slice, round(), job_.side + index_ * 2);
      if (!call([&] { return job_.channel.putWithSignal(team_, at, at, slice); })) return;
      if (!call([&] { return job_.channel.semaphore.waitUntil(team_, total); })) return;
      // What another block has sent.
      const uint32_t other = (index_ + 1) % blocks_;
      look(job_.in + other * slice, slice, round(), 1 - job_.side + other * 2);
    }
  }

  PEERLANE_DEVICE uint64_t messageBytes() const {
    return job_.oddBytes != 0 && round() % 2 == 1 ? job_.oddBytes : job_.bytes;
  }
  // Requires: `rounds` is a multiple of `batch`, and `slots` is, and not more than `rounds`.
  PEERLANE_DEVICE void stressSend() {
    const PortChannelHandle& channel = job_.channel;
    for (; goesOn(); ++played_) {
      const bool needsAnswer = played_ >= job_.slots && played_ % job_.batch == 0;
      if (needsAnswer && !call([&] { return channel.wait(team_, job_.batch); })) return;
      const uint64_t at = played_ % job_.slots * job_.bytes, bytes = messageBytes();
      make(job_.out + at, bytes, round(), job_.side);
      if (!call([&] { return channel.putWithSignal(team_, at, at, bytes); })) return;
    }
    if (!call([&] { return channel.flush(team_); })) return;
    (void)call([&] { return channel.wait(team_, job_.slots); });
  }
  PEERLANE_DEVICE void stressReceive() {
    const PortChannelHandle& channel = job_.second;
    for (; goesOn(); ++played_) {
      if (!call([&] { return await(channel); })) return;
      look(job_.in + played_ % job_.slots * job_.bytes, messageBytes(), round(), 1 - job_.side);
      if ((played_ + 1) % job_.batch == 0 &&
          !call([&] { return channel.signal(team_, job_.batch); }))
        return;
    }
  }

  PEERLANE_DEVICE void putAndFlush() {
    const PortChannelHandle& channel = job_.channel;
    for (; goesOn(); ++played_) {
      make(job_.out, job_.bytes, round(), job_.side);
      if (played_ % 2 == 0) {
        if (!call([&] { return channel.putWithSignal(team_, 0, 0, job_.bytes); })) return;
        if (!call([&] { return channel.flush(team_); })) return;
      } else if (!call([&] { return channel.putWithSignalAndFlush(team_, 0, 0, job_.bytes); })) {
        return;
      }
      make(job_.out, job_.bytes, ~round(), 7);
      if (!call([&] { return channel.wait(team_); })) return;
    }
  }
  PEERLANE_DEVICE void answer() {
    for (; goesOn(); ++played_) {
      if (!call([&] { return await(job_.channel); })) return;
      look(job_.in, job_.bytes, round(), 1 - job_.side);
      if (!call([&] { return job_.channel.signal(team_); })) return;
    }
  }

  PEERLANE_DEVICE void flushAtOnce() {
    const PortChannelHandle& channel = job_.channel;
    const uint64_t slice = job_.bytes / blocks_ / 16 * 16;
    const uint64_t at = index_ * slice;
    for (; goesOn(); ++played_) {
      make(job_.out + at, slice, round(), job_.side + index_ * 2);
      if (!call([&] { return channel.put(team_, at, at, slice); })) return;
      if (!call([&] { return channel.flush(team_); })) return;
      make(job_.out + at, slice, ~round(), 7);
    }
    (void)call([&] { return channel.signal(team_); });
  }
  // `slots`: how many blocks the other side has.
  PEERLANE_DEVICE void lookAtSlices() {
    const auto blocks = static_cast<uint32_t>(job_.slots);
    const uint64_t slice = job_.bytes / blocks / 16 * 16;
    if (!call([&] { return job_.channel.wait(team_, blocks); })) return;
    for (uint32_t i = 0; i < blocks; ++i)
      look(job_.in + i * slice, slice, first_ + job_.rounds, 1 - job_.side + i * 2);
    played_ = job_.rounds;
  }

  // `second`: from the peer's `out` to `in`.
  PEERLANE_DEVICE void get() {
    for (; goesOn(); ++played_)
      for (uint32_t half = 0; half < 2; ++half) {
        if (half == job_.side) {
          make(job_.out, job_.bytes, round(), job_.side);
          if (!call([&] { return job_.channel.signal(team_); })) return;
          if (!call([&] { return await(job_.channel); })) return;
        } else {
          if (!call([&] { return await(job_.channel); })) return;
          if (!call([&] { return job_.second.get(team_, 0, 0, job_.bytes); })) return;
          if (!call([&] { return job_.second.flush(team_); })) return;
          look(job_.in, job_.bytes, round(), 1 - job_.side);
          if (!call([&] { return job_.channel.signal(team_); })) return;
        }
      }
  }

  PEERLANE_DEVICE void signals() {
    const PortSemaphoreHandle& semaphore = job_.channel.semaphore;
    for (; goesOn(); ++played_)
      for (uint32_t half = 0; half < 2; ++half)
        if (!call([&] {
              if (half != job_.side) return semaphore.wait(team_);
              semaphore.signal(team_);
              return PortResult{};
            }))
          return;
  }

  // Every thread of every block by itself; then one of each block signals.
  PEERLANE_DEVICE void pushes() {
    const uint64_t thread = uint64_t{index_} * block_.size() + block_.rank();
    const uint64_t at = thread * job_.bytes;
    auto* const words = reinterpret_cast<uint32_t*>(job_.out + at);
    for (uint64_t i = 0; i < job_.bytes / 4; ++i) words[i] = portWord(i, thread + 1, job_.side);
    uint32_t mine = 0;
    for (uint64_t i = 0; i < job_.rounds && mine == 0; ++i)
      mine =
          static_cast<uint32_t>(job_.channel.put(port::ThisThread{}, at, at, job_.bytes).outcome);
    played_ = job_.rounds;
    if (mine != 0) wrong_ += 1;
    if (!call([&] { return job_.channel.signal(team_); })) return;
    (void)call([&] { return job_.channel.flush(team_); });
  }
  // `slots`: blocks of the other side; `batch`: threads of all of them.
  PEERLANE_DEVICE void lookAtPushes() {
    if (!call([&] { return job_.channel.wait(team_, job_.slots); })) return;
    for (uint64_t i = 0; i < job_.batch; ++i)
      look(job_.in + i * job_.bytes, job_.bytes, i + 1, 1 - job_.side);
  }
  PEERLANE_DEVICE void requests() {
    const uint32_t thread = index_ * block_.size() + block_.rank();
    for (; goesOn(); ++played_)
      if (!job_.channel.request(static_cast<uint32_t>(job_.slots), thread, 0, round(), 0, 0,
                                played_ % 2 == 0 ? 1 : round()))
        wrong_ += 1;
  }

  PEERLANE_DEVICE void wait() {
    for (; goesOn(); ++played_) {
      if (!call([&] { return job_.channel.wait(team_, 1, job_.bound); })) return;
      if (job_.flag == nullptr || block_.rank() != 0) continue;
      port::fenceSystem();
      port::storeRelaxed(job_.flag, round());
    }
  }
  PEERLANE_DEVICE void packets() {
    for (; goesOn(); ++played_)
      for (uint32_t half = 0; half < 2; ++half) {
        const auto flag = static_cast<uint32_t>(round());
        std::byte* const taken = job_.out + job_.bytes;
        if (half == job_.side) {
          make(job_.out, job_.bytes, round(), job_.side);
          if (!call([&] { return job_.channel.putPackets(team_, 0, 0, job_.bytes, flag); })) return;
        } else {
          if (!call([&] {
                return job_.channel.takePackets(team_, job_.in, taken, job_.bytes, flag);
              }))
            return;
          look(taken, job_.bytes, round(), 1 - job_.side);
        }
      }
  }
  PEERLANE_DEVICE void put(bool makes) {
    for (; goesOn(); ++played_) {
      if (makes) make(job_.out, job_.bytes, round(), job_.side);
      if (!call([&] {
            if (job_.flag != nullptr && block_.rank() == 0) port::storeRelaxed(job_.flag, round());
            return job_.channel.putWithSignal(team_, 0, 0, job_.bytes);
          }))
        return;
    }
  }

  const Team team_;
  const bool calls_;
  const Block block_;
  const uint32_t index_, blocks_;
  const PortJob& job_;
  uint64_t first_ = 0, played_ = 0, wrong_ = 0;
  uint32_t outcome_ = 0;
};

}  // namespace peerlane::gputest
