// SPDX-License-Identifier: Apache-2.0
//
// Route: how bytes get to a peer and why not otherwise. What `peerlane explain` prints. Plain
// value.
#pragma once

#include <string>
#include <vector>

namespace peerlane {

struct Route {
  std::string link;  // "self", "shm", "tcp"
  std::string
      sharedEngine;  // who copies to and from memory that peers can map: "mapped", "cma", ...
  std::string privateEngine;  // and to and from other memory
  std::string deviceLink;     // beside `link`, for memory of GPUs: "cuda_ipc", or empty
  std::string deviceEngine;   // and to and from memory of GPUs: "cuda", or empty
  std::string staged;   // what becomes of bytes that no engine moves straight: they are staged, or
                        // refused (PEERLANE_STRICT)
  std::string wordsBy;  // who writes counters: "mapped" or "agent"
  std::string rightsEnforcedBy;  // "owner" or "initiator"
  // The same of memory that Context::allocate made with Access::kRemoteRead.
  std::string readOnlyEnforcedBy;
  std::vector<std::string> devices;  // each GPU of this side: what it does with which engine
  std::vector<std::string> refused;  // every alternative that was not taken, each with the reason

  // Several lines for people.
  std::string toString() const;
};

}  // namespace peerlane
