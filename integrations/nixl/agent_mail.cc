// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/agent_mail.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>

#include "integrations/nixl/agent_blobs.h"
#include "integrations/nixl/nixl_answer.h"
#include "peerlane/channel/signal/notification.h"
#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/core/limits.h"

namespace peerlane::nixl {
namespace {

constexpr std::chrono::milliseconds kInterval{20};
// What one that has arrived costs beside its text and its sender's name.
constexpr size_t kBesideText = sizeof(abi::Notifications::value_type);
// A sender that never pauses shall not hold up the others, nor those that ask.
constexpr int kMostInARow = 1024;

std::vector<std::byte> bytesOf(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::string withName(const std::string& agent, const std::string& text) {
  std::string message;
  message.reserve(2 + agent.size() + text.size());
  appendLength(message, agent.size());
  return message + agent + text;
}

}  // namespace

AgentMail::AgentMail(std::string agent, std::function<void()> tick, size_t mostArrivedBytes)
    : agent_(std::move(agent)),
      tick_(std::move(tick)),
      mostArrivedBytes_(mostArrivedBytes),
      thread_([this] { run(); }) {}

void AgentMail::stop() {
  {
    const std::lock_guard<std::mutex> lock(stopMutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool AgentMail::sendWaitingUntil(std::chrono::steady_clock::time_point deadline) {
  while (true) {
    sendWaiting();
    {
      const std::lock_guard<std::mutex> lock(outboxMutex_);
      if (outboxes_.empty()) return true;
    }
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

AgentMail::~AgentMail() {
  stop();
  size_t lost = 0;
  for (const auto& [peer, outbox] : outboxes_) lost += outbox.waiting.size();
  if (lost != 0)
    say(LogLevel::kWarn, agent_,
        std::to_string(lost) +
            " notifications found no room at their receivers before this agent ended");
}

void AgentMail::run() {
  std::unique_lock<std::mutex> lock(stopMutex_);
  while (!stopped_.wait_for(lock, kInterval, [this] { return stop_; })) {
    lock.unlock();
    sendWaiting();
    {
      const std::lock_guard<std::mutex> inbox(inboxMutex_);
      collect();
    }
    tick_();
    lock.lock();
  }
}

void AgentMail::listenTo(Peer peer) {
  const std::lock_guard<std::mutex> lock(inboxMutex_);
  senders_.push_back({std::move(peer), {}});
}

void AgentMail::take(abi::Notifications& out) {
  const std::lock_guard<std::mutex> lock(inboxMutex_);
  collect();
  std::move(arrived_.begin(), arrived_.end(), std::back_inserter(out));
  arrived_.clear();
  arrivedBytes_ = 0;
}

// Under inboxMutex_.
void AgentMail::collect() {
  for (size_t i = 0; i < senders_.size();) {
    bool isGone = false;
    collectFrom(senders_[i], isGone);
    if (!isGone) {
      ++i;
      continue;
    }
    std::swap(senders_[i], senders_.back());
    senders_.pop_back();
  }
}

void AgentMail::collectFrom(Sender& sender, bool& isGone) {
  for (int i = 0; i < kMostInARow && arrivedBytes_ < mostArrivedBytes_; ++i) {
    auto taken = pollNotification(sender.peer);
    if (!taken.isOk()) {
      const Code code = taken.status().code();
      isGone = code == Code::kPeerLost || code == Code::kClosed;
      return;
    }
    const std::string_view text(reinterpret_cast<const char*>(taken->message.data()),
                                taken->message.size());
    const uint32_t number = taken->tag & ~JoinedPieces::kMore;
    if (number == 0)
      deliver(text);
    else if (const auto whole =
                 sender.pieces.add(number, (taken->tag & JoinedPieces::kMore) != 0, text))
      deliver(*whole);
  }
}

void AgentMail::deliver(std::string_view message) {
  const size_t length = message.size() < 2 ? 0 : lengthAt(message, 0);
  if (message.size() < 2 || length > message.size() - 2) {
    foreign_.say(LogLevel::kWarn, agent_,
                 "dropped a notification of " + std::to_string(message.size()) +
                     " bytes that no agent's back end made");
    return;
  }
  arrived_.emplace_back(message.substr(2, length), message.substr(2 + length));
  arrivedBytes_ += kBesideText + message.size();
}

std::optional<std::vector<std::byte>> AgentMail::inOnePiece(const std::string& text) const {
  if (2 + agent_.size() + text.size() > limits::kNotificationBytes) return std::nullopt;
  return bytesOf(withName(agent_, text));
}

// Under outboxMutex_.
std::deque<AgentMail::Piece> AgentMail::cut(const std::string& text) {
  const std::string message = withName(agent_, text);
  if (message.size() <= limits::kNotificationBytes) return {{0, bytesOf(message)}};
  lastNumber_ = lastNumber_ == JoinedPieces::kMostNumber ? 1 : lastNumber_ + 1;
  std::deque<Piece> pieces;
  for (size_t at = 0; at < message.size(); at += limits::kNotificationBytes)
    pieces.push_back({lastNumber_ | JoinedPieces::kMore,
                      bytesOf(message.substr(at, limits::kNotificationBytes))});
  pieces.back().tag = lastNumber_;
  return pieces;
}

// Sends what the peer has room for. Another error than kTryAgain ends the outbox.
Status AgentMail::sendFrom(Outbox& outbox) const {
  while (!outbox.waiting.empty()) {
    const Piece& piece = outbox.waiting.front();
    const auto sent = notify(outbox.peer, {.message = piece.bytes, .tag = piece.tag});
    if (!sent.isOk()) return sent.status();
    if (!sent->done())
      sent->onEnd([agent = agent_, lines = lost_](const Status& status) {
        if (!status.isOk())
          lines->say(LogLevel::kWarn, agent,
                     "a notification may not have arrived: " + status.toString());
      });
    outbox.waiting.pop_front();
  }
  return Status::ok();
}

Status AgentMail::send(const Peer& peer, const std::string& text) {
  if (2 + agent_.size() + text.size() > JoinedPieces::kMostBytes)
    return Status(Code::kInvalidArgument,
                  "a notification of " + std::to_string(text.size()) + " bytes; at most " +
                      std::to_string(JoinedPieces::kMostBytes - 2 - agent_.size()) +
                      " are sent by this agent");
  const std::lock_guard<std::mutex> lock(outboxMutex_);
  std::deque<Piece> pieces = cut(text);
  PEERLANE_RETURN_IF_ERROR(peer.status());
  const auto known = outboxes_.find(peer.core().get());
  if (known != outboxes_.end()) {
    std::move(pieces.begin(), pieces.end(), std::back_inserter(known->second.waiting));
    return Status::ok();
  }
  Outbox outbox{peer, std::move(pieces)};
  Status status = sendFrom(outbox);
  if (status.code() != Code::kTryAgain) return status;
  outboxes_.emplace(peer.core().get(), std::move(outbox));
  return Status::ok();
}

void AgentMail::sendWaiting() {
  const std::lock_guard<std::mutex> lock(outboxMutex_);
  for (auto at = outboxes_.begin(); at != outboxes_.end();) {
    const Status status = sendFrom(at->second);
    // One that is silent may be heard again.
    if (status.code() == Code::kTryAgain || status.code() == Code::kPeerSilent) {
      ++at;
      continue;
    }
    if (!status.isOk())
      say(LogLevel::kWarn, agent_,
          std::to_string(at->second.waiting.size()) +
              " notifications were not sent: " + status.toString());
    at = outboxes_.erase(at);
  }
}

}  // namespace peerlane::nixl
