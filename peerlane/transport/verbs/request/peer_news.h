// SPDX-License-Identifier: Apache-2.0
//
// PeerNews: the news that the peer sends over a verbs link, and the answers that this side owes:
// word of how many were taken, a wake for a word that went without news, and whether threads of
// this side poll, so that the peer's words need no news. explore/news_protocol.h. External
// synchronization.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/transport/verbs/device/device_writes.h"
#include "peerlane/transport/verbs/request/news.h"
#include "peerlane/transport/verbs/request/request_cutter.h"
#include "peerlane/transport/verbs/request/word_mail.h"

namespace peerlane {

class PeerNews {
 public:
  // `mails`: the slots of the control block, one for each of the news that may be under way.
  // `ordersWrites`: as the sides agreed. All outlive it.
  PeerNews(RegionDirectory& regions, std::span<const std::byte> mails, uint32_t receives,
           bool ordersWrites, const DeviceWrites& writes)
      : mail_(regions, mails), writes_(writes), receives_(receives), ordersWrites_(ordersWrites) {}

  // Takes one; `news` is what it says. A mail is applied after earlier writes of the peer have
  // become visible to the GPUs whose memory they are in. Errors: kCorrupt, kSystem (a GPU does not
  // say that), which end the link; those of a mail that is refused, which do not.
  Status take(uint32_t number, News& news);
  uint64_t taken() const { return taken_; }

  // Threads of this side poll.
  void setPolled(bool is);
  // The peer thinks so.
  bool isBelieved() const { return isBelieved_; }
  // A word without news may have met a peer that sleeps.
  void oweWake() { owesWake_ = true; }
  // The peer waits for something of this side.
  bool isOwing() const { return isAsked_ || owesWake_; }

  // Adds requests for what is due, as far as there is room.
  void tell(RequestCutter& cutter, RequestChain& chain, RequestLedger& ledger);
  // Adds one whose answer stands for all requests before it. False: there is no room.
  bool tellAlways(RequestCutter& cutter, RequestChain& chain, RequestLedger& ledger);
  // The pairs were made anew: none is under way, and the peer may have slept over a word.
  void startAgain();

 private:
  Status applyMail(const News& news);
  WordMail mail_;
  const DeviceWrites& writes_;
  const uint32_t receives_;
  const bool ordersWrites_;
  uint64_t taken_ = 0;
  uint64_t told_ = 0;      // of that count to the peer
  bool isAsked_ = false;   // for it
  bool isPolled_ = false;  // by threads of this side
  bool isBelieved_ = false;
  uint32_t polledNews_ = 0;  // that came while they polled
  bool owesWake_ = false;
};

}  // namespace peerlane
