// SPDX-License-Identifier: Apache-2.0
//
// Every setting that comes from the environment, in one table: names, defaults, reading and
// documentation agree because they are the same rows. The result is a plain value, so a caller may
// overwrite any field before making a context with it. Reads no file. Thread-safe as long as no
// thread calls setenv meanwhile.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/huge_pages.h"
#include "peerlane/core/log_level.h"
#include "peerlane/core/status.h"

namespace peerlane {

// The engine that copies on the shm link; kAuto takes the first that works: mapped, cma, ring.
enum class ShmEngine { kAuto, kMapped, kCma, kRing };

// How the verbs link registers memory; kAuto takes the best way that there is for each kind. The
// others: memory of the host by pinned pages or on demand only, memory of GPUs by dma-buf or by the
// peer-memory module only; kStaged: nothing that may be copied through registered slots instead.
enum class IbRegister { kAuto, kPages, kOnDemand, kDmaBuf, kPeerMemory, kStaged };

// Whose pairs a key of the verbs link is good for: those of the context, or those to one peer.
enum class IbDomain { kContext, kPeer };

// Which network interfaces may be used, as in NCCL and HCCL: "eth,ib" are name prefixes, "=eth0"
// exact names,
// "^docker" everything but these, "^=lo" everything but these exact names. No names at all: any
// interface.
struct InterfaceFilter {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string> names;

  bool allows(std::string_view interface) const;
  std::string toText() const;  // as it was set
};

// TCP ports to listen on, both ends included; 0 to 0 lets the system choose.
struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;
};

struct Config {
  LogLevel logLevel = LogLevel::kWarn;
  std::chrono::nanoseconds spin = std::chrono::microseconds(50);
  bool strict = false;
  std::string socketDirectory;  // empty: abstract sockets
  std::chrono::nanoseconds peerTimeout = std::chrono::seconds(30);
  std::chrono::nanoseconds heartbeat{};  // zero: heartbeatInterval() derives it
  std::chrono::nanoseconds connectTimeout = std::chrono::seconds(10);
  std::string interfaceAddress;  // empty: chosen; otherwise it wins over `interfaces`
  InterfaceFilter interfaces;
  PortRange ports;
  std::vector<std::string> links;  // empty: all; see allowsLink()
  ShmEngine shmEngine = ShmEngine::kAuto;
  bool tcpEncrypt = false;
  uint32_t tcpSockets = 0;  // of a link; 0: by the cores of this host
  std::string ibvLibrary = "libibverbs.so.1";
  InterfaceFilter ibDevices;           // with or without a port: "mlx5_0", "mlx5_0:1"
  std::optional<uint8_t> ibPort;       // of the devices; none: the first active one
  uint8_t ibNics = 0;                  // devices of a context; 0: by its GPUs
  std::optional<uint32_t> ibGidIndex;  // none: chosen by the peer's addresses
  uint16_t ibPkey = 0xffff;
  uint8_t ibTrafficClass = 0;
  uint8_t ibServiceLevel = 0;
  std::optional<uint8_t> ibTimeout;  // as the exponent of the standard; none: by `peerTimeout`
  uint8_t ibPairs = 4;               // of one peer, for large transfers
  std::optional<bool> ibAdaptive;    // switches spread the packets of a pair; none: InfiniBand's do
  uint8_t ibRetry = 6;               // with 7 the kernel's software device never gives up
  IbRegister ibRegister = IbRegister::kAuto;
  uint64_t ibCacheBytes = 16ull << 30;  // of Context::regionOf(), registered for this side
  IbDomain ibDomain = IbDomain::kContext;
  uint64_t stagingBytes = 16ull << 20;
  std::string ticket;  // secret: never logged, never in an error
  std::string tuneFile;
  uint32_t eagerBytes = 4096;
  HugePages hugePages = HugePages::kAuto;

  // Of no variable: links to other hosts only, also to peers on this one.
  bool networkOnly = false;
  // Of no variable: where `ports` comes from, for errors about that range. Empty:
  // PEERLANE_PORT_RANGE.
  std::string portsSource;

  // Sentences about variables that were read but not understood, such as unknown PEERLANE_* names.
  std::vector<std::string> warnings;

  bool allowsLink(std::string_view link) const;
  // `heartbeat`, or a sixth of `peerTimeout` when it is zero.
  std::chrono::nanoseconds heartbeatInterval() const;

  // Reads the environment of the process, sets the log level when PEERLANE_LOG is there, and logs
  // each of the warnings that this process has not logged before. Returns kInvalidArgument naming
  // the variable, its value and the accepted values.
  static Result<Config> fromEnvironment();
  // The same from `variables`; touches nothing outside of its result. An empty value counts as not
  // set.
  static Result<Config> fromVariables(const std::map<std::string, std::string>& variables);
};

// The table as a Markdown table: the text of docs/configuration.md.
std::string configMarkdown();

}  // namespace peerlane
