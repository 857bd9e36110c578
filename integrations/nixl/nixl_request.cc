// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/nixl_request.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

namespace peerlane::nixl {
namespace {

// A look at a peer's health takes a lock, one at a transfer does not.
constexpr std::chrono::milliseconds kBetweenLooks{5};

}  // namespace

// The transfers' ends call it, on progress threads; the last one sends.
struct NixlRequest::Delivery {
  Delivery(AgentMail& outbox, Peer to, std::string what, size_t transfers)
      : mail(outbox), peer(std::move(to)), text(std::move(what)), left(transfers) {}

  void oneEnded(const Status& status) {
    if (!status.isOk()) isVoid.store(true, std::memory_order_relaxed);
    // Acquire and release: the last one sees what all others found.
    if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) finish();
  }
  void finish() {
    if (!isVoid.load(std::memory_order_relaxed)) outcome = mail.send(peer, text);
    isDone.store(true, std::memory_order_release);  // after outcome, for check()
  }

  AgentMail& mail;
  const Peer peer;
  const std::string text;
  std::atomic<size_t> left;
  std::atomic<bool> isVoid{false};
  std::atomic<bool> isDone{false};
  Status outcome;
};

NixlRequest::~NixlRequest() {
  for (const auto& part : parts_) lists_.giveBack(std::move(part->blocks));
}

Status NixlRequest::beginEntry(const Entry& entry) {
  if (!entry.remote->isReachable())
    return Status(Code::kNotSupported, "memory of an agent that this side does not reach");
  LocalMemory& local = *entry.local;
  RemoteMemory& remote = *entry.remote;
  // A context with a GPU reaches the other side's GPU memory by itself; one without has it staged.
  Context* here = local.home();
  if (local.isOnHost() && !remote.isOnHost())
    if (Context* const gpu = contexts_.anyGpu()) here = gpu;
  PEERLANE_ASSIGN(local_, local.regionOf(*here));
  if (remote.isOf(local_->owner())) {
    PEERLANE_ASSIGN(here, contexts_.twinOf(*here));
    PEERLANE_ASSIGN(local_, local.regionOf(*here));
  }
  if (direction_ == abi::Direction::kRead && !allows(local_->access(), Access::kRemoteWrite))
    return Status(Code::kPermissionDenied,
                  "memory that this process may only read is no place to "
                  "read into");
  PEERLANE_ASSIGN(const RemoteMemory::Imported imported, remote.from(*here));
  remote_ = imported.region;
  localBase_ = local.address();
  remoteBase_ = remote.address();
  const auto same = [&](const auto& part) {
    return part->here == here && part->peer.core() == imported.peer.core();
  };
  const auto found = std::find_if(parts_.begin(), parts_.end(), same);
  if (found != parts_.end()) {
    part_ = found->get();
  } else {
    parts_.push_back(std::make_unique<Part>(Part{here, imported.peer, lists_.take(expected_), {}}));
    part_ = parts_.back().get();
  }
  held_.push_back(entry);
  return Status::ok();
}

Result<Transfer> NixlRequest::postPart(const Part& part, const PostOptions& options) const {
  return direction_ == abi::Direction::kWrite ? put(part.peer, part.blocks, options)
                                              : get(part.peer, part.blocks, options);
}

Status NixlRequest::postParts(const PostOptions& options) {
  for (const auto& part : parts_) {
    auto posted = postPart(*part, options);
    if (!posted.isOk()) {
      cancel();
      return posted.status();
    }
    part->transfer = std::move(*posted);
  }
  return Status::ok();
}

Status NixlRequest::post(const std::string* message) {
  if (!isDrained())
    return Status(Code::kTryAgain, "the request was posted before, and its bytes still move");
  hasFailed_ = false;
  delivery_.reset();
  if (message == nullptr) return postParts({});
  // A put brings its own message, if there is one put and room for the message.
  if (direction_ == abi::Direction::kWrite && parts_.size() == 1) {
    if (const auto piece = mail_.inOnePiece(*message)) {
      PostOptions options;
      options.notify.message = *piece;
      Status posted = postParts(options);
      if (posted.code() != Code::kTryAgain) return posted;
    }
  }
  PEERLANE_ASSIGN(Peer mail, agent_->mail());
  delivery_ = std::make_shared<Delivery>(mail_, std::move(mail), *message, parts_.size() + 1);
  PEERLANE_RETURN_IF_ERROR(postParts({}));
  for (const auto& part : parts_)
    part->transfer.onEnd(
        [delivery = delivery_](const Status& status) { delivery->oneEnded(status); });
  delivery_->oneEnded(Status::ok());
  return Status::ok();
}

bool NixlRequest::isRunning() const {
  return !isDrained() || (delivery_ && !delivery_->isDone.load(std::memory_order_acquire));
}

Status NixlRequest::status() {
  bool goesOn = false;
  for (const auto& part : parts_) {
    if (part->transfer.done())
      PEERLANE_RETURN_IF_ERROR(part->transfer.status());
    else
      goesOn = true;
  }
  if (goesOn) PEERLANE_RETURN_IF_ERROR(peersNow());
  return isRunning() || !delivery_ ? Status::ok() : delivery_->outcome;
}

Status NixlRequest::peersNow() {
  const auto now = std::chrono::steady_clock::now();
  if (now < nextLook_) return Status::ok();
  nextLook_ = now + kBetweenLooks;
  for (const auto& part : parts_)
    if (!part->transfer.done()) PEERLANE_RETURN_IF_ERROR(part->peer.status());
  return Status::ok();
}

bool NixlRequest::isDrained() const {
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const auto& part) { return part->transfer.done(); });
}

void NixlRequest::cancel() {
  for (const auto& part : parts_) part->transfer.cancel();
}

}  // namespace peerlane::nixl
