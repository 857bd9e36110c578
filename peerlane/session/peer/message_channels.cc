// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/message_channels.h"

#include <string>

namespace peerlane {

using limits::kMessagesPerChannel;
using limits::kMessagesPerPeer;

Status MessageChannels::roomOf(uint32_t channel) const {
  const Room& room = sent_[isProgram(channel) ? 0 : 1];
  const auto found = room.byChannel.find(channel);
  const uint32_t waiting = found == room.byChannel.end() ? 0 : found->second;
  if (waiting >= kMessagesPerChannel)
    return Status(Code::kTryAgain, "the peer has " + std::to_string(waiting) +
                                       " messages of channel " + std::to_string(channel) +
                                       " that it did not take; at most " +
                                       std::to_string(kMessagesPerChannel) + " wait on a channel");
  if (room.all >= kMessagesPerPeer)
    return Status(Code::kTryAgain, "the peer has " + std::to_string(room.all) + " messages of " +
                                       std::to_string(room.byChannel.size()) +
                                       " channels that it did not take; at most " +
                                       std::to_string(kMessagesPerPeer) + " wait on all");
  return Status::ok();
}

Status MessageChannels::claim(uint32_t channel) {
  const MutexLock lock(mutex_);
  PEERLANE_RETURN_IF_ERROR(roomOf(channel));
  Room& room = sentTo(channel);
  ++room.byChannel[channel];
  ++room.all;
  return Status::ok();
}

bool MessageChannels::hasRoom(uint32_t channel) const {
  const MutexLock lock(mutex_);
  return roomOf(channel).isOk();
}

Status MessageChannels::taken(uint32_t channel, uint32_t count) {
  const MutexLock lock(mutex_);
  Room& room = sentTo(channel);
  const auto found = room.byChannel.find(channel);
  const uint32_t waiting = found == room.byChannel.end() ? 0 : found->second;
  if (count == 0 || count > waiting)
    return Status(Code::kCorrupt, "the peer says that it took " + std::to_string(count) +
                                      " messages of channel " + std::to_string(channel) +
                                      ", of which it has " + std::to_string(waiting));
  found->second -= count;
  room.all -= count;
  if (found->second == 0) room.byChannel.erase(found);
  return Status::ok();
}

Status MessageChannels::push(uint32_t channel, std::vector<std::byte> content) {
  const MutexLock lock(mutex_);
  size_t& waiting = waiting_[isProgram(channel) ? 0 : 1];
  const auto found = arrived_.find(channel);
  if (waiting >= kMessagesPerPeer ||
      (found != arrived_.end() && found->second.size() >= kMessagesPerChannel))
    return Status(Code::kCorrupt, "a message on channel " + std::to_string(channel) + " though " +
                                      std::to_string(waiting) +
                                      " wait that were not taken: the peer does not count them");
  ++waiting;
  arrived_[channel].push_back(std::move(content));
  updateReadiness(channel);
  return Status::ok();
}

bool MessageChannels::pop(uint32_t channel, std::vector<std::byte>& content) {
  const MutexLock lock(mutex_);
  const auto found = arrived_.find(channel);
  if (found == arrived_.end()) return false;
  content = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) arrived_.erase(found);
  --waiting_[isProgram(channel) ? 0 : 1];
  ++unreported_[channel];
  updateReadiness(channel);
  return true;
}

bool MessageChannels::has(uint32_t channel) const {
  const MutexLock lock(mutex_);
  return arrived_.contains(channel);
}

bool MessageChannels::hasForProgram() const {
  const MutexLock lock(mutex_);
  return waiting_[0] != 0;
}

std::vector<std::pair<uint32_t, size_t>> MessageChannels::waiting() const {
  const MutexLock lock(mutex_);
  std::vector<std::pair<uint32_t, size_t>> all;
  for (const auto& [channel, messages] : arrived_) all.emplace_back(channel, messages.size());
  return all;
}

std::vector<std::pair<uint32_t, uint32_t>> MessageChannels::unreported() {
  const MutexLock lock(mutex_);
  std::vector<std::pair<uint32_t, uint32_t>> all(unreported_.begin(), unreported_.end());
  unreported_.clear();
  return all;
}

Result<int> MessageChannels::fd(uint32_t channel) {
  const MutexLock lock(mutex_);
  PEERLANE_ASSIGN(const int fd, readiness_[channel].fd());
  updateReadiness(channel);
  return fd;
}

void MessageChannels::setEnded(bool ended) {
  const MutexLock lock(mutex_);
  if (ended_ == ended) return;
  ended_ = ended;
  for (auto& [channel, readiness] : readiness_) updateReadiness(channel);
}

void MessageChannels::updateReadiness(uint32_t channel) {
  if (const auto found = readiness_.find(channel); found != readiness_.end())
    found->second.set(ended_ || arrived_.contains(channel));
}

}  // namespace peerlane
