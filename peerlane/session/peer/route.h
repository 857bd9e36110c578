// SPDX-License-Identifier: Apache-2.0
//
// Route: the link and the engines that were chosen for a peer, and the reasons against the others.
// `peerlane explain` prints it. Plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace peerlane {

// How bytes get between one region of the peer and memory of this side. Plain value.
struct MemoryRoute {
  std::string memory;  // the kind of the peer's memory, for people
  // The best link that reaches both, or that over which the owner granted the region; empty: none
  // does, and the bytes are staged.
  std::string link;
  // "mapping" (the processor that copies reaches both sides' memory) or "agent" (the link copies);
  // empty: none of them.
  std::string by;
  // How far the device of that link is from memory of this side, where several links differ by that
  // alone; else empty.
  std::string nearness{};
  std::vector<std::string> refused;  // every better link, each with the reason; all where none does
};

struct Route {
  std::string link;           // the one for host memory and words: "shm", "tcp", "verbs"
  std::string sharedEngine;   // the engine for memory that peers can map: "mapped", "cma", ...
  std::string privateEngine;  // the engine for other memory
  std::string deviceLink;     // in addition to `link`, for GPU memory: "cuda_ipc", or empty
  std::string deviceEngine;   // the engine for GPU memory: "cuda", or empty
  std::string staged;  // what becomes of bytes that no engine moves straight: they are staged, or
                       // refused (PEERLANE_STRICT)
  // Between processes of this host: by which instruction from which size on memory is copied that
  // is mapped, as a tune file says or as this process has measured so far; and how many threads
  // help with that and with other memory.
  std::string hostCopies;
  std::string wordsBy;           // how counters are written: "mapped" or "agent"
  std::string rightsEnforcedBy;  // "owner" or "initiator"
  // Of the bytes between hosts: "encrypted (AES-256-GCM)", "not encrypted"; empty: they leave no
  // host.
  std::string protection;
  uint32_t sockets = 0;  // over which they go, at most (PEERLANE_TCP_SOCKETS on both sides)
  // The devices that carry them, of this side and of the peer, with ports and addresses; empty:
  // those of the system's own network.
  std::string path;
  // Links over several NICs: which devices each of them joins, and how far this side's is from host
  // memory and from each GPU of the context. Empty where there is one at most.
  std::vector<std::string> rails;
  // How memory is registered with this side's device, and which ways it refused, with reasons.
  std::vector<std::string> registrations;
  // The same for memory that Context::allocate made with Access::kRemoteRead.
  std::string readOnlyEnforcedBy;
  // For each kind of memory of the peer that some link reaches from host memory of this side.
  std::vector<MemoryRoute> kinds;
  std::vector<std::string> devices;  // each GPU of this side: which engine does which work
  std::vector<std::string> refused;  // every alternative that was not taken, each with the reason

  // Several lines for people.
  std::string toString() const;
};

}  // namespace peerlane
