// SPDX-License-Identifier: Apache-2.0
//
// FrameSender: the outgoing half of a frame agent. Turns works, acknowledgements and the peer's get
// requests into frames, and keeps the works that wait for an answer. Payloads are never copied: the
// pipe reads them where they lie. External synchronization required (the agent's lock).
//
// One work is cut into frames at a time, from its first frame to its last. Other works wait with
// their mailboxes. A work that began can be abandoned: no further frame is cut from it. A get ends
// with endAbandonedGets(), for this side alone writes its memory. Any other ends when the peer has
// answered for the frames that were cut, because the pipe may be in the middle of its memory, and
// the peer may be writing its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "peerlane/program/model/mailbox.h"
#include "peerlane/transport/frame_batch.h"
#include "peerlane/transport/frame_format.h"
#include "peerlane/transport/frame_pipe.h"
#include "peerlane/transport/frame_replies.h"
#include "peerlane/transport/frame_requests.h"

namespace peerlane {

// Actions that the agent carries out after it has unlocked, because they call other code.
struct FrameEffects {
  std::vector<std::pair<AgentWork*, Code>> finished;
  std::vector<uint64_t> unpinned;    // allocations, one unpin each
  std::vector<std::string> refused;  // for the log: refused requests of the peer, and why
  bool wake = false;                 // there is more to do: somebody has to poll
  bool stored = false;               // a word that a thread may wait for
};

class FrameSender {
 public:
  explicit FrameSender(bool hasTrailers = true) : batch_(hasTrailers) {}

  // A batch of frames takes no further one beyond this, so that an acknowledgement does not wait
  // long.
  static constexpr size_t kBatchBytes = 2 * kFrameMaxPayload;
  // The most bytes of a work's payload that are written after it was abandoned: the batch that was
  // cut.
  static constexpr size_t kWindowBytes = kBatchBytes + kFrameMaxPayload;

  // False while another work is being cut, the peer owes too many answers, or `work` must not
  // overtake a get of its own mailbox (the peer answers gets when it finds the time, but applies
  // the rest at once). Later, change() shows when another try may succeed.
  bool mayBegin(const AgentWork& work);
  // How a word depends on the entry before it (MailboxEntry::onlyAfterPrevious).
  struct Tie {
    uint8_t after = 0;      // Frame::after
    bool mustWait = false;  // it is too long ago: the work may begin when it is complete
    Code code = Code::kOk;  // it is complete, and failed: so does this one
  };
  Tie tieOf(const AgentWork& work) const;
  // Takes the work until it is in FrameEffects::finished. Requires: mayBegin(work).
  void begin(AgentWork& work);
  // No further frame is cut from `work`; it ends with `code` if frames were left out, a get in any
  // case. No effect on another work that is completely cut, and on one that is ended or unknown.
  void abandon(AgentWork& work, Code code, FrameEffects& effects);
  // Ends gets that were abandoned. Requires: their data on its way in is dropped from now on
  // (isAbandoned), as destination() says for what comes later.
  void endAbandonedGets(FrameEffects& effects);
  // Whether nobody waits for the data of this request any more.
  bool isAbandoned(uint64_t request) const { return requests_.isAbandoned(request); }

  // Entry `entry` of the peer ended here. In order of the entries. Errors: kCorrupt when the peer
  // reads no answers and still sends more entries.
  Status acknowledge(uint64_t entry, Code code);
  // To the peer's get requests.
  FrameReplies& replies() { return replies_; }

