// SPDX-License-Identifier: Apache-2.0
#include "tools/trial/trial_partner.h"

#include <algorithm>

#include "peerlane/channel/communicator/communicator.h"
#include "peerlane/channel/signal/signal.h"
#include "tools/memory/byte_pattern.h"
#include "tools/trial/trial_memory.h"
#include "tools/trial/trial_step.h"

namespace peerlane {
namespace {

constexpr auto kStepTimeout = std::chrono::seconds(60);
constexpr std::chrono::nanoseconds kAwake = std::chrono::milliseconds(2);

class Partner {
 public:
  Partner(Context& context, Peer peer, Signal arrived, const Device& device)
      : context_(context),
        peer_(std::move(peer)),
        arrived_(std::move(arrived)),
        regions_(context, device) {}

  // One step; the reply is sent by the caller.
  Status carryOut(const TrialStep& step, TrialReply& reply) {
    if (step.verb == TrialVerb::kJoin) {
      PEERLANE_ASSIGN(communicator_, Communicator::create(context_, peer_));
      return Status::ok();
    }
    PEERLANE_ASSIGN(const Region region, regions_.get(step.memory, step.bytes));
    switch (step.verb) {
      case TrialVerb::kRegion: reply.reference = region.share(); return Status::ok();
      case TrialVerb::kProvide: return fill(step, region, step.seed);
      case TrialVerb::kReceive: return receive(step, region, reply);
      case TrialVerb::kMessage: return receiveMessage(step, region, reply);
      case TrialVerb::kHash: return hash(step, region, reply);
      case TrialVerb::kJoin:
      case TrialVerb::kEnd: break;
    }
    return Status(Code::kCorrupt, "an unknown trial step");
  }

 private:
  Status fill(const TrialStep& step, const Region& region, uint64_t seed) {
    return regions_.write(region, step.bytes, [&](auto bytes) { fillPattern(bytes, seed); });
  }

  Status check(const TrialStep& step, const Region& region, TrialReply& reply) {
    return regions_.read(region, step.bytes, [&](auto bytes) {
      reply.wrong = countWrongBlocks(bytes, step.shape, step.seed, step.old);
    });
  }

  Status receive(const TrialStep& step, const Region& region, TrialReply& reply) {
    PEERLANE_RETURN_IF_ERROR(fill(step, region, step.old));
    PEERLANE_RETURN_IF_ERROR(sendStruct(peer_, kTrialReplyChannel, reply));
    stayAwake([&] { return arrived_.value() >= step.signal; });
    PEERLANE_RETURN_IF_ERROR(arrived_.wait(step.signal, kStepTimeout));
    reply.seenAt = trialClock();
    return check(step, region, reply);
  }

  Status receiveMessage(const TrialStep& step, const Region& region, TrialReply& reply) {
    PEERLANE_RETURN_IF_ERROR(fill(step, region, step.old));
    MessageOptions options;
    PEERLANE_ASSIGN(options.deviceStream, regions_.streamFor(step.memory));
    PEERLANE_ASSIGN(const Transfer message, communicator_->recv(1 - communicator_->rank(), region,
                                                                0, step.shape.blockBytes, options));
    PEERLANE_RETURN_IF_ERROR(sendStruct(peer_, kTrialReplyChannel, reply));
    stayAwake([&] { return message.done(); });
    PEERLANE_RETURN_IF_ERROR(message.wait(kStepTimeout));
    reply.seenAt = trialClock();
    return check(step, region, reply);
  }

  Status hash(const TrialStep& step, const Region& region, TrialReply& reply) {
    PEERLANE_RETURN_IF_ERROR(arrived_.wait(step.signal, kStepTimeout));
    reply.seenAt = trialClock();
    return regions_.read(region, step.bytes, [&](auto bytes) {
      ContentHash hash;
      hash.update(bytes);
      reply.hash = hash.finish();
    });
  }

  // A receiver under load is awake: the trial times the transfer, not a wake-up.
  template <typename Done>
  static void stayAwake(Done done) {
    const int64_t until = trialClock() + kAwake.count();
    while (!done() && trialClock() < until) {
    }
  }

  Context& context_;
  const Peer peer_;
  const Signal arrived_;
  TrialRegions regions_;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace

Status serveTrial(Context& context, const Peer& peer, const Device& device) {
  PEERLANE_ASSIGN(Signal arrived, Signal::create(peer, kTrialSignal));
  Partner partner(context, peer, std::move(arrived), device);
  for (;;) {
    PEERLANE_ASSIGN(const auto step,
                    receiveStruct<TrialStep>(peer, kTrialStepChannel, std::chrono::hours(1)));
    TrialReply reply;
    if (step.verb == TrialVerb::kEnd) return sendStruct(peer, kTrialReplyChannel, reply);
    if (const Status status = partner.carryOut(step, reply); !status.isOk()) {
      reply.failed = 1;
      const std::string text = status.toString();
      std::copy_n(text.begin(), std::min(text.size(), reply.failure.size() - 1),
                  reply.failure.begin());
    }
    PEERLANE_RETURN_IF_ERROR(sendStruct(peer, kTrialReplyChannel, reply));
  }
}

}  // namespace peerlane
