// SPDX-License-Identifier: Apache-2.0
#include "tools/trial_partner.h"

#include <algorithm>

#include "peerlane/channel/communicator.h"
#include "peerlane/channel/signal.h"
#include "tools/byte_pattern.h"
#include "tools/trial_memory.h"
#include "tools/trial_step.h"

namespace peerlane {
namespace {

constexpr auto kStepTimeout = std::chrono::seconds(60);
constexpr std::chrono::nanoseconds kAwake = std::chrono::milliseconds(2);

class Partner {
 public:
  Partner(Context& context, Peer peer, Signal arrived)
      : context_(context),
        peer_(std::move(peer)),
        arrived_(std::move(arrived)),
        regions_(context) {}

  // One step; the reply is sent by the caller.
  Status carryOut(const TrialStep& step, TrialReply& reply) {
    if (step.verb == TrialVerb::kJoin) {
      PEERLANE_ASSIGN(communicator_, Communicator::create(context_, peer_));
      return Status::ok();
    }
    PEERLANE_ASSIGN(const Region region, regions_.get(step.memory, step.bytes));
    const std::span<std::byte> bytes = bytesOf(region).first(step.bytes);
    switch (step.verb) {
      case TrialVerb::kRegion: reply.reference = region.share(); return Status::ok();
      case TrialVerb::kProvide: fillPattern(bytes, step.seed); return Status::ok();
      case TrialVerb::kReceive: return receive(step, bytes, reply);
      case TrialVerb::kMessage: return receiveMessage(step, region, reply);
      case TrialVerb::kHash: {
        PEERLANE_RETURN_IF_ERROR(arrived_.wait(step.signal, kStepTimeout));
        reply.seenAt = trialClock();
        ContentHash hash;
        hash.update(bytes);
        reply.hash = hash.finish();
        return Status::ok();
      }
      case TrialVerb::kJoin:
      case TrialVerb::kEnd: break;
    }
    return Status(Code::kCorrupt, "an unknown trial step");
  }

 private:
  Status receive(const TrialStep& step, std::span<std::byte> bytes, TrialReply& reply) {
    fillPattern(bytes, step.old);
    PEERLANE_RETURN_IF_ERROR(sendStruct(peer_, kTrialReplyChannel, reply));
    stayAwake([&] { return arrived_.value() >= step.signal; });
    PEERLANE_RETURN_IF_ERROR(arrived_.wait(step.signal, kStepTimeout));
    reply.seenAt = trialClock();
    reply.wrong = countWrongBlocks(bytes, step.shape, step.seed, step.old);
    return Status::ok();
  }

  Status receiveMessage(const TrialStep& step, const Region& region, TrialReply& reply) {
    const std::span<std::byte> bytes = bytesOf(region).first(step.bytes);
    fillPattern(bytes, step.old);
    PEERLANE_ASSIGN(const Transfer message, communicator_->recv(1 - communicator_->rank(), region,
                                                                0, step.shape.blockBytes));
    PEERLANE_RETURN_IF_ERROR(sendStruct(peer_, kTrialReplyChannel, reply));
    stayAwake([&] { return message.done(); });
    PEERLANE_RETURN_IF_ERROR(message.wait(kStepTimeout));
    reply.seenAt = trialClock();
    reply.wrong = countWrongBlocks(bytes, step.shape, step.seed, step.old);
    return Status::ok();
  }

  // A receiver under load is awake: what is timed is the transfer, not a wake-up.
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

Status serveTrial(Context& context, const Peer& peer) {
  PEERLANE_ASSIGN(Signal arrived, Signal::create(peer, kTrialSignal));
  Partner partner(context, peer, std::move(arrived));
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
