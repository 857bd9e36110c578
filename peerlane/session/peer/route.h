// SPDX-License-Identifier: Apache-2.0
//
// Route: the link and the engines that were chosen for a peer, and the reasons against the others.
// `peerlane explain` prints it. Plain value.
#pragma once

#include <string>
#include <vector>

namespace peerlane {

struct Route {
  std::string link;           // "self", "shm", "tcp"
  std::string sharedEngine;   // the engine for memory that peers can map: "mapped", "cma", ...
  std::string privateEngine;  // the engine for other memory
  std::string deviceLink;     // in addition to `link`, for GPU memory: "cuda_ipc", or empty
  std::string deviceEngine;   // the engine for GPU memory: "cuda", or empty
  std::string staged;  // what becomes of bytes that no engine moves straight: they are staged, or
                       // refused (PEERLANE_STRICT)
  // Between processes of this host: by which instruction from which size on memory is copied that
  // is mapped, and how many threads help with that and with other memory.
  std::string hostCopies;
  std::string wordsBy;           // how counters are written: "mapped" or "agent"
  std::string rightsEnforcedBy;  // "owner" or "initiator"
  // The same for memory that Context::allocate made with Access::kRemoteRead.
  std::string readOnlyEnforcedBy;
  std::vector<std::string> devices;  // each GPU of this side: which engine does which work
  std::vector<std::string> refused;  // every alternative that was not taken, each with the reason

  // Several lines for people.
  std::string toString() const;
};

}  // namespace peerlane
