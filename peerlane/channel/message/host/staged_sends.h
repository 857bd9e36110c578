// SPDX-License-Identifier: Apache-2.0
//
// StagedSends: the messages of a lane that go through the receiver's staging ring, as their sender
// sees them: the import of the ring, and what becomes of a message whose memory is gone in the
// middle of it. The receiver must know that before it has the last chunk, and a note may come later
// than a chunk: the sender tells it, waits until it has heard that, and then lets the rest of the
// chunks pass without bytes. External synchronization required.
#pragma once

#include <cstdint>
#include <optional>

#include "peerlane/channel/message/host/message_lane.h"
#include "peerlane/channel/message/host/named_import_cache.h"
#include "peerlane/channel/message/host/staged_flow.h"

namespace peerlane {

class StagedSends {
 public:
  using Step = StagedFlow::Step;

  // Both outlive it.
  StagedSends(const LaneEnvironment& env, NamedImportCache& imports)
      : env_(env), imports_(imports), flow_(env) {}

  // Whether an honest receiver gives a message of `bytes` bytes the chunks that its answer names.
  bool canBe(const Answer& answer, uint64_t bytes) const;
  // Moves the message with that answer, if it is its turn. `item`: null once kLost was said. After
  // an error the lane is broken.
  Result<Step> advance(const Answer& answer, const MessageItem* item, uint64_t& budgetBytes,
                       bool& moved, bool& hungry);
  // The receiver knows that the memory of message `number` is gone. False: nobody waits for that.
  bool hear(uint64_t number);
  bool awaitsHearing(uint64_t number) const { return untold_ == number; }
  // Asks what is under way to end; true when nothing is.
  bool abandon(Code code) { return flow_.abandon(code); }

 private:
  Result<bool> open(const Answer& answer);

  const LaneEnvironment& env_;
  NamedImportCache& imports_;
  StagedFlow flow_;
  // The message whose turn it is, while the receiver does not know that its memory is gone.
  std::optional<uint64_t> untold_;
};

}  // namespace peerlane