  // Writes at most about `budget` bytes; returns how many. Memory that cannot be read any more
  // fails its work, or the peer's request, alone (kRevoked). Errors: the pipe's; kUnavailable (the
  // peer is of a version that cannot be told of such memory).
  Result<size_t> pump(FramePipe& pipe, size_t budget, FrameEffects& effects);
  // Acknowledgements, or frames that were cut, wait and nothing of them is written.
  bool owes() const { return !acks_.empty() || (!batch_.isWritten() && batch_.isUntouched()); }
  // Nothing but acknowledgements waits to be sent.
  bool owesOnlyAnswers() const {
    return !acks_.empty() && batch_.isWritten() && current_ == nullptr && replies_.isEmpty() &&
           cancels_.empty();
  }
  // No frame is half written, and the batch takes more.
  bool hasRoom() const { return batch_.isWritten() || (batch_.isUntouched() && !batch_.isFull()); }
  // Cuts the work that began last into the batch. False: it does not fit as a whole.
  bool cutWholly(FrameEffects& effects);
  // No work was begun that has not ended.
  bool isIdle() const { return current_ == nullptr && entries_.empty() && requests_.isEmpty(); }
  // Memory that the pipe has read at last is still pinned: pump() ends that.
  bool mayUnpin(FramePipe& pipe) const {
    return !lent_.empty() && pipe.returned() >= lent_.front().total;
  }
  // True when there is something to write.
  bool busy() const {
    return !batch_.isWritten() || current_ != nullptr || !acks_.empty() || !replies_.isEmpty() ||
           !cancels_.empty();
  }

  // The peer's answer to an entry. Errors: kCorrupt when this side sent no such entry.
  Status answered(uint64_t entry, Code code, FrameEffects& effects);
  // As FrameRequests::bytesToCome.
  uint64_t bytesToCome() const { return requests_.bytesToCome(); }
  // As FrameRequests::destination.
  Status destination(const Frame& frame, FramePlaces& places) {
    return requests_.destination(frame, places);
  }
  // Memory for data of this request, the oldest, cannot be written, or the peer could not read its:
  // it ends with `code`, whatever else comes.
  void spoilRequest(uint64_t request, Code code) { requests_.spoil(request, code); }
  // The oldest request ended: its last byte has arrived, or the peer refused it. Or an abandoned
  // request ended, which may overtake older ones.
  Status requestEnded(uint64_t request, Code code, FrameEffects& effects);

  // Ends all works taken with `code` and releases every pin. Later calls write nothing.
  void endAll(Code code, FrameEffects& effects);

 private:
  struct Ack {
    uint64_t entry = 0;
    Code code = Code::kOk;
  };
  struct Entry {
    uint64_t sequence = 0;
    AgentWork* work = nullptr;
    Code abandoned = Code::kOk;  // ends with this, though the peer performed the frames it got
  };
  void abandonGet(AgentWork& work, Code code, FrameEffects& effects);
  void fill(FrameEffects& effects);
  bool addAckFrame();
  bool addCancelFrame();
  bool addWorkFrame(FrameEffects& effects);
  void addPutFrame(AgentWork& work);
  void addEndFrame(AgentWork& work);
  void addWordFrame(AgentWork& work);
  bool addRequestFrame(AgentWork& work, FrameEffects& effects);
  void entryCut(AgentWork& work);
  void getPartEnded(AgentWork& work, Code code, FrameEffects& effects);
  void noteRoom(FrameEffects& effects);
  void keepLent(const FramePipe& pipe, size_t before, FrameEffects& effects);
  void unpinReturned(FramePipe& pipe, FrameEffects& effects);
  Status spoil(FrameEffects& effects);

  FrameBatch batch_;

  AgentWork* current_ = nullptr;
  Code abandoned_ = Code::kOk;  // of the current work, unless it is a get: it ends with this
  bool replyNext_ = false;      // replies and the current work take turns
  bool refused_ = false;        // mayBegin() refused a work, which comes again
  std::deque<Ack> acks_;
  std::deque<FrameRequests::Range> cancels_;  // of which the peer must still be told
  FrameReplies replies_;
  struct Lent {
    uint64_t total = 0;  // FramePipe::lent() when its last byte had been written
    uint64_t allocation = 0;
  };
  std::deque<Lent> lent_;      // pinned until the pipe has read it
  std::deque<Entry> entries_;  // cut, not answered
  FrameRequests requests_;
  std::unordered_map<const Mailbox*, uint32_t> gets_;  // works with verb kGet by mailbox
  uint64_t nextEntry_ = 1;
};

}  // namespace peerlane
