// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/request/stripe_cutter.h"

#include <algorithm>

namespace peerlane {
namespace {

using Cut = RequestCutter::Cut;

// Large, and of one call at a time.
constinit thread_local RequestChain batch;

// The one with the fewest requests under way, so that a slow pair gets less.
uint32_t idlestOf(const std::vector<std::unique_ptr<PairLane>>& lanes) {
  uint32_t idlest = 0;
  for (uint32_t i = 1; i < lanes.size(); ++i)
    if (lanes[i]->ledger.underWay() < lanes[idlest]->ledger.underWay()) idlest = i;
  return idlest;
}

}  // namespace

bool StripeCutter::isLarge(const MailboxEntry& entry) {
  if (entry.verb != Verb::kPut && entry.verb != Verb::kGet) return false;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < entry.pieceCount && bytes < kLeastBytes; ++i)
    bytes += entry.pieces[i].bytes;
  return bytes >= kLeastBytes;
}

RequestCutter::Cut StripeCutter::cut(AgentWork& work, std::vector<std::unique_ptr<PairLane>>& lanes,
                                     Status& failure) {
  WorkState state(work);
  Cut made = Cut::kMade;
  while (made == Cut::kMade && failure.isOk()) {
    const uint32_t place = idlestOf(lanes);
    RequestLedger& ledger = lanes[place]->ledger;
    batch.clear();
    uint64_t bytes = 0;
    do {
      made = cutter_.cut(work, batch, ledger);
      if (made == Cut::kStalled || batch.isEmpty()) break;
      for (int i = 0; i < batch.last().num_sge; ++i) bytes += batch.last().sg_list[i].length;
    } while (made == Cut::kMade && bytes < kBatchBytes);
    if (batch.isEmpty()) break;
    state.setUnproven(place);
    ledger.sign(batch);
    failure = lanes[place]->post(batch);
    // A ledger or a chain that is full is no reason to stop: another pair may have room.
    if (made == Cut::kStalled && lanes[idlestOf(lanes)]->ledger.hasRoom(batch, 1))
      made = Cut::kMade;
  }
  if (made != Cut::kWhole || work.code.load(std::memory_order_relaxed) != Code::kOk) return made;
  if (!state.isProving() && state.underWay() != 0 && cutter_.mayReadsOvertake())
    return Cut::kStalled;
  state.setProving();
  for (uint32_t place = 0; place < lanes.size() && failure.isOk(); ++place) {
    if ((state.unproven() >> place & 1) == 0) continue;
    if (!prove(work, *lanes[place])) return Cut::kStalled;
    state.clearUnproven(place);
    failure = lanes[place]->post(batch);
  }
  return Cut::kWhole;
}

bool StripeCutter::prove(AgentWork& work, PairLane& lane) {
  batch.clear();
  if (!lane.ledger.hasRoom(batch, 1)) return false;
  cutter_.prove(work, batch, lane.ledger);
  lane.ledger.sign(batch);
  return true;
}

}  // namespace peerlane
