// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/shared_queues.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

constexpr uint32_t kFirstCompletions = 4096;
constexpr uint32_t kMostReceives = 8192;
// Of a peer, while there is plenty, and when there are many peers.
constexpr uint32_t kUsualReceives = 16;
constexpr uint32_t kFewReceives = 4;

}  // namespace

SharedQueues::SharedQueues(std::shared_ptr<const ProtectionDomain> domain, ReadinessSet& readiness,
                           const Bell& bell)
    : domain_(std::move(domain)),
      library_(domain_->device().library()),
      readiness_(readiness),
      pollers_(bell.localWaker().word) {}

Result<std::unique_ptr<SharedQueues>> SharedQueues::create(
    std::shared_ptr<const ProtectionDomain> domain, EventLoop& loop, ReadinessSet& readiness,
    const Bell& bell) {
  std::unique_ptr<SharedQueues> queues(new SharedQueues(std::move(domain), readiness, bell));
  PEERLANE_RETURN_IF_ERROR(queues->makeQueues(loop));
  return queues;
}

Status SharedQueues::makeQueues(EventLoop& loop) {
  const verbs::VerbsDevice& device = domain_->device();
  const auto failed = [&](const char* what) {
    return Status::system(errno, device.name() + ": " + what);
  };
  channel_ = library_.ibv_create_comp_channel(device.handle());
  if (channel_ == nullptr) return failed("ibv_create_comp_channel");
  if (::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK) != 0)
    return failed("the channel of completions");
  const int entries = static_cast<int>(
      std::min<uint32_t>(kFirstCompletions, static_cast<uint32_t>(device.limits().max_cqe)));
  completions_ = library_.ibv_create_cq(device.handle(), entries, nullptr, channel_, 0);
  if (completions_ == nullptr) return failed("ibv_create_cq");
  ibv_srq_init_attr wanted{};
  wanted.attr.max_wr =
      std::min<uint32_t>(kMostReceives, static_cast<uint32_t>(device.limits().max_srq_wr));
  wanted.attr.max_sge = 1;
  receives_ = library_.ibv_create_srq(domain_->handle(), &wanted);
  if (receives_ == nullptr) return failed("ibv_create_srq");
  mostReceives_ = std::min<uint32_t>(kMostReceives, wanted.attr.max_wr);
  PEERLANE_ASSIGN(member_, readiness_.add(channel_->fd, /*isOften=*/false));
  PEERLANE_ASSIGN(events_,
                  loop.watch(device.handle()->async_fd, true, false, [this] { deviceEvents(); }));
  return Status::ok();
}

SharedQueues::~SharedQueues() {
  events_ = Watch();
  if (member_) readiness_.remove(*member_);
  const auto check = [this](const char* what, int error) {
    if (error != 0)
      PEERLANE_LOG_ERROR("{}",
                         Status::system(error, domain_->device().name() + ": " + what).message());
  };
  if (receives_ != nullptr) check("ibv_destroy_srq", library_.ibv_destroy_srq(receives_));
  if (completions_ != nullptr) check("ibv_destroy_cq", library_.ibv_destroy_cq(completions_));
  if (channel_ != nullptr)
    check("ibv_destroy_comp_channel", library_.ibv_destroy_comp_channel(channel_));
}

// Every request may end by a completion of its own, when its pair fails; so may every receive.
Result<uint32_t> SharedQueues::reserve(uint32_t requests) {
  const TurnHolder turn(right_);
  const uint32_t left = mostReceives_ - promised_;
  const uint32_t receives = left > mostReceives_ / 2 ? kUsualReceives : kFewReceives;
  if (left < receives)
    return Status(Code::kUnavailable,
                  domain_->device().name() + " has " + std::to_string(mostReceives_) +
                      " receives for the peers of one context, and all are promised to " +
                      std::to_string(owners_.size()) +
                      " peers; PEERLANE_IB_DOMAIN=peer gives each peer its own");
  PEERLANE_RETURN_IF_ERROR(growCompletions(reserved_ + requests + receives));
  PEERLANE_RETURN_IF_ERROR(addReceives(receives));
  reserved_ += requests + receives;
  promised_ += receives;
  watchReceives();
  return receives;
}

Status SharedQueues::reserveMore(uint32_t requests) {
  const TurnHolder turn(right_);
  PEERLANE_RETURN_IF_ERROR(growCompletions(reserved_ + requests));
  reserved_ += requests;
  return Status::ok();
}

// What was posted for the peer serves the next one.
void SharedQueues::giveBack(uint32_t requests, uint32_t receives) {
  const TurnHolder turn(right_);
  reserved_ -= requests + receives;
  promised_ -= receives;
}

