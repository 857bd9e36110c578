// SPDX-License-Identifier: Apache-2.0
//
// EngineChoice: the sizes from which on each engine of a GPU is the fastest. Built-in figures were
// measured over NVLink; a tune file replaces them. Plain value.
#pragma once

#include <cstdint>
#include <string>

#include "peerlane/core/tune_file.h"
#include "peerlane/program/device/device_stream.h"

namespace peerlane::stream {

struct EngineChoice {
  // Contiguous puts and gets of at least so many bytes use the copy engine. A copy followed by a
  // stored word costs the stream less than a kernel with its fences, whatever the size.
  uint64_t cePutBytes = 1;
  uint64_t ceGetBytes = 1;
  // The same for posts of plans (contiguous puts) on one of the library's streams that still has
  // posts under way: several streams run kernels at once, but they share one copy engine. (Posts
  // that are not prepared come too slowly to queue up.)
  uint64_t ceQueuedPutBytes = 8 << 20;
  uint64_t ceBlockBytes = 16 << 20;  // the same for each of several pieces
  uint64_t inlineBytes = 32 << 10;   // else, up to here: one small launch
  std::string source = "built in";   // or the file

  // `pieces`: separate places; `bytes`: all of them together.
  Engine choose(bool isPut, uint64_t pieces, uint64_t bytes) const {
    const uint64_t ceBytes = pieces > 1 ? ceBlockBytes : isPut ? cePutBytes : ceGetBytes;
    if (pieces != 0 && bytes / pieces >= ceBytes) return Engine::kCe;
    return bytes <= inlineBytes ? Engine::kInline : Engine::kSm;
  }
  // Asked after choose() has returned kCe, if the stream still has work under way. After a kernel,
  // such as one that waits for a peer, a small copy by a kernel starts earlier than a copy-engine
  // copy with a stored word.
  bool prefersKernelBehindWork(uint64_t pieces, uint64_t bytes) const {
    return pieces == 1 && bytes <= inlineBytes;
  }
  // The same for posts of plans on the library's streams.
  bool prefersKernelOnOwnStreams(bool isPut, uint64_t pieces, uint64_t bytes) const {
    return isPut && pieces == 1 && bytes < ceQueuedPutBytes;
  }
  std::string toString() const;

  EngineChoice() = default;
  // Takes inline, ce_put, ce_put_queued, ce_get and ce_block.
  explicit EngineChoice(const TuneFile& file);
};

}  // namespace peerlane::stream
