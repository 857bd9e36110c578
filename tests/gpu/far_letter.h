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
  kGrant,     // region. Answer: the region, and its descriptor
  kChunks,    // region. Answer: handles of its chunks
  kAttach,    // region, its descriptor; blob or descriptors: its chunks. Answer: linkKey and where
  kDetach,    // key: linkKey
  kRead,      // key: where; region.bytes: how much, to the window
  kWrite,     // the same from the window
};

struct Letter {
  Verb verb = Verb::kOpen;
  uint64_t key = 0;
  RegionGrant region{};
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
