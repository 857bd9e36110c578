// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_responder.h"

#include <algorithm>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_copy.h"
#include "tests/fake/software_hca/hca_queue_pair.h"

namespace peerlane::softhca {
namespace {

constexpr int kNoEvent = -1;
constexpr uint32_t kPacketsToAnAnswer = 64;  // within one message

bool isSet(const Packet& packet, Packet::Flags flag) {
  return (packet.flags & flag) != 0;
}

}  // namespace

void Responder::begin(uint32_t psn) {
  expected_ = psn & kPsnMask;
}

void Responder::reset() {
  (void)placement_.flushAcknowledged();
  placement_.drop();
  reads_.clear();
  results_ = {};
  isGapKnown_ = isAckDue_ = hasReceive_ = isRefusing_ = false;
  received_ = 0;
  unanswered_ = 0;
}

bool Responder::isFromPeer(const Packet& packet) const {
  // Packets on a wire do not say which pair sent them: addresses and numbers decide.
  Packet expected = {};
  pair_.address(expected);
  return packet.source == expected.destination && packet.destination == expected.source;
}

void Responder::take(const Packet& request, uint64_t now) {
  const ibv_qp_state state = pair_.state();
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD) return;
  if (!isFromPeer(request) || isRefusing_) return;
  const int32_t ahead = psnDistance(expected_, request.psn);
  if (ahead < 0) return takeAgain(request);
  if (ahead > 0) {
    if (!isGapKnown_)
      answer(PacketKind::kNak, expected_, static_cast<uint8_t>(NakReason::kSequence));
    isGapKnown_ = true;
    return;
  }
  isGapKnown_ = false;
  takeInOrder(request, now);
}

void Responder::takeInOrder(const Packet& request, uint64_t now) {
  if (request.payloadBytes > pair_.mtuBytes())
    return refuse(request, NakReason::kInvalidRequest, IBV_EVENT_QP_REQ_ERR);
  bool isTaken = false;
  switch (request.kind) {
    case PacketKind::kWrite: isTaken = takeWrite(request, now); break;
    case PacketKind::kSend: isTaken = takeSend(request, now); break;
    case PacketKind::kRead: isTaken = takeRead(request, now); break;
    case PacketKind::kFetchAdd:
    case PacketKind::kCompareSwap: isTaken = takeAtomic(request); break;
    default: return;
  }
  if (!isTaken) return;
  pair_.communicates();
  if (request.kind == PacketKind::kRead) {
    const uint32_t mtu = pair_.mtuBytes();
    const auto packets =
        static_cast<uint32_t>(std::max<uint64_t>(1, (request.length + mtu - 1) / mtu));
    expected_ = (expected_ + packets) & kPsnMask;
    return;
  }
  expected_ = (expected_ + 1) & kPsnMask;
  const bool isAnswered =
      request.kind == PacketKind::kFetchAdd || request.kind == PacketKind::kCompareSwap;
  if (isAnswered) return;
  if (!isSet(request, Packet::kLast)) return acknowledgePart();
  if (!isAckDue_ && pair_.context.settings.ackDelayNs > 0)
    ackAt_ = now + pair_.context.random() % pair_.context.settings.ackDelayNs;
  isAckDue_ = true;
  unanswered_ = 0;
}

// A requester's timeout bounds the time to the next answer, not the time that a long message takes.
// An answer counts for all that came before it: an earlier message that is not placed yet has none.
void Responder::acknowledgePart() {
  if (isAckDue_ || ++unanswered_ < kPacketsToAnAnswer) return;
  if (answer(PacketKind::kAck, (expected_ - 1) & kPsnMask, 0)) unanswered_ = 0;
}

