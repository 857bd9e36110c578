// SPDX-License-Identifier: Apache-2.0
//
// RdmaReport: the RDMA devices of this machine, their abilities, and the obstacles, for people.
// Plain values; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "peerlane/core/config.h"

namespace peerlane {

// Something that may be there, and how, or why not.
struct RdmaAbility {
  bool isThere = false;
  std::string text{};
};

struct RdmaPort {
  unsigned number = 0;
  std::string state;  // as rdmaPortStateName has it
  bool isChosen = false;
  std::string link;               // "InfiniBand" or "Ethernet"
  unsigned mtu = 0;               // bytes
  std::vector<std::string> gids;  // of the chosen one: "3 ::ffff:10.1.0.1 (RoCE v2)"
};

// How much memory can be registered at once.
struct RdmaCapacity {
  uint64_t bytes = 0;
  bool isAtLeast = false;  // nothing stopped the trial
  std::string limit{};     // what did
};

struct RdmaDevice {
  std::string name;
  std::string refused;   // why it is not used; the rest is empty then, but for the name
  std::string firmware;  // its version
  std::string busId;     // empty: it is on no PCI bus
  int numaNode = -1;     // -1: not known
  std::vector<RdmaPort> ports;
  uint64_t mostRegions = 0;
  RdmaAbility dmaBuf{};
  RdmaAbility onDemand{};  // regions whose pages need not stay in memory
  RdmaAbility relaxedOrdering{};
  RdmaCapacity capacity{};
};

struct RdmaReport {
  std::string library;    // as PEERLANE_IBV_SO
  bool isLoaded = false;  // that library
  std::string refused;    // why no device can be looked for
  std::vector<RdmaDevice> devices;
  // Settings that ask for what is not there, a sentence for each. kTry.
  std::vector<std::string> unmet;
  RdmaAbility frees{};       // of memory that the program did not register can be watched
  RdmaAbility peerMemory{};  // the kernel module by which NICs reach GPU memory by its address
};

// Opens each device for that. `kTry` registers memory, up to 4 GiB of 64 MiB at once.
enum class RdmaProbe : uint8_t { kLook, kTry };
RdmaReport inspectRdma(const Config& config, RdmaProbe probe);

}  // namespace peerlane
