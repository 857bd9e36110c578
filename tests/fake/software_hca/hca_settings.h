// SPDX-License-Identifier: Apache-2.0
//
// What the environment says a software HCA is like. Read when devices are listed and when one is
// opened, so a test may open contexts that differ. A value that is not understood ends the program
// with a sentence: a test that runs on another device than it asked for proves nothing.
//
//   SOFTWARE_HCA_FABRIC     folder of the fabric file (default /dev/shm/software_hca-UID)
//   SOFTWARE_HCA_DEVICES    names, comma between (default sw0)
//   SOFTWARE_HCA_IWARP      names of those that are iWARP
//   SOFTWARE_HCA_INFINIBAND names of those whose ports are InfiniBand, with LIDs
//   SOFTWARE_HCA_GIDS       one table for all devices: v1:ADDRESS or v2:ADDRESS, comma between, an
//                           address of IPv6 or IPv4, "%D" in it the number of the device from 1,
//                           and @INTERFACE behind (default lo)
//   SOFTWARE_HCA_LIMITS     NAME=NUMBER, comma between; names as in Limits
//   SOFTWARE_HCA_BEHAVIOUR  hardware (default) or rxe, where the two differ
//   SOFTWARE_HCA_ORDER      ibta (default): as they arrive; relaxed: WRITEs into relaxed regions in
//                           any order; adaptive: all WRITEs and READs in any order
//   SOFTWARE_HCA_SEED, SOFTWARE_HCA_WINDOW_US   of that order: how long pieces may wait
//   SOFTWARE_HCA_ACK        placed (default): bytes are acknowledged once they stand in memory;
//                           received: once they are here, which is all that the standard asks for
//   SOFTWARE_HCA_ACK_US     most by which an acknowledgement is late
//   SOFTWARE_HCA_DMABUF     yes; late: what is written there is seen when a GPU in software
//   flushes;
//                           or how it is refused: EOPNOTSUPP (default), EPROTONOSUPPORT; or EINVAL:
//                           the driver can, and registers none
//   SOFTWARE_HCA_DMABUF_REFUSED   devices whose driver can, and registers none
//   SOFTWARE_HCA_ODP        no (default), yes, or rxe (places bytes as rxe does, wrongly)
//   SOFTWARE_HCA_UNMAPPED   crash (default), or dropped: what was unmapped under a region keeps
//                           its bytes to itself, as pinned pages do
//   SOFTWARE_HCA_SPIN_US    how long an engine looks for work before it sleeps
//   SOFTWARE_HCA_ASSIST     yes (default): who polls an empty queue does a turn of the engine; no
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace peerlane::softhca {

struct Limits {
  uint32_t maxSge = 30;
  uint32_t maxInline = 1024;
  uint32_t maxQueuePairs = 16384;
  uint32_t maxWork = 16384;  // of one queue
  uint32_t maxRegions = 65535;
  uint32_t maxDomains = 4096;
  uint32_t maxCompletions = 1 << 20;  // of one queue
  uint32_t maxCompletionQueues = 4096;
  uint32_t maxShared = 1024;
  uint32_t maxReads = 16;  // at once, of one queue pair
  uint32_t mtu = 4096;
  uint32_t ports = 1;
  uint64_t lockedBytes = UINT64_MAX;  // registered ones together
};

enum class Behaviour { kHardware, kRxe };
enum class Order { kIbta, kRelaxed, kAdaptive };
enum class OnDemand { kNo, kYes, kRxe };

struct GidSetting {
  bool isVersion2 = true;
  std::string address;
  std::string interface = "lo";
};

struct Settings {
  std::string fabric;
  std::vector<std::string> devices;
  std::vector<std::string> iwarp;
  std::vector<std::string> infiniband;
  std::vector<GidSetting> gids;
  Limits limits;
  Behaviour behaviour = Behaviour::kHardware;
  Order order = Order::kIbta;
  uint64_t seed = 1;
  uint64_t windowNs = 100'000;
  bool acksUnplaced = false;
  uint64_t ackDelayNs = 0;
  int dmabufError = 0;  // 0: it can
  std::vector<std::string> dmabufRefused;
  bool isDmabufLate = false;
  OnDemand onDemand = OnDemand::kNo;
  bool dropsUnmapped = false;
  uint64_t spinNs = 20'000;
  bool assists = true;

  static Settings read();
};

}  // namespace peerlane::softhca
