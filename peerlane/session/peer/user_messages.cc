// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/user_messages.h"

#include <iterator>
#include <string>
#include <utility>

#include "peerlane/core/limits.h"

namespace peerlane {

Status UserMessages::send(uint32_t channel, std::vector<std::byte> content, bool alsoToSilent) {
  if (content.size() > limits::kMessageBytes)
    return Status(Code::kInvalidArgument, "user message of " + std::to_string(content.size()) +
                                              " bytes; at most " +
                                              std::to_string(limits::kMessageBytes));
  if (!alsoToSilent || env_.status.over()) PEERLANE_RETURN_IF_ERROR(env_.status.failure());
  if (MessageChannels::isProgram(channel)) {
    PEERLANE_RETURN_IF_ERROR(channels_.claim(channel));
    env_.post([this, channel, content = std::move(content)]() mutable {
      (void)env_.connection->sendIfOpen(control::UserMessage{channel, std::move(content)});
    });
    return Status::ok();
  }
  env_.post([this, channel, content = std::move(content)]() mutable {
    unsent_[channel].push_back(std::move(content));
    sendUnsent();
  });
  return Status::ok();
}

// Channels of the library's: what the peer has room for.
void UserMessages::sendUnsent() {
  for (auto each = unsent_.begin(); each != unsent_.end();) {
    auto& [channel, contents] = *each;
    while (!contents.empty() && channels_.claim(channel).isOk()) {
      (void)env_.connection->sendIfOpen(control::UserMessage{channel, std::move(contents.front())});
      contents.pop_front();
    }
    each = contents.empty() ? unsent_.erase(each) : std::next(each);
  }
}

void UserMessages::onMessage(uint32_t channel, Receiver receive) {
  env_.post([this, channel, receive = std::move(receive)] {
    if (!receive) {
      receivers_.erase(channel);
      return;
    }
    std::vector<std::byte> early;
    while (channels_.pop(channel, early)) receive(std::exchange(early, {}));
    receivers_[channel] = receive;
    sendTaken();
  });
}

Status UserMessages::handle(control::UserMessage& message) {
  PEERLANE_RETURN_IF_ERROR(channels_.push(message.channel, std::move(message.content)));
  if (MessageChannels::isProgram(message.channel)) {
    env_.around.progress.notifyWaiters();
    return Status::ok();
  }
  const auto found = receivers_.find(message.channel);
  if (found == receivers_.end()) return Status::ok();
  const auto receive = found->second;  // it may replace itself
  std::vector<std::byte> content;
  while (channels_.pop(message.channel, content)) receive(std::exchange(content, {}));
  sendTaken();
  return Status::ok();
}

Status UserMessages::handle(control::MessagesTaken& message) {
  PEERLANE_RETURN_IF_ERROR(channels_.taken(message.channel, message.count));
  sendUnsent();
  env_.around.progress.notifyWaiters();
  return Status::ok();
}

// Once for all that are taken until the progress thread comes to it.
void UserMessages::sendTaken() {
  if (isSendingTaken_.exchange(true, std::memory_order_seq_cst)) return;
  env_.post([this] {
    isSendingTaken_.store(false, std::memory_order_seq_cst);
    for (const auto& [channel, count] : channels_.unreported())
      (void)env_.connection->sendIfOpen(control::MessagesTaken{channel, count});
  });
}

void UserMessages::end() {
  ended_.store(true, std::memory_order_release);
  channels_.setEnded(true);
  env_.around.progress.notifyWaiters();
}

}  // namespace peerlane