Status SharedQueues::growCompletions(uint32_t wanted) {
  auto entries = static_cast<uint32_t>(completions_->cqe);
  if (entries >= wanted) return Status::ok();
  const auto most = static_cast<uint32_t>(domain_->device().limits().max_cqe);
  if (wanted > most)
    return Status(Code::kUnavailable, domain_->device().name() + " has queues of " +
                                          std::to_string(most) + " completions; the pairs of " +
                                          std::to_string(owners_.size() + 1) + " peers need " +
                                          std::to_string(wanted) +
                                          "; a smaller PEERLANE_IB_PAIRS needs fewer" +
                                          (owners_.empty() ? ""
                                                           : ", and PEERLANE_IB_DOMAIN=peer gives "
                                                             "each peer queues of its own"));
  while (entries < wanted) entries = std::min(most, 2 * entries);
  if (const int error = library_.ibv_resize_cq(completions_, static_cast<int>(entries)); error != 0)
    return Status::system(error, domain_->device().name() + ": a queue of " +
                                     std::to_string(entries) + " completions");
  return Status::ok();
}

// A pair that ends takes with it the completions that nobody has polled, and with them the only
// word of receives that it took up. The device says when many are gone.
void SharedQueues::watchReceives() {
  leastReceives_ = promised_ / 2;
  ibv_srq_attr attr{};
  attr.srq_limit = leastReceives_;
  if (const int error = library_.ibv_modify_srq(receives_, &attr, IBV_SRQ_LIMIT); error != 0)
    PEERLANE_LOG_WARN(
        "{}", Status::system(error, domain_->device().name() + ": ibv_modify_srq").message());
}

// Some that only seem lost come too many; the queue has room, and holds no more than it has.
void SharedQueues::replaceLost() {
  (void)handOut();
  posted_ = std::min(posted_, leastReceives_);
  if (const Status status = addReceives(0); !status.isOk()) return failAll(status);
  watchReceives();
}

// They carry nothing: news is a number that comes with a write.
Status SharedQueues::addReceives(uint32_t count) {
  if (promised_ + count <= posted_) return Status::ok();  // of a peer that has left
  count = promised_ + count - posted_;
  std::array<ibv_recv_wr, kBatch> requests{};
  for (uint32_t left = count; left != 0;) {
    const uint32_t now = std::min<uint32_t>(left, kBatch);
    for (uint32_t i = 0; i < now; ++i) {
      requests[i].wr_id = kReceiveBit;
      requests[i].next = i + 1 == now ? nullptr : &requests[i + 1];
    }
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_srq_recv(receives_, requests.data(), &refused);
    if (error == ENOMEM && promised_ + kUsualReceives <= mostReceives_) {
      posted_ += left;  // it is full
      return Status::ok();
    }
    if (error != 0) return Status::system(error, domain_->device().name() + ": ibv_post_srq_recv");
    left -= now;
    posted_ += now;
  }
  return Status::ok();
}

void SharedQueues::add(uint32_t pair, PairOwner& owner) {
  const TurnHolder turn(right_);
  owners_[pair] = &owner;
}

void SharedQueues::remove(uint32_t pair) {
  const TurnHolder turn(right_);
  const auto found = owners_.find(pair);
  if (found == owners_.end()) return;
  std::erase(believed_, found->second);
  owners_.erase(found);
  std::erase(exhausted_, pair);
}

// The event may come before the completions that it stands for, so they are polled after it.
bool SharedQueues::takeRest(uint32_t pair) {
  constexpr std::chrono::milliseconds kLongest{100};
  const auto until = std::chrono::steady_clock::now() + kLongest;
  for (bool isLast = false; !isLast; std::this_thread::yield()) {
    isLast = std::chrono::steady_clock::now() >= until;
    deviceEvents();
    right_.take();
    const bool isExhausted = std::erase(exhausted_, pair) != 0;
    right_.letGo();
    // Other pairs may go on meanwhile: no more than can have been there.
    const int most = completions_->cqe / (kBatch * kBatchesPerTurn) + 1;
    for (int i = 0; i < most && poll(); ++i) {
    }
    if (isExhausted) return true;
  }
  return false;
}

bool SharedQueues::poll() {
  // A thread that polls for the last time before it sleeps must not be sent away: it arms the
  // queue.
  right_.take();
  if (isArmed_ && member_->mayRead.exchange(false, std::memory_order_relaxed)) takeEvents();
  bool moved = handOut();
  if (nobodyPolls()) {
    stopPolling();
    // An event that comes after arming stays in the channel for the next turn, which arms the queue
    // again. A look that took it here would leave the queue unarmed.
    if (!isArmed_) {
      arm();
      moved |= handOut();
    }
  }
  right_.letGo();
  return moved;
}

bool SharedQueues::handOut() {
  const bool moved = drain();
  if (takenUp_ != 0) {
    posted_ -= std::min(posted_, std::exchange(takenUp_, 0));
    if (const Status status = addReceives(0); !status.isOk()) failAll(status);
  }
  const bool isPolled = !touched_.empty() && !nobodyPolls();
  for (PairOwner* const owner : touched_) settle(*owner, isPolled);
  touched_.clear();
  return moved;
}