// It was done before, and its answer was lost or is late.
void Responder::takeAgain(const Packet& request) {
  if (request.kind == PacketKind::kRead) {
    std::erase_if(reads_, [&](const ReadJob& job) { return job.psn == request.psn; });
    reads_.push_back(
        {request.psn, request.attempt, request.key, request.address, request.length, 0, false});
  } else if (request.kind == PacketKind::kFetchAdd || request.kind == PacketKind::kCompareSwap) {
    for (const AtomicResult& result : results_)
      if (result.isValid && result.psn == request.psn)
        answer(PacketKind::kAtomicResult, request.psn, 0, result.found, request.attempt);
  } else {
    isAckDue_ = true;
  }
}

bool Responder::isRefused(const Packet& request, unsigned right) {
  if ((pair_.attributes.qp_access_flags & right) != 0) return false;
  refuse(request, NakReason::kInvalidRequest, IBV_EVENT_QP_REQ_ERR);
  return true;
}

bool Responder::takeWrite(const Packet& request, uint64_t now) {
  if (isRefused(request, IBV_ACCESS_REMOTE_WRITE)) return false;
  const bool isLast = isSet(request, Packet::kLast);
  if (isSet(request, Packet::kFirst) && request.length > 0 &&
      pair_.context.regions.find(pair_.domain(), request.key, request.address, request.length,
                                 IBV_ACCESS_REMOTE_WRITE) == nullptr) {
    refuse(request, NakReason::kRemoteAccess, IBV_EVENT_QP_ACCESS_ERR);
    return false;
  }
  const bool hasImmediate = isLast && isSet(request, Packet::kImmediate);
  if (hasImmediate && !useReceive(request)) return false;
  if (request.payloadBytes > 0 && !placement_.write(request.key, request.address, request.payload(),
                                                    request.payloadBytes, now)) {
    refuse(request, NakReason::kRemoteAccess, IBV_EVENT_QP_ACCESS_ERR);
    return false;
  }
  if (!hasImmediate) return true;
  if (!placement_.flush()) {
    refuse(request, NakReason::kRemoteAccess, IBV_EVENT_QP_ACCESS_ERR);
    return false;
  }
  complete(request, IBV_WC_RECV_RDMA_WITH_IMM, static_cast<uint32_t>(request.length));
  return true;
}

// False: there is none, which was answered.
bool Responder::useReceive(const Packet& request) {
  if (hasReceive_) return true;
  const bool isHidden = pair_.context.faults.strikes(SOFTWARE_HCA_NOT_READY, pair_.qp_base.qp_num);
  if (!isHidden && pair_.takeReceive(receive_)) {
    hasReceive_ = true;
    received_ = 0;
    return true;
  }
  isGapKnown_ = true;  // what follows is dropped until this one comes again
  answer(PacketKind::kRnrNak, request.psn, pair_.attributes.min_rnr_timer);
  return false;
}

bool Responder::takeSend(const Packet& request, uint64_t) {
  if (!useReceive(request)) return false;
  const Regions& regions = pair_.context.regions;
  uint64_t room = 0;
  for (const ibv_sge& piece : receive_.pieces) room += piece.length;
  ibv_wc_status wrong = IBV_WC_SUCCESS;
  if (received_ + request.payloadBytes > room)
    wrong = IBV_WC_LOC_LEN_ERR;
  else if (!regions.scatter(pair_.receiveDomain(), receive_.pieces, received_, request.payload(),
                            request.payloadBytes))
    wrong = IBV_WC_LOC_PROT_ERR;
  if (wrong != IBV_WC_SUCCESS) {
    const bool isInvalid = wrong == IBV_WC_LOC_LEN_ERR && !pair_.context.isLikeRxe();
    if (wrong == IBV_WC_LOC_LEN_ERR && !isInvalid) wrong = IBV_WC_LOC_QP_OP_ERR;
    pair_.completeReceive(receive_.id, wrong);
    hasReceive_ = false;
    refuse(request, isInvalid ? NakReason::kInvalidRequest : NakReason::kRemoteOperation,
           isInvalid ? IBV_EVENT_QP_REQ_ERR : kNoEvent);
    return false;
  }
  received_ += request.payloadBytes;
  if (!isSet(request, Packet::kLast)) return true;
  if (!placement_.flush()) {
    refuse(request, NakReason::kRemoteAccess, IBV_EVENT_QP_ACCESS_ERR);
    return false;
  }
  complete(request, IBV_WC_RECV, static_cast<uint32_t>(received_));
  return true;
}

