// SPDX-License-Identifier: Apache-2.0
#include "tools/trial_partner.h"

#include <algorithm>

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
      : peer_(std::move(peer)), arrived_(std::move(arrived)), regions_(context) {}

  // One step; the reply is sent by the caller.
  Status carryOut(const TrialStep& step, TrialReply& reply) {
    PEERLANE_ASSIGN(const Region region, regions_.get(step.memory, step.bytes));
    const std::span<std::byte> bytes = bytesOf(region).first(step.bytes);
    switch (step.verb) {
      case TrialVerb::kRegion: reply.reference = region.share(); return Status::ok();
      case TrialVerb::kProvide: fillPattern(bytes, step.seed); return Status::ok();
      case TrialVerb::kReceive: return receive(step, bytes, reply);
      case TrialVerb::kHash: {
        PEERLANE_RETURN_IF_ERROR(arrived_.wait(step.signal, kStepTimeout));
        reply.seenAt = trialClock();
        ContentHash hash;
        hash.update(bytes);
        reply.hash = hash.finish();
        return Status::ok();
      }
      case TrialVerb::kEnd: break;
    }
    return Status(Code::kCorrupt, "an unknown trial step");
  }

 private:
  Status receive(const TrialStep& step, std::span<std::byte> bytes, TrialReply& reply) {
    fillPattern(bytes, step.old);
    PEERLANE_RETURN_IF_ERROR(sendStruct(peer_, kTrialReplyChannel, reply));
    // A receiver that is awake, as one under load is: what is timed is the transfer, not a wake-up.
    const int64_t awakeUntil = trialClock() + kAwake.count();
    while (arrived_.value() < step.signal && trialClock() < awakeUntil) {
    }
    PEERLANE_RETURN_IF_ERROR(arrived_.wait(step.signal, kStepTimeout));
    reply.seenAt = trialClock();
    reply.wrong = countWrongBlocks(bytes, step.shape, step.seed, step.old);
    return Status::ok();
  }

  const Peer peer_;
  const Signal arrived_;
  TrialRegions regions_;
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
