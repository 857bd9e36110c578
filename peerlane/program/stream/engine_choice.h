// SPDX-License-Identifier: Apache-2.0
//
// EngineChoice: from which size on which engine of a GPU is the fastest. Built-in figures were
// measured over NVLink; a tune file replaces them. Plain value.
#pragma once

#include <cstdint>
#include <string>

#include "peerlane/core/status.h"
#include "peerlane/program/device_stream.h"

namespace peerlane::stream {

struct EngineChoice {
  uint64_t inlineBytes = 32 << 10;   // up to here: one small launch
  uint64_t cePutBytes = 768 << 10;   // contiguous puts from here on: the copy engine
  uint64_t ceGetBytes = 96 << 20;    // and gets: its small reads are slow
  uint64_t ceBlockBytes = 16 << 20;  // the same for each of several blocks
  std::string source = "built in";   // or the file

  // `pieces`: separate places; `bytes`: all of them together.
  Engine choose(bool isPut, uint64_t pieces, uint64_t bytes) const {
    if (bytes <= inlineBytes) return Engine::kInline;
    if (pieces == 1) return bytes >= (isPut ? cePutBytes : ceGetBytes) ? Engine::kCe : Engine::kSm;
    return bytes / pieces >= (isPut ? ceBlockBytes : ceGetBytes) ? Engine::kCe : Engine::kSm;
  }
  std::string toString() const;

  // Lines "name = bytes" (inline, ce_put, ce_get, ce_block; # begins a comment). An empty path
  // gives the built-in figures. Errors: kUnavailable (the file), kInvalidArgument naming the line.
  static Result<EngineChoice> load(const std::string& path);
};

}  // namespace peerlane::stream