void Responder::complete(const Packet& request, ibv_wc_opcode opcode, uint32_t bytes) {
  ibv_wc made = {};
  made.wr_id = receive_.id;
  made.opcode = opcode;
  made.byte_len = bytes;
  made.qp_num = pair_.qp_base.qp_num;
  made.src_qp = request.sourceQueuePair;
  if (isSet(request, Packet::kImmediate)) {
    made.wc_flags |= IBV_WC_WITH_IMM;
    made.imm_data = request.immediate;
  }
  hasReceive_ = false;
  completions.add(1);
  pair_.receiveQueue().push(made, &pair_, isSet(request, Packet::kSolicited));
}

bool Responder::takeRead(const Packet& request, uint64_t now) {
  if (isRefused(request, IBV_ACCESS_REMOTE_READ)) return false;
  if (reads_.size() >= std::max<size_t>(1, pair_.attributes.max_dest_rd_atomic)) {
    refuse(request, NakReason::kInvalidRequest, IBV_EVENT_QP_REQ_ERR);
    return false;
  }
  // With adaptive routing it may be served before WRITEs that came earlier and are not
  // acknowledged.
  const bool overtakes = pair_.context.settings.order == Order::kAdaptive;
  const bool isBad = request.length > 0 &&
                     pair_.context.regions.find(pair_.domain(), request.key, request.address,
                                                request.length, IBV_ACCESS_REMOTE_READ) == nullptr;
  if (isBad || !(overtakes ? placement_.flushAcknowledged() : placement_.flush())) {
    refuse(request, NakReason::kRemoteAccess, IBV_EVENT_QP_ACCESS_ERR);
    return false;
  }
  const bool isLate = overtakes && pair_.context.random() % 2 == 0;
  reads_.push_back(
      {request.psn, request.attempt, request.key, request.address, request.length, 0, isLate});
  if (isLate) ackAt_ = now + pair_.context.random() % (pair_.context.settings.windowNs + 1);
  return true;
}

bool Responder::takeAtomic(const Packet& request) {
  if (isRefused(request, IBV_ACCESS_REMOTE_ATOMIC)) return false;
  const Region* region = pair_.context.regions.find(pair_.domain(), request.key, request.address, 8,
                                                    IBV_ACCESS_REMOTE_ATOMIC);
  if (region == nullptr || !placement_.flush()) {
    refuse(request, NakReason::kRemoteAccess, IBV_EVENT_QP_ACCESS_ERR);
    return false;
  }
  if (request.address % 8 != 0) {
    refuse(request, NakReason::kInvalidRequest, IBV_EVENT_QP_REQ_ERR);
    return false;
  }
  void* word = region->at(request.address);
  const uint64_t found = request.kind == PacketKind::kFetchAdd
                             ? fetchAdd(word, request.length)
                             : compareSwap(word, request.length, request.swap);
  results_[lastResult_++ % results_.size()] = {request.psn, found, true};
  answer(PacketKind::kAtomicResult, request.psn, 0, found, request.attempt);
  return true;
}

void Responder::refuse(const Packet& request, NakReason reason, int event) {
  isRefusing_ = true;
  refusedPsn_ = request.psn;
  reason_ = reason;
  placement_.flush();
  if (event != kNoEvent && !(pair_.context.isLikeRxe() && event == IBV_EVENT_QP_REQ_ERR))
    pair_.raise(static_cast<ibv_event_type>(event));
  pair_.fail(IBV_WC_WR_FLUSH_ERR);
  pair_.context.makeActive(pair_);
}

Responder::Reserved Responder::reserveAnswer(size_t bytes) {
  Context& context = pair_.context;
  Lane* lane = context.laneTo(context.fabric.endpointOf(pair_.attributes.dest_qp_num));
  if (lane == nullptr) return {};
  PacketRing& ring = context.fabric.answers(*lane);
  Packet* packet = ring.reserve(bytes);
  if (packet == nullptr) ring.askForRoom();
  return {packet, &ring};
}

