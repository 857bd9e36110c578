// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/staged_sends.h"

#include <string>

#include "peerlane/program/words/word.h"

namespace peerlane {

bool StagedSends::canBe(const Answer& answer, uint64_t bytes) const {
  const uint64_t ringBytes = answer.regionBytes;
  return answer.chunkBytes > 0 && ringBytes % answer.chunkBytes == 0 && bytes > 0 &&
         ringBytes / answer.chunkBytes >= 1 && ringBytes / answer.chunkBytes <= UINT32_MAX &&
         answer.position >= flow_.turn() && answer.position < kPoison / 2;
}

// False until the ring is imported.
Result<bool> StagedSends::open(const Answer& answer) {
  if (flow_.isOpen()) return true;
  PEERLANE_ASSIGN(auto found, imports_.find({answer.allocation, answer.generation,
                                             answer.regionBytes, answer.access}));
  if (found == nullptr) return false;
  if (found->memory.grant.bytes < answer.regionBytes)
    return Status(Code::kCorrupt, "the ring is smaller than it should be");
  const auto slots = static_cast<uint32_t>(answer.regionBytes / answer.chunkBytes);
  PEERLANE_RETURN_IF_ERROR(flow_.openSender({slots, answer.chunkBytes}, found));
  return true;
}

Result<StagedSends::Step> StagedSends::advance(const Answer& answer, const MessageItem* item,
                                               uint64_t& budgetBytes, bool& moved, bool& hungry) {
  // In the order in which the receiver gave out the chunks.
  if (answer.position != flow_.turn() || untold_) return Step::kUnderWay;
  const auto opened = open(answer);
  if (!opened.isOk())
    return opened.status().withContext("staging ring of rank " + std::to_string(env_.rank));
  if (!*opened) return Step::kUnderWay;
  PEERLANE_ASSIGN(const Step step, flow_.advance(item, budgetBytes, moved, hungry));
  if (step != Step::kLost) return step;
  if (!env_.peer->knowsHeard())
    return Status(Code::kRevoked,
                  "the memory of a staged message was unmapped, protected or cut off its file, and "
                  "the version of rank " +
                      std::to_string(env_.rank) + " cannot be told");
  untold_ = answer.number;
  env_.sendNote({.kind = LaneNote::Kind::kGaveUp, .code = Code::kRevoked, .number = *untold_});
  return step;
}

bool StagedSends::hear(uint64_t number) {
  if (untold_ != number) return false;
  untold_.reset();
  return true;
}

}  // namespace peerlane
