// SPDX-License-Identifier: Apache-2.0
//
// StagedMessage: one staged message of a stream while it is under way: its state in the lane, and
// the work that its post has put on the stream. The poster writes it while it is posted, turns
// afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "peerlane/channel/message/host/message_batch.h"
#include "peerlane/channel/message/staged/staged_chunks.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/program/device/device_executor.h"

namespace peerlane {

struct StagedMessage {
  struct Chunk {
    uint64_t offset = 0;  // in the message
    uint64_t bytes = 0;
    uint64_t position = 0;                   // in the ring
    std::shared_ptr<DeviceProgram> program;  // none of 0 bytes
    DevicePost post;                         // its copy on the stream
    std::shared_ptr<MessageBatch> wire;      // between the two rings
    bool hasRoom = false;                    // its place in the ring is its own, until it is done
    bool mayCopy = false;  // the stream may come to it, and copies it unless the message has failed
    bool arrived = false;  // a receive's: it is in the ring; a send's: in the peer's
    bool isDone = false;   // its place serves another chunk
  };

  bool isSend = false;
  std::shared_ptr<RegionRecord> region;  // its gate is held by the post
  uint64_t offset = 0;
  uint64_t bytes = 0;
  Part part{};
  ChunkCut cut;
  uint64_t number = 0;
  std::vector<Chunk> chunks;
  // Abort word (borrowed). Not 0: the stream skips the remaining copies.
  std::atomic<uint64_t>* abort = nullptr;

  StagedHeader header;  // sent to the peer, or received from it
  std::shared_ptr<MessageBatch> headerWire;
  bool hasHeader = false;  // a receive's header
  std::shared_ptr<MessageBatch>
      rest;                   // in place of chunks, so that both sides go on counting alike
  bool streamIsLost = false;  // its GPU is broken: the stream ends no more
  Status outcome;
  bool isOver = false;  // nothing of it is on the wire, in the ring, or will be

  bool failed() const { return !outcome.isOk(); }
  bool passed(const Chunk& chunk) const { return streamIsLost || chunk.post.ended(); }
};

}  // namespace peerlane
