// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_sender.h"

#include <algorithm>
#include <array>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_copy.h"
#include "tests/fake/software_hca/hca_queue_pair.h"

namespace peerlane::softhca {
namespace {

constexpr int kBurst = 64;  // packets of one pair before others have their turn
constexpr uint64_t kLongestMessage = uint64_t{1} << 31;

PacketKind kindOf(const SendEntry& entry) {
  switch (entry.opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return PacketKind::kWrite;
    case IBV_WR_RDMA_READ: return PacketKind::kRead;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return PacketKind::kFetchAdd;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return PacketKind::kCompareSwap;
    default: return PacketKind::kSend;
  }
}

bool hasPayload(const SendEntry& entry) {
  return !entry.isRead() && !entry.isAtomic();
}

uint32_t packetsOf(const SendEntry& entry, uint32_t mtu) {
  if (entry.isAtomic() || entry.length == 0) return 1;
  return (entry.length + mtu - 1) / mtu;
}

}  // namespace

void Sender::begin(uint32_t psn) {
  psn_ = acknowledged_ = psn & kPsnMask;
  retriesLeft_ = pair_.attributes.retry_cnt;
  rnrRetriesLeft_ = pair_.attributes.rnr_retry;
}

void Sender::reset() {
  oldest_ = next_ = begun_ = offset_ = 0;
  readsOut_ = 0;
  ++attempt_;
  deadline_ = UINT64_MAX;
  notReadyUntil_ = 0;
}

bool Sender::turn(uint64_t now) {
  if (pair_.state() == IBV_QPS_ERR) {
    const bool hasWork = oldest_ != pair_.requests.published();
    if (hasWork) endAll(IBV_WC_WR_FLUSH_ERR);
    return hasWork;
  }
  if (pair_.state() != IBV_QPS_RTS || now < notReadyUntil_) return false;
  notReadyUntil_ = 0;
  int sent = 0;
  while (sent < kBurst && next_ != pair_.requests.published()) {
    SendEntry& entry = pair_.requests.at(next_);
    if (offset_ == 0 && !begin(entry)) break;
    if (!sendPiece(entry, now)) break;
    ++sent;
  }
  if (sent > 0) pair_.context.wakePeer(pair_.attributes.dest_qp_num);
  return sent > 0;
}

bool Sender::mayWait(const SendEntry& entry) const {
  if ((entry.flags & IBV_SEND_FENCE) != 0 && readsOut_ > 0) return true;
  return !hasPayload(entry) && readsOut_ > 0 && readsOut_ >= pair_.attributes.max_rd_atomic;
}

// False: not now, or it has failed.
bool Sender::begin(SendEntry& entry) {
  const bool isFirst = next_ >= begun_;
  if (isFirst && mayWait(entry)) return false;
  int wrong = IBV_WC_SUCCESS;
  if (entry.length > kLongestMessage) wrong = IBV_WC_LOC_LEN_ERR;
  if (!hasPayload(entry) && pair_.attributes.max_rd_atomic == 0) wrong = IBV_WC_LOC_QP_OP_ERR;
  if (!entry.isInline() &&
      !pair_.context.regions.areGood(pair_.domain(), entry.pieceList(), !hasPayload(entry)))
    wrong = pair_.context.isLikeRxe() ? IBV_WC_WR_FLUSH_ERR : IBV_WC_LOC_PROT_ERR;
  if (wrong != IBV_WC_SUCCESS) {
    // What went before ends first.
    if (oldest_ == next_ && (!isFirst || pair_.context.mayBegin())) pair_.fail(wrong);
    return false;
  }
  if (isFirst) {
    if (!pair_.context.mayBegin()) return false;
    begun_ = next_ + 1;
    if (!hasPayload(entry)) ++readsOut_;
  }
  entry.firstPsn = psn_;
  entry.lastPsn = (psn_ + packetsOf(entry, pair_.mtuBytes()) - 1) & kPsnMask;
  if (entry.answered != SendEntry::kAnswered) entry.answered = 0;
  return true;
}

void Sender::fill(Packet& packet, SendEntry& entry) const {
  const bool isWhole = !hasPayload(entry);
  const bool isLast = isWhole || offset_ + packet.payloadBytes == entry.length;
  packet.kind = kindOf(entry);
  packet.flags = static_cast<uint8_t>(
      (offset_ == 0 ? Packet::kFirst : 0) | (isLast ? Packet::kLast : 0) |
      (isLast && entry.hasImmediate() ? Packet::kImmediate : 0) |
      (isLast && (entry.flags & IBV_SEND_SOLICITED) != 0 ? Packet::kSolicited : 0));
  packet.mtu = static_cast<uint8_t>(pair_.attributes.path_mtu);
  packet.psn = psn_;
  packet.attempt = attempt_;
  packet.immediate = entry.immediate;
  packet.key = entry.key;
  packet.address = entry.remoteAddress + offset_;
  packet.length = entry.isAtomic() ? entry.compareAdd : entry.length;
  packet.swap = entry.swap;
  pair_.address(packet);
}

// False: no room, or it has failed.
bool Sender::sendPiece(SendEntry& entry, uint64_t now) {
  Context& context = pair_.context;
  const auto bytes = static_cast<uint32_t>(
      hasPayload(entry) ? std::min<uint64_t>(pair_.mtuBytes(), entry.length - offset_) : 0);
  Lane* lane = context.laneTo(context.fabric.endpointOf(pair_.attributes.dest_qp_num));
  const bool isLost = lane == nullptr || !context.isPortUp() ||
                      context.faults.strikes(SOFTWARE_HCA_LOSE_REQUESTS, pair_.qp_base.qp_num);
  if (!isLost) {
    PacketRing& ring = context.fabric.requests(*lane);
    Packet* packet = ring.reserve(bytes);
    if (packet == nullptr) {
      ring.askForRoom();
      context.wakePeer(pair_.attributes.dest_qp_num);
      return false;
    }
    fill(*packet, entry);
    if (entry.isInline()) {
      copyBytes(packet->payload(), entry.inlined() + offset_, bytes);
    } else if (bytes > 0 && !context.regions.gather(pair_.domain(), entry.pieceList(), offset_,
                                                    packet->payload(), bytes)) {
      // Deregistered while it was sent.
      if (oldest_ == next_) pair_.fail(IBV_WC_LOC_PROT_ERR);
      return false;
    }
    ring.commit(packet);
    sentLane_ = lane;
    sentPlace_ = ring.written();
  }
  advance(entry, bytes, now);
  return true;
}

void Sender::advance(const SendEntry& entry, uint32_t bytes, uint64_t now) {
  if (deadline_ == UINT64_MAX) arm(now);
  offset_ += bytes;
  if (hasPayload(entry) && offset_ < entry.length) {
    psn_ = (psn_ + 1) & kPsnMask;
    return;
  }
  psn_ = (entry.lastPsn + 1) & kPsnMask;
  offset_ = 0;
  ++next_;
}

void Sender::arm(uint64_t now) {
  const uint8_t timeout = pair_.attributes.timeout;
  deadline_ = timeout == 0 ? UINT64_MAX - 1 : now + (uint64_t{4096} << timeout);
}

uint64_t Sender::nextTime() const {
  if (notReadyUntil_ != 0) return notReadyUntil_;
  return deadline_ >= UINT64_MAX - 1 ? UINT64_MAX : deadline_;
}

// The entry that this packet belonged to; null: none that is outstanding.
SendEntry* Sender::outstanding(uint32_t psn, uint64_t* number) const {
  const uint64_t end = next_ + (offset_ > 0 ? 1 : 0);
  if (psnDistance(psn, psn_) <= 0) return nullptr;
  for (uint64_t at = oldest_; at != end; ++at) {
    SendEntry& entry = pair_.requests.at(at);
    if (psnDistance(psn, entry.lastPsn) < 0) continue;
    if (number != nullptr) *number = at;
    return psnDistance(entry.firstPsn, psn) >= 0 ? &entry : nullptr;
  }
  return nullptr;
}

void Sender::take(const Packet& answer, uint64_t now) {
  if (pair_.state() != IBV_QPS_RTS && pair_.state() != IBV_QPS_SQD) return;
  if (pair_.context.faults.strikes(SOFTWARE_HCA_LOSE_ANSWERS, pair_.qp_base.qp_num)) return;
  switch (answer.kind) {
    case PacketKind::kAck: return acknowledge(answer.psn, now);
    case PacketKind::kReadPiece:
    case PacketKind::kAtomicResult: return takeData(answer, now);
    case PacketKind::kRnrNak: return takeNotReady(answer, now);
    case PacketKind::kNak: return takeNak(answer, now);
    default: return;
  }
}

void Sender::acknowledge(uint32_t psn, uint64_t now) {
  if (psnDistance(acknowledged_, psn) < 0 || psnDistance(psn, psn_) <= 0) return;
  acknowledged_ = (psn + 1) & kPsnMask;
  completeDone(now);
}

void Sender::completeDone(uint64_t now) {
  const uint64_t before = oldest_;
  retriesLeft_ = pair_.attributes.retry_cnt;
  rnrRetriesLeft_ = pair_.attributes.rnr_retry;
  while (oldest_ != next_) {
    SendEntry& entry = pair_.requests.at(oldest_);
    const bool isDone = hasPayload(entry) ? psnDistance(entry.lastPsn, acknowledged_) > 0
                                          : entry.answered == SendEntry::kAnswered;
    if (!isDone) break;
    if (!hasPayload(entry)) {
      --readsOut_;
      if (psnDistance(entry.lastPsn, acknowledged_) <= 0)
        acknowledged_ = (entry.lastPsn + 1) & kPsnMask;
    }
    complete(entry, oldest_++, IBV_WC_SUCCESS);
  }
  if (oldest_ == next_ && offset_ == 0)
    deadline_ = UINT64_MAX;
  else
    arm(now);
  if (oldest_ != before) pair_.context.makeActive(pair_);
}

void Sender::complete(SendEntry& entry, uint64_t number, int status) {
  if (status == IBV_WC_SUCCESS && !pair_.requests.isSignalled(entry)) return;
  constexpr std::array<ibv_wc_opcode, 7> kOpcodes = {
      IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_SEND,     IBV_WC_SEND,
      IBV_WC_RDMA_READ,  IBV_WC_COMP_SWAP,  IBV_WC_FETCH_ADD};
  ibv_wc made = {};
  made.wr_id = entry.id;
  made.status = static_cast<ibv_wc_status>(status);
  made.opcode = kOpcodes[entry.opcode];
  made.byte_len = hasPayload(entry) ? 0 : entry.length;
  made.qp_num = pair_.qp_base.qp_num;
  made.vendor_err = status == IBV_WC_SUCCESS ? 0 : 0x50 + static_cast<uint32_t>(status);
  completions.add(1);
  pair_.sendQueue().push(made, &pair_, false, number + 1);
}

void Sender::takeData(const Packet& answer, uint64_t now) {
  uint64_t number = 0;
  SendEntry* entry = outstanding(answer.psn, &number);
  if (entry == nullptr || hasPayload(*entry) || entry->answered == SendEntry::kAnswered) return;
  if (entry->isRead() && answer.attempt != attempt_) return;
  const bool isAtomic = answer.kind == PacketKind::kAtomicResult;
  const void* from = isAtomic ? static_cast<const void*>(&answer.swap) : answer.payload();
  const uint32_t bytes = isAtomic ? 8 : answer.payloadBytes;
  if (!pair_.context.regions.scatter(pair_.domain(), entry->pieceList(), answer.address, from,
                                     bytes)) {
    if (number == oldest_) pair_.fail(IBV_WC_LOC_PROT_ERR);
    return;
  }
  entry->answered += bytes;
  if (entry->answered >= entry->length) entry->answered = SendEntry::kAnswered;
  completeDone(now);
}

// All before it arrived and was done.
void Sender::takeNak(const Packet& answer, uint64_t now) {
  uint64_t number = 0;
  if (outstanding(answer.psn, &number) == nullptr) return;
  const uint32_t before = (answer.psn - 1) & kPsnMask;
  if (psnDistance(acknowledged_, before) >= 0) acknowledge(before, now);
  switch (static_cast<NakReason>(answer.detail)) {
    case NakReason::kSequence: return rewind(answer.psn);
    case NakReason::kInvalidRequest: return pair_.fail(IBV_WC_REM_INV_REQ_ERR);
    case NakReason::kRemoteAccess: return pair_.fail(IBV_WC_REM_ACCESS_ERR);
    case NakReason::kRemoteOperation: return pair_.fail(IBV_WC_REM_OP_ERR);
  }
}

void Sender::takeNotReady(const Packet& answer, uint64_t now) {
  constexpr int kForever = 7;
  if (outstanding(answer.psn) == nullptr) return;
  const int left = rnrRetriesLeft_;
  const uint32_t before = (answer.psn - 1) & kPsnMask;
  if (psnDistance(acknowledged_, before) >= 0) {
    acknowledge(before, now);
  } else {
    rnrRetriesLeft_ = left;
  }
  if (pair_.attributes.rnr_retry != kForever && rnrRetriesLeft_-- == 0)
    return pair_.fail(IBV_WC_RNR_RETRY_EXC_ERR);
  rnrRetries.add(1);
  rewind(answer.psn);
  deadline_ = UINT64_MAX;
  notReadyUntil_ = now + rnrNanoseconds(answer.detail);
}

void Sender::rewind(uint32_t psn) {
  uint64_t number = 0;
  SendEntry* entry = outstanding(psn, &number);
  if (entry == nullptr) return;
  next_ = number;
  offset_ = hasPayload(*entry) ? uint64_t{pair_.mtuBytes()} *
                                     static_cast<uint32_t>(psnDistance(entry->firstPsn, psn))
                               : 0;
  psn_ = offset_ == 0 ? entry->firstPsn : psn;
  ++attempt_;
  pair_.context.makeActive(pair_);
}

bool Sender::isTargetSlow() const {
  Context& context = pair_.context;
  const int target = context.fabric.endpointOf(pair_.attributes.dest_qp_num);
  if (target < 0 || sentLane_ == nullptr || context.laneTo(target) != sentLane_) return false;
  return !context.fabric.requests(*sentLane_).isReadTo(sentPlace_) &&
         context.fabric.isAlive(target);
}

void Sender::onTime(uint64_t now) {
  if (now < deadline_ || pair_.state() != IBV_QPS_RTS) {
    wasLate_ = false;
    return;
  }
  // An engine that was away for long finds the answer in its next turn, which follows at once.
  wasLate_ = !wasLate_;
  if (wasLate_) return;
  // Its engine had no time yet: no packet is lost. A device answers however busy its host is.
  if (isTargetSlow()) return arm(now);
  if (retriesLeft_-- == 0) return pair_.fail(IBV_WC_RETRY_EXC_ERR);
  retries.add(1);
  arm(now);
  const uint64_t end = next_ + (offset_ > 0 ? 1 : 0);
  if (oldest_ == end) return;
  // What was acknowledged after a READ that was not answered goes again, too.
  const SendEntry& oldest = pair_.requests.at(oldest_);
  rewind(hasPayload(oldest) ? acknowledged_ : oldest.firstPsn);
}

void Sender::endAll(int status) {
  deadline_ = UINT64_MAX;
  notReadyUntil_ = 0;
  for (const uint64_t end = pair_.requests.published(); oldest_ != end;
       status = IBV_WC_WR_FLUSH_ERR) {
    const uint64_t number = oldest_++;
    complete(pair_.requests.at(number), number, status);
  }
  next_ = begun_ = oldest_;
  offset_ = 0;
  readsOut_ = 0;
}

bool Sender::isIdle() const {
  if (pair_.state() != IBV_QPS_RTS && pair_.state() != IBV_QPS_ERR) return true;
  return oldest_ == pair_.requests.published();
}

bool Sender::isSettled() const {
  if (pair_.state() != IBV_QPS_RTS && pair_.state() != IBV_QPS_ERR) return true;
  return oldest_ == next_ && offset_ == 0 &&
         (next_ == pair_.requests.published() || pair_.context.isHeld());
}

}  // namespace peerlane::softhca
