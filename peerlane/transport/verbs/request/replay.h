// SPDX-License-Identifier: Apache-2.0
//
// Replay: decides what becomes of the works of a link whose pairs have ended, when the two sides
// make new ones. A request without an answer was executed by the peer's device or not. These
// facts are certain: requests of one pair are executed in order; the peer says how many news it
// took, so one that carried news was executed if it is among them, and neither it nor any after it
// otherwise; a request with a fence was not sent before the reads before it had brought their
// bytes.
//
// A work is posted again only where that cannot harm: its user does not know that it ended, and no
// word after it in its mailbox was, or may have been, executed, because the consumer who saw that
// word may have used the memory for something else. So a put goes again unless such a word is in
// doubt; a word goes again where it is certain that it was not executed. An addition, or a word
// without news, that is in doubt ends as lost, and with it what was not certainly executed before
// it in its mailbox, and all after it. explore/remake_protocol.h. (The problem, and that only the
// receiver can tell, are NCCL's: its port failover asks the receiver for what it completed.)
//
// Plain computation; external synchronization.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "peerlane/program/model/mailbox.h"
#include "peerlane/transport/verbs/request/request_ledger.h"

namespace peerlane {

class Replay {
 public:
  enum class Fate : uint8_t {
    kDone,   // executed, or it has failed already: it ends with its code
    kAgain,  // to be posted from its beginning
    kLost,   // in doubt
  };
  struct Judged {
    AgentWork* work = nullptr;
    Fate fate = Fate::kAgain;
  };

  // `taken`: news of this side that the peer took; null: it does not know. `noneExecuted`: the
  // first pair's device said that nothing of what is under way over it was.
  Replay(std::optional<uint64_t> taken, bool noneExecuted)
      : taken_(taken), noneExecuted_(noneExecuted) {}

  // The requests under way over the first pair; over another one.
  void addFirst(RequestLedger& ledger);
  void addOther(RequestLedger& ledger);
  // A work that has no request under way: a mail that waits for the peer's word, or one that waits
  // for room.
  void add(AgentWork& work) { (void)known(work); }

  // Every work, those of one mailbox in their order.
  std::vector<Judged> judge() const;

 private:
  struct Known {
    AgentWork* work = nullptr;
    bool isPosted = false;      // in part, at least
    bool wasExecuted = false;   // its first request was
    bool isUntouched = false;   // none of its requests was, certainly
    bool isExecuted = false;    // its last request was
    bool broughtBytes = false;  // a later request of its mailbox, which waited for it, was executed
  };
  Known& known(AgentWork& work);
  bool isTaken(uint64_t news) const { return taken_ && news <= *taken_; }
  Fate fateOf(const Known& known) const;

  const std::optional<uint64_t> taken_;
  const bool noneExecuted_;
  std::map<const Mailbox*, std::vector<Known>> mailboxes_;
};

}  // namespace peerlane
