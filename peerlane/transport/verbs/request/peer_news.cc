// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/request/peer_news.h"

#include <string>

namespace peerlane {

Status PeerNews::take(uint32_t number, News& news) {
  Status status;
  if (!News::decode(number, news))
    status = Status(Code::kCorrupt,
                    "the peer sent news of no known kind (" + std::to_string(number) + ")");
  else if (news.kind != News::Kind::kWord && news.kind != News::Kind::kTaken)
    status = applyMail(news);
  ++taken_;
  // It would take up receives that were promised to others.
  if (taken_ - told_ > receives_)
    status = Status(Code::kCorrupt, "the peer sent more news than there are receives for it");
  ++polledNews_;
  isAsked_ |= news.asks;
  return status;
}

Status PeerNews::applyMail(const News& news) {
  PEERLANE_RETURN_IF_ERROR(writes_.flush());
  return mail_.apply(news);
}

void PeerNews::setPolled(bool is) {
  isPolled_ = is;
  if (!is) polledNews_ = 0;
}

// News taken: at once when the peer asks. Where writes are placed in order, as soon as half of its
// news is not told yet: elsewhere an earlier count could be placed over a later one.
void PeerNews::tell(RequestCutter& cutter, RequestChain& chain, RequestLedger& ledger) {
  const bool isEarly = ordersWrites_ && taken_ - told_ >= receives_ / 2;
  if ((isAsked_ || isEarly) && cutter.tellTaken(taken_, isAsked_, chain, ledger)) {
    told_ = taken_;
    isAsked_ = false;
  }
  if (owesWake_ && cutter.wake(chain, ledger)) owesWake_ = false;
  // Words of a peer that keeps sending them need no news while threads of this side poll.
  constexpr uint32_t kFewNews = 4;
  const bool polls = isPolled_ && (isBelieved_ || polledNews_ >= kFewNews);
  if (ordersWrites_ && polls != isBelieved_ && cutter.tellPolls(polls, chain, ledger))
    isBelieved_ = polls;
}

bool PeerNews::tellAlways(RequestCutter& cutter, RequestChain& chain, RequestLedger& ledger) {
  if (!cutter.tellTaken(taken_, /*isAsked=*/false, chain, ledger)) return false;
  told_ = taken_;
  ledger.sign(chain);
  return true;
}

void PeerNews::startAgain() {
  taken_ = told_ = 0;
  polledNews_ = 0;
  isAsked_ = isBelieved_ = false;
  owesWake_ = true;
}

}  // namespace peerlane
