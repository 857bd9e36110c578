// SPDX-License-Identifier: Apache-2.0
//
// BlockImport: the memory of the peer that one post's blocks touch and this side does not reach
// yet: regions that are not imported, and chunks of regions that are not mapped. It asks the peer
// for them, and tells when all are here or why one will not come. The post's BlockProgram owns it;
// each call takes the list that it is about. External synchronization required; the answers come
// from the progress thread, through the import slots and chunk maps.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/core/status.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class BlockImport {
 public:
  // Asks for regions that are not imported, and for the chunks of regions that the blocks touch.
  // True when all is imported; it stays so. A thread that waits may call it again after each import
  // that came, so it looks at no region twice.
  bool request(const BlockList& blocks, PeerCore& peer);
  // The first import that is not here has failed: its failure; OK else.
  Status failure(const BlockList& blocks) const;
  // All bytes that the blocks touch can be addressed here.
  bool reaches(const BlockList& blocks) const;
  // Must be called before the segments of a list leave it while reaches() is false: request() still
  // asks for the chunks that they touched.
  void keepTouched(const BlockList& blocks);

 private:
  // Bytes of a remote region that the blocks touch; of strided and indexed ones, also the bytes
  // between them.
  struct Touched {
    size_t remote;
    uint64_t offset;
    uint64_t bytes;
  };
  // Waiting threads may look at once. A copy begins with what was known.
  class Known {
   public:
    Known() = default;
    Known(const Known& other) : number_(other.get()) {}
    Known& operator=(const Known& other) {
      set(other.get());
      return *this;
    }
    size_t get() const { return number_.load(std::memory_order_acquire); }
    void set(size_t number) { number_.store(number, std::memory_order_release); }

   private:
    std::atomic<size_t> number_{0};  // release -> acquire: the imports that a thread saw
  };
  template <typename Visit>
  void eachTouched(const BlockList& blocks, const Visit& visit) const;
  template <typename Visit>
  void eachInChunks(const BlockList& blocks, const Visit& visit) const;
  bool areReady(const BlockList& blocks) const;
  void askForChunks(const BlockList& blocks, PeerCore& peer);

  std::vector<Touched> kept_;  // by keepTouched()
  mutable Known ready_;        // so many, from the first on, are imported: they stay so
  bool hasRequested_ = false;  // all regions
  bool hasAsked_ = false;      // for all chunks that are touched
};

}  // namespace peerlane
