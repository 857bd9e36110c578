// SPDX-License-Identifier: Apache-2.0
//
// MessageRun: one execution of a message protocol, for senders and receivers alike: its program,
// its place on the CPU executor, and the memory to which its targets are bound. LanePrograms: the
// programs of one end, prepared once; payloads, envelopes and answers are bound late, so all
// messages of a lane share them. External synchronization required.
//
// The programs are those of the protocols, changed where the CPU executor must be told something:
//   - local targets that differ from message to message are marked late;
//   - after a copy of payload that an agent may perform, the wait of before stands once more. It is
//     satisfied; but the executor lets nothing pass it that an agent has not confirmed, so a copy
//     that failed is never reported as done;
//   - the sender of rendezvous-put (rendezvous_protocol.h) is cut in two at its wait: in between it
//     imports the region that the answer names.
#pragma once

#include <array>
#include <memory>

#include "peerlane/channel/message/host/message_lane.h"
#include "peerlane/program/cpu/cpu_program.h"

namespace peerlane {

struct LanePrograms {
  cpu::CpuProgram eager;    // also whatever moves no payload: gets (sender), refusals, voids
  cpu::CpuProgram get;      // receiver
  cpu::CpuProgram put;      // receiver
  cpu::CpuProgram putHead;  // sender
  cpu::CpuProgram putTail;  // sender
  // In putTail: wait, copy, wait once more, tell the receiver.
  static constexpr size_t kPutTailDoneOp = 3;

  // `free`: the sender's own words. `mailbox`: null when all is mapped.
  static Result<std::unique_ptr<LanePrograms>> makeSender(const LaneEnvironment& env,
                                                          std::byte* free, Mailbox* mailbox);
  static Result<std::unique_ptr<LanePrograms>> makeReceiver(const LaneEnvironment& env,
                                                            Mailbox* mailbox);
};

// Whether a run that is not at its end can soon go on by itself, because an agent gets on with its
// entries. `gotOn`: the run has just done something. A run that waits for the peer need not be
// looked at again and again: the link says when it has come to an end.
bool goesOn(Mailbox* mailbox, bool gotOn);

class MessageRun final : public LateBinder {
 public:
  explicit MessageRun(PeerCore& peer) : peer_(peer) {}
  ~MessageRun() override;

  // Programs that may use an agent: of this run's own, with a mailbox of its own.
  template <typename Make>
  Result<LanePrograms*> agentPrograms(const Make& make) {
    if (!programs_) {
      if (mailbox_ == nullptr) mailbox_ = peer_.mailboxes().borrow();
      PEERLANE_ASSIGN(programs_, make(mailbox_));
    }
    return programs_.get();
  }

  // `mayLinger`: as for CpuRun::start.
  void start(const cpu::CpuProgram& program, uint64_t number, bool mayLinger = false) {
    run_.start(program, {&number, 1}, {}, this, mayLinger);
    program_ = &program;
  }
  // Keeps `region`, which a copy reads or writes, until the run has ended. kClosed when its owner
  // wants it back.
  Status use(const std::shared_ptr<ImportedRegion>& region);

  // True when the run has ended; `moved` is set when it got on.
  bool advance(uint64_t budgetBytes, bool& moved, bool& hungry);
  void cancel(Code code) { run_.cancel(code); }
  Code code() const { return run_.code(); }
  // Also of a run that ended early: how far it came.
  bool passed(size_t op) const { return run_.opIndex() > op; }
  uint64_t bytesMoved() const { return run_.bytesMoved(); }
  // Of LanePrograms::putTail: the receiver may have been told that the bytes are there.
  bool toldDone() const { return run_.opIndex() > LanePrograms::kPutTailDoneOp; }
  // Of the region used last.
  const char* engine() const { return engine_; }
  std::string describe() const;

  // By target id of SenderTarget or ReceiverTarget.
  std::array<BoundTarget, kSenderTargets> targets{};
  Envelope envelope;  // the sender's own; the receiver's copy
  Answer answer;      // the receiver's own; the sender's copy

  BoundTarget envelopeTarget() {
    return {.address = reinterpret_cast<std::byte*>(&envelope),
            .bytes = sizeof(envelope),
            .isOurs = true};
  }
  BoundTarget answerTarget() {
    return {
        .address = reinterpret_cast<std::byte*>(&answer), .bytes = sizeof(answer), .isOurs = true};
  }

 private:
  Status bind(TargetId target, BoundTarget& out) override {
    out = targets[target];
    return Status::ok();
  }

  PeerCore& peer_;
  Mailbox* mailbox_ = nullptr;
  std::unique_ptr<LanePrograms> programs_;
  const cpu::CpuProgram* program_ = nullptr;
  cpu::CpuRun run_;
  std::shared_ptr<ImportedRegion> used_;
  const char* engine_ = "";
};

}  // namespace peerlane