void SharedQueues::settle(PairOwner& owner, bool isPolled) {
  const auto known = std::find(believed_.begin(), believed_.end(), &owner);
  const bool isBelieved = owner.settle(isPolled);
  if (isBelieved && known == believed_.end()) believed_.push_back(&owner);
  if (!isBelieved && known != believed_.end()) believed_.erase(known);
}

// The answers of the peers' devices wake this side, which then looks at its words once more: one
// that was written without news, before the peer knew, is seen then.
void SharedQueues::stopPolling() {
  for (size_t i = believed_.size(); i != 0; --i) settle(*believed_[i - 1], /*isPolled=*/false);
}

bool SharedQueues::drain() {
  std::array<ibv_wc, kBatch> batch;
  for (int round = 0; round < kBatchesPerTurn; ++round) {
    const int count = ibv_poll_cq(completions_, kBatch, batch.data());
    if (count < 0) {
      failAll(Status::system(-count, domain_->device().name() + ": ibv_poll_cq"));
      return true;
    }
    for (int i = 0; i < count; ++i) handOut(batch[static_cast<size_t>(i)]);
    if (count < kBatch) return round != 0 || count != 0;
  }
  return true;
}

void SharedQueues::handOut(const ibv_wc& completion) {
  const bool isReceive = (completion.wr_id & kReceiveBit) != 0;
  if (isReceive) ++takenUp_;
  const auto found = owners_.find(completion.qp_num);
  if (found == owners_.end()) return;  // of a pair that is gone
  PairOwner* const owner = found->second;
  if (std::find(touched_.begin(), touched_.end(), owner) == touched_.end())
    touched_.push_back(owner);
  if (!isReceive) return owner->ended(completion);
  if (completion.status == IBV_WC_SUCCESS && (completion.wc_flags & IBV_WC_WITH_IMM) != 0)
    owner->arrived(be32toh(completion.imm_data));
}

void SharedQueues::takeEvents() {
  unsigned count = 0;
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  while (library_.ibv_get_cq_event(channel_, &queue, &context) == 0) ++count;
  if (count == 0) return;
  library_.ibv_ack_cq_events(completions_, count);
  isArmed_ = false;
}

void SharedQueues::arm() {
  if (const int error = ibv_req_notify_cq(completions_, 0); error != 0)
    return failAll(Status::system(error, domain_->device().name() + ": ibv_req_notify_cq"));
  isArmed_ = true;
}

void SharedQueues::failAll(const Status& why) {
  for (const auto& [pair, owner] : owners_) {
    owner->fail(why);
    settle(*owner, /*isPolled=*/false);
  }
}

// Progress thread.
void SharedQueues::deviceEvents() {
  ibv_async_event event;
  // Does not block: the loop has set its descriptor so.
  while (library_.ibv_get_async_event(domain_->device().handle(), &event) == 0) {
    const bool isOfPair = event.event_type == IBV_EVENT_QP_FATAL ||
                          event.event_type == IBV_EVENT_QP_REQ_ERR ||
                          event.event_type == IBV_EVENT_QP_ACCESS_ERR ||
                          event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED;
    const uint32_t pair = isOfPair ? event.element.qp->qp_num : 0;
    // Before it is handled: the end of a pair waits for that of its events.
    library_.ibv_ack_async_event(&event);
    handle(event.event_type, pair);
  }
}

void SharedQueues::handle(ibv_event_type type, uint32_t pair) {
  const std::string device = domain_->device().name();
  const std::string name = library_.ibv_event_type_str(type);
  const TurnHolder turn(right_);
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: {
      const auto found = owners_.find(pair);
      if (found == owners_.end()) return;
      const bool isOfPeer = type == IBV_EVENT_QP_ACCESS_ERR;
      found->second->breakOff(
          Status(Code::kPeerLost,
                 isOfPeer ? "the peer used memory with a key that does not allow it (" + name + ")"
                          : device + " gave up the pair (" + name + ")"),
          isOfPeer);
      return settle(*found->second, /*isPolled=*/false);
    }
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      if (owners_.contains(pair)) exhausted_.push_back(pair);
      return;
    case IBV_EVENT_SRQ_LIMIT_REACHED: return replaceLost();
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
      PEERLANE_LOG_ERROR("{}: {}: all links over it end", device, name);
      return failAll(Status(Code::kPeerLost, device + ": " + name));
    case IBV_EVENT_PORT_ERR:
      // What is under way is sent again until it comes back, or the tries are used up.
      PEERLANE_LOG_WARN("{}: {}: transfers over it wait", device, name);
      return;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      // Pairs keep the addresses that they were joined by; new ones ask anew.
      PEERLANE_LOG_INFO("{}: {}", device, name);
      return;
    default: PEERLANE_LOG_DEBUG("{}: {}", device, name); return;
  }
}

}  // namespace peerlane
