// SPDX-License-Identifier: Apache-2.0
//
// Letter: what two processes of the contract of links ask each other (far_process.h). Both are the
// same program, so a letter that does not parse ends it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/memory/remote_memory.h"
#include "peerlane/memory/vmm_handle.h"

namespace peerlane::gputest {

// What is asked, and what is answered. Each question says what it means by `key`.
enum class Verb : uint8_t {
  kOpen,      // key: the GPU; region.kind: of its memory. Answer: the offer
  kComplete,  // blob: the other side's offer
  kAllocate,  // key: bytes. Answer: where and what
  kFree,      // key: where
  kGrant,     // region; place. Answer: the link's part, and its descriptor
  kChunks,    // region; place. Answer: handles of its chunks
  kAttach,    // region; part, and its descriptor; blob or descriptors: its chunks. Answer: linkKey,
              // and where
  kDetach,    // key: linkKey
  kRead,      // key: where; region.bytes: how much, to the window
  kWrite,     // the same from the window
};

struct Letter {
  Verb verb = Verb::kOpen;
  uint64_t key = 0;
  RegionGrant region{};
  uint64_t place = 0;  // of the region over there
  // Of the allocation that it lies in (MemoryDescription).
  uint64_t fdOffset = 0;
  uint64_t backingBytes = 0;
  uint64_t identity = 0;
  std::vector<std::byte> handle{};
  std::vector<std::byte> part{};
  std::vector<std::byte> blob{};
  std::vector<Fd> fds{};
  std::string failure{};  // in an answer: why there is none
};

// By a Unix socket. False: the other process has ended.
bool sendLetter(int socket, const Letter& letter);
// Nothing: it has ended.
std::optional<Letter> receiveLetter(int socket);

// Handles of chunks: all of them descriptors, or all of them bytes.
void putHandles(std::vector<VmmHandle> handles, Letter& letter);
std::vector<VmmHandle> takeHandles(Letter& letter);

}  // namespace peerlane::gputest