bool Responder::answer(PacketKind kind, uint32_t psn, uint8_t detail, uint64_t swap,
                       uint32_t attempt) {
  const auto [packet, ring] = reserveAnswer(0);
  if (packet == nullptr) return false;
  packet->kind = kind;
  packet->psn = psn;
  packet->detail = detail;
  packet->swap = swap;
  packet->attempt = attempt;
  pair_.sendAnswer(packet, *ring);
  return true;
}

bool Responder::sendReadPiece(ReadJob& job) {
  const auto bytes =
      static_cast<uint32_t>(std::min<uint64_t>(pair_.mtuBytes(), job.length - job.done));
  const Region* region = pair_.context.regions.find(pair_.domain(), job.key, job.address + job.done,
                                                    bytes, IBV_ACCESS_REMOTE_READ);
  if (region == nullptr && bytes > 0) {
    if (isRefusing_) return job.done = job.length, true;
    Packet at = {};
    at.psn = job.psn;
    refuse(at, NakReason::kRemoteAccess, IBV_EVENT_QP_ACCESS_ERR);
    job.done = job.length;
    return true;
  }
  const auto [packet, ring] = reserveAnswer(bytes);
  if (packet == nullptr) return false;
  packet->kind = PacketKind::kReadPiece;
  packet->psn = job.psn;
  packet->attempt = job.attempt;
  packet->address = job.done;
  if (bytes > 0)
    pair_.context.regions.fetch(*region, job.address + job.done, packet->payload(), bytes);
  pair_.sendAnswer(packet, *ring);
  job.done += bytes;
  return true;
}

bool Responder::turn(uint64_t now) {
  if (!placement_.turn(now)) {
    Packet at = {};
    at.psn = expected_;
    refuse(at, NakReason::kRemoteAccess, IBV_EVENT_QP_ACCESS_ERR);
  }
  if (!isOwing()) return false;
  Context& context = pair_.context;
  const int peer = context.fabric.endpointOf(pair_.attributes.dest_qp_num);
  if (!context.isPortUp() || context.laneTo(peer) == nullptr) {
    // Nobody hears it.
    reads_.clear();
    isAckDue_ = isRefusing_ = false;
    return false;
  }
  bool did = false;
  constexpr int kBurst = 64;
  for (int sent = 0; sent < kBurst && !reads_.empty(); ++sent) {
    ReadJob& job = reads_.front();
    if (job.isDeferred && now < ackAt_) return did;
    if (!sendReadPiece(job)) return did;
    did = true;
    if (job.done >= job.length) reads_.pop_front();
  }
  if (reads_.empty()) did = sendOwed(now) || did;
  return did;
}

// What stays owed, because the ring is full, is sent in a later turn.
bool Responder::sendOwed(uint64_t now) {
  if (isRefusing_) {
    if (!answer(PacketKind::kNak, refusedPsn_, static_cast<uint8_t>(reason_))) return false;
    isRefusing_ = isAckDue_ = false;
    return true;
  }
  const bool isEarly = pair_.context.settings.acksUnplaced;
  if (!isAckDue_ || (!isEarly && !placement_.isEmpty()) || now < ackAt_) return false;
  isAckDue_ = !answer(PacketKind::kAck, (expected_ - 1) & kPsnMask, 0);
  if (!isAckDue_) placement_.acknowledge();
  return !isAckDue_;
}

uint64_t Responder::nextTime() const {
  uint64_t next = placement_.nextTime();
  if (isAckDue_ || !reads_.empty()) next = std::min(next, std::max<uint64_t>(ackAt_, 1));
  return next;
}

void Responder::endAll() {
  if (hasReceive_) pair_.completeReceive(receive_.id, IBV_WC_WR_FLUSH_ERR);
  hasReceive_ = false;
}

}  // namespace peerlane::softhca
