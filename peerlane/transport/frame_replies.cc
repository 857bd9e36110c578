// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/frame_replies.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace peerlane {
namespace {

// The pin goes with this frame: those before it in the batch read the memory.
void addRefusal(FrameBatch& batch, const GetReply& reply, Code code) {
  Frame frame;
  frame.kind = FrameKind::kGetRefused;
  frame.sequence = reply.request;
  frame.value = static_cast<uint64_t>(code);
  batch.add(frame);
  if (reply.refusal == Code::kOk) batch.unpinAfterLast(reply.allocation);
}

}  // namespace

Status FrameReplies::add(GetReply reply) {
  if (replies_.size() + dropped_.size() >= kFrameMaxRequests)
    return Status(Code::kCorrupt, "get request " + std::to_string(reply.request) +
                                      " is one more than the " + std::to_string(kFrameMaxRequests) +
                                      " that may be open");
  replies_.push_back(std::move(reply));
  return {};
}

void FrameReplies::drop(uint64_t first, uint64_t last) {
  const auto isBefore = [](const GetReply& reply, uint64_t request) {
    return reply.request < request;
  };
  const auto from = std::lower_bound(replies_.begin(), replies_.end(), first, isBefore);
  const auto to = std::find_if(from, replies_.end(),
                               [last](const GetReply& reply) { return reply.request > last; });
  dropped_.insert(dropped_.end(), from, to);
  replies_.erase(from, to);
}

void FrameReplies::spoil(uint64_t request, Code code) {
  if (replies_.empty() || replies_.front().request != request) return;
  replies_.front().spoiled = code;
  dropped_.push_back(std::move(replies_.front()));
  replies_.pop_front();
}

bool FrameReplies::addFrame(FrameBatch& batch) {
  if (isEmpty()) return false;
  if (!dropped_.empty()) {
    const GetReply& reply = dropped_.front();
    const Code partly = reply.spoiled != Code::kOk ? reply.spoiled : Code::kCancelled;
    addRefusal(batch, reply, reply.refusal != Code::kOk ? reply.refusal : partly);
    dropped_.pop_front();
    return true;
  }
  GetReply& reply = replies_.front();
  if (reply.refusal != Code::kOk)
    addRefusal(batch, reply, reply.refusal);
  else
    addData(batch, reply);
  if (reply.refusal != Code::kOk || reply.sent == reply.bytes) replies_.pop_front();
  return true;
}

void FrameReplies::addData(FrameBatch& batch, GetReply& reply) {
  std::array<IoSlice, kFrameMaxBlocks> pieces;
  size_t count = 0;
  Frame frame;
  frame.kind = FrameKind::kGetData;
  frame.sequence = reply.request;
  frame.offset = reply.sent;
  while (frame.payload < kFrameMaxPayload && reply.sent != reply.bytes) {
    IoSlice& block = reply.block;
    const size_t part = std::min<size_t>(block.bytes, kFrameMaxPayload - frame.payload);
    pieces[count++] = {block.base, part};
    block = {static_cast<std::byte*>(block.base) + part, block.bytes - part};
    if (block.bytes == 0 && reply.next != reply.later.size()) block = reply.later[reply.next++];
    frame.payload += static_cast<uint32_t>(part);
    reply.sent += part;
  }
  frame.last = reply.sent == reply.bytes;
  batch.add(frame, {}, std::span(pieces).first(count));
  if (frame.last) batch.unpinAfterLast(reply.allocation);
}

void FrameReplies::endAll(std::vector<uint64_t>& unpinned) {
  for (const auto* replies : {&replies_, &dropped_})
    for (const GetReply& reply : *replies)
      if (reply.refusal == Code::kOk) unpinned.push_back(reply.allocation);
  replies_.clear();
  dropped_.clear();
}

}  // namespace peerlane
