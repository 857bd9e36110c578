// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/config_table.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "peerlane/core/text.h"

namespace peerlane {
namespace {

using std::chrono::nanoseconds;

template <typename T, std::size_t N>
bool readChoice(std::string_view text, const std::array<std::pair<std::string_view, T>, N>& choices,
                T& out) {
  for (const auto& [name, value] : choices) {
    if (text == name) {
      out = value;
      return true;
    }
  }
  return false;
}

bool readDuration(std::string_view text, nanoseconds low, nanoseconds high, nanoseconds& out) {
  auto value = parseDuration(text);
  if (!value || *value < low || *value > high) return false;
  out = *value;
  return true;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t from = 0;;) {
    const std::size_t end = text.find(separator, from);
    parts.emplace_back(text.substr(from, end == std::string_view::npos ? end : end - from));
    if (end == std::string_view::npos) return parts;
    from = end + 1;
  }
}

bool readAddress(std::string_view text, Config& config) {
  // A link-local IPv6 address may name its interface: fe80::1%eth0.
  const std::string address(text.substr(0, text.find('%')));
  in6_addr parsed;
  const bool isV4 =
      address.size() == text.size() && ::inet_pton(AF_INET, address.c_str(), &parsed) == 1;
  if (!isV4 && ::inet_pton(AF_INET6, address.c_str(), &parsed) != 1) return false;
  config.interfaceAddress = text;
  return true;
}

bool readFilter(std::string_view text, InterfaceFilter& into) {
  InterfaceFilter filter;
  if (text.starts_with('^')) {
    filter.exclude = true;
    text.remove_prefix(1);
  }
  if (text.starts_with('=')) {
    filter.exact = true;
    text.remove_prefix(1);
  }
  filter.names = split(text, ',');
  for (const std::string& name : filter.names) {
    if (name.empty() || name.find_first_of("^= \t/") != std::string::npos) return false;
  }
  into = std::move(filter);
  return true;
}

bool readInterfaces(std::string_view text, Config& config) {
  return readFilter(text, config.interfaces);
}

template <typename T>
bool readNumber(std::string_view text, uint64_t low, uint64_t high, T& into) {
  const auto value = parseInteger(text, low, high);
  if (value) into = static_cast<T>(*value);
  return value.isOk();
}

template <typename T>
bool readOptional(std::string_view text, uint64_t high, std::optional<T>& into) {
  into.reset();
  if (text == "auto") return true;
  T value{};
  if (!readNumber(text, 0, high, value)) return false;
  into = value;
  return true;
}

bool readPorts(std::string_view text, Config& config) {
  if (text == "0") {
    config.ports = {};
    return true;
  }
  const std::size_t dash = text.find('-');
  const std::string_view last = dash == std::string_view::npos ? text : text.substr(dash + 1);
  auto low = parseInteger(text.substr(0, dash), 1, 65535);
  if (!low) return false;
  auto high = parseInteger(last, *low, 65535);
  if (!high) return false;
  config.ports = {static_cast<uint16_t>(*low), static_cast<uint16_t>(*high)};
  return true;
}

// Whether there are such links, the context knows that is made with them.
bool readLinks(std::string_view text, Config& config) {
  std::vector<std::string> links = split(text, ',');
  for (const std::string& link : links)
    if (link.empty() ||
        link.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos)
      return false;
  config.links = std::move(links);
  return true;
}

bool readShmEngine(std::string_view text, Config& config) {
  constexpr std::array<std::pair<std::string_view, ShmEngine>, 4> kEngines{
      {{"auto", ShmEngine::kAuto},
       {"mapped", ShmEngine::kMapped},
       {"cma", ShmEngine::kCma},
       {"ring", ShmEngine::kRing}}};
  return readChoice(text, kEngines, config.shmEngine);
}

bool readIbRegister(std::string_view text, Config& config) {
  constexpr std::array<std::pair<std::string_view, IbRegister>, 6> kWays{
      {{"auto", IbRegister::kAuto},
       {"pages", IbRegister::kPages},
       {"odp", IbRegister::kOnDemand},
       {"dma-buf", IbRegister::kDmaBuf},
       {"peer-memory", IbRegister::kPeerMemory},
       {"staged", IbRegister::kStaged}}};
  return readChoice(text, kWays, config.ibRegister);
}

bool readLogLevel(std::string_view text, Config& config) {
  for (int i = 0; i <= static_cast<int>(LogLevel::kTrace); ++i) {
    if (text != logLevelName(static_cast<LogLevel>(i))) continue;
    config.logLevel = static_cast<LogLevel>(i);
    return true;
  }
  return false;
}

bool readSpin(std::string_view text, Config& config) {
  auto value = parseInteger(text, 0, 1'000'000);
  if (!value) return false;
  config.spin = std::chrono::microseconds(*value);
  return true;
}

bool readStaging(std::string_view text, Config& config) {
  auto value = parseByteSize(text);
  if (!value || *value < (64ull << 10) || *value > (4ull << 30)) return false;
  config.stagingBytes = *value;
  return true;
}

bool readEager(std::string_view text, Config& config) {
  auto value = parseByteSize(text);
  if (!value || *value > 4096) return false;
  config.eagerBytes = static_cast<uint32_t>(*value);
  return true;
}

constexpr nanoseconds kShortestTimeout = std::chrono::milliseconds(10);
constexpr nanoseconds kLongestTimeout = std::chrono::hours(24);

}  // namespace

const std::vector<internal::ConfigRow>& internal::configTable() {
  static const auto* const rows = new std::vector<ConfigRow>{
      {"PEERLANE_LOG",
       {},
       "choice",
       "warn",
       "error, warn, info, debug, trace",
       "How much is logged to standard error.",
       readLogLevel},
      {"PEERLANE_SPIN_US",
       {},
       "microseconds",
       "50",
       "0 to 1000000",
       "How long a thread polls after work before it sleeps; more is faster and burns a core.",
       readSpin},
      {"PEERLANE_STRICT",
       {},
       "switch",
       "0",
       "0, 1",
       "1 turns a fallback to a slower path into an error. A link that one side lacks or does not "
       "allow is no fallback: PEERLANE_LINKS says what is wanted.",
       [](std::string_view text, Config& config) {
         return readChoice<bool, 2>(text, {{{"0", false}, {"1", true}}}, config.strict);
       }},
      {"PEERLANE_SOCKET_DIR",
       {},
       "directory",
       "",
       "an absolute path of at most 60 bytes; empty for abstract sockets",
       "Where Unix sockets are made; share it between containers that have separate network "
       "namespaces.",
       [](std::string_view text, Config& config) {
         // A socket's path has at most 107 bytes; "/peerlane-", 32 digits and ".sock" follow.
         if (!text.starts_with('/') || text.size() > 107 - 10 - 32 - 5) return false;
         config.socketDirectory = text;
         return true;
       }},
      {"PEERLANE_PEER_TIMEOUT",
       {},
       "duration",
       "30s",
       "10ms to 24h (500ms, 30s, 2m; a plain number is seconds)",
       "How long a peer may be silent before it is reported as PeerSilent. A dead process is "
       "noticed at once.",
       [](std::string_view text, Config& config) {
         return readDuration(text, kShortestTimeout, kLongestTimeout, config.peerTimeout);
       }},
      {"PEERLANE_HEARTBEAT",
       {},
       "duration",
       "a sixth of PEERLANE_PEER_TIMEOUT",
       "1ms to half of PEERLANE_PEER_TIMEOUT",
       "How often an idle connection shows that it is alive.",
       [](std::string_view text, Config& config) {
         return readDuration(text, std::chrono::milliseconds(1), kLongestTimeout / 2,
                             config.heartbeat);
       }},
      {"PEERLANE_CONNECT_TIMEOUT",
       {},
       "duration",
       "10s",
       "10ms to 24h (500ms, 30s, 2m; a plain number is seconds)",
       "How long one attempt to connect to a peer may take.",
       [](std::string_view text, Config& config) {
         return readDuration(text, kShortestTimeout, kLongestTimeout, config.connectTimeout);
       }},
      {"PEERLANE_IF_IP",
       {"P2P_IF_IP", "IF_IP_DEFAULT", "HCCL_IF_IP"},
       "address",
       "",
       "an IPv4 or IPv6 address of this host",
       "The address to listen on and to put into tickets.",
       readAddress},
      {"PEERLANE_SOCKET_IFNAME",
       {"P2P_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"},
       "interfaces",
       "",
       "comma-separated name prefixes (eth,ib); a leading = makes the names exact, a leading ^ "
       "excludes them",
       "Which network interfaces may be used; PEERLANE_IF_IP wins.",
       readInterfaces},
      {"PEERLANE_PORT_RANGE",
       {"P2P_PORT_RANGE"},
       "ports",
       "0",
       "first-last or one port, each from 1 to 65535; 0 for any free port",
       "The TCP ports to listen on.",
       readPorts},
      {"PEERLANE_LINKS",
       {},
       "list",
       "self,shm,cuda_ipc,verbs,tcp",
       "a comma-separated list of self, shm, cuda_ipc, verbs, tcp",
       "The links that may be used.",
       readLinks},
      {"PEERLANE_SHM_ENGINE",
       {},
       "choice",
       "auto",
       "auto, mapped, cma, ring",
       "The engine that copies between processes of one host; anything but auto forbids the "
       "others.",
       readShmEngine},
      {"PEERLANE_TCP_ENCRYPT",
       {},
       "switch",
       "0",
       "0, 1",
       "1 encrypts and authenticates the data on tcp. Both sides need the same value; otherwise "
       "the link is refused.",
       [](std::string_view text, Config& config) {
         return readChoice<bool, 2>(text, {{{"0", false}, {"1", true}}}, config.tcpEncrypt);
       }},
      {"PEERLANE_TCP_SOCKETS",
       {},
       "number",
       "auto",
       "auto, 1 to 8",
       "The sockets of a tcp link that share a large transfer; of two sides the smaller number "
       "counts. auto is 1, and one more for each four cores up to 4.",
       [](std::string_view text, Config& config) {
         config.tcpSockets = 0;
         if (text == "auto") return true;
         const auto value = parseInteger(text, 1, 8);
         if (!value) return false;
         config.tcpSockets = static_cast<uint32_t>(*value);
         return true;
       }},
      {"PEERLANE_IBV_SO",
       {},
       "file",
       "libibverbs.so.1",
       "a name as the dynamic loader takes it",
       "The library through which the verbs link uses RDMA devices.",
       [](std::string_view text, Config& config) {
         config.ibvLibrary = text;
         return true;
       }},
      {"PEERLANE_IB_HCA",
       {"NCCL_IB_HCA"},
       "devices",
       "",
       "comma-separated name prefixes, each with a port or without (mlx5_0:1,mlx5_1); a leading = "
       "makes the names exact, a leading ^ excludes them",
       "Which RDMA devices and ports the verbs link may use.",
       [](std::string_view text, Config& config) { return readFilter(text, config.ibDevices); }},
      {"PEERLANE_IB_PORT",
       {},
       "number",
       "auto",
       "auto, 1 to 255",
       "The port of RDMA devices. auto is the first active one that PEERLANE_IB_HCA allows.",
       [](std::string_view text, Config& config) {
         return readOptional(text, 255, config.ibPort) && config.ibPort != 0;
       }},
      {"PEERLANE_IB_NICS",
       {},
       "number",
       "auto",
       "auto, 1 to 8",
       "How many RDMA devices a context uses, each with a link to every peer: a transfer takes the "
       "one that is nearest to its memory of this side. The smaller number of both sides holds. "
       "auto is one for each different device that is the nearest one of a GPU of the context, at "
       "most 4.",
       [](std::string_view text, Config& config) {
         config.ibNics = 0;
         return text == "auto" || readNumber(text, 1, 8, config.ibNics);
       }},
      {"PEERLANE_IB_GID_INDEX",
       {"NCCL_IB_GID_INDEX"},
       "number",
       "auto",
       "auto, 0 to 65535",
       "The address of the port, by its place in the port's table. auto takes one by which the "
       "peer's is reached, RoCE v2 before v1.",
       [](std::string_view text, Config& config) {
         return readOptional(text, 65535, config.ibGidIndex);
       }},
      {"PEERLANE_IB_PKEY",
       {},
       "number",
       "65535",
       "1 to 65535",
       "The partition key of verbs links.",
       [](std::string_view text, Config& config) {
         return readNumber(text, 1, 65535, config.ibPkey);
       }},
      {"PEERLANE_IB_TC",
       {"NCCL_IB_TC"},
       "number",
       "0",
       "0 to 255",
       "The traffic class of verbs links (RoCE: DSCP and ECN).",
       [](std::string_view text, Config& config) {
         return readNumber(text, 0, 255, config.ibTrafficClass);
       }},
      {"PEERLANE_IB_SL",
       {"NCCL_IB_SL"},
       "number",
       "0",
       "0 to 15",
       "The service level of verbs links.",
       [](std::string_view text, Config& config) {
         return readNumber(text, 0, 15, config.ibServiceLevel);
       }},
      {"PEERLANE_IB_TIMEOUT",
       {"NCCL_IB_TIMEOUT"},
       "number",
       "auto",
       "auto, 1 to 31",
       "How long a device waits for an acknowledgement before it sends again: 4.096 us times two "
       "to "
       "this power. auto is the longest with which PEERLANE_PEER_TIMEOUT holds.",
       [](std::string_view text, Config& config) {
         return readOptional(text, 31, config.ibTimeout) && config.ibTimeout != 0;
       }},
      {"PEERLANE_IB_RETRY",
       {"NCCL_IB_RETRY_CNT"},
       "number",
       "6",
       "0 to 7",
       "How often a device sends again before the link fails. With 7 the kernel's software device "
       "(rxe) never gives up.",
       [](std::string_view text, Config& config) {
         return readNumber(text, 0, 7, config.ibRetry);
       }},
      {"PEERLANE_IB_ADAPTIVE",
       {"NCCL_IB_ADAPTIVE_ROUTING"},
       "choice",
       "auto",
       "auto, 0, 1",
       "1: switches may send the packets of one queue pair by several ways (adaptive routing), so "
       "verbs links do not rely on their order. auto: those of InfiniBand may, those of RoCE do "
       "not.",
       [](std::string_view text, Config& config) {
         config.ibAdaptive.reset();
         if (text == "0" || text == "1") config.ibAdaptive = text == "1";
         return config.ibAdaptive.has_value() || text == "auto";
       }},
      {"PEERLANE_IB_PAIRS",
       {"NCCL_IB_QPS_PER_CONNECTION"},
       "number",
       "4",
       "1 to 8",
       "How many queue pairs share the puts and gets of 4 MiB and more to one peer. Those after "
       "the "
       "first are made when they are first of use; the smaller setting of both sides holds.",
       [](std::string_view text, Config& config) {
         return readNumber(text, 1, 8, config.ibPairs);
       }},
      {"PEERLANE_IB_REGISTER",
       {},
       "choice",
       "auto",
       "auto, pages, odp, dma-buf, peer-memory, staged",
       "How the verbs link registers memory. pages and odp (on-demand paging) are for memory of "
       "the "
       "host, dma-buf and peer-memory for memory of GPUs, and forbid the other way of that kind. "
       "staged registers memory of the host only where it is granted to peers.",
       readIbRegister},
      {"PEERLANE_IB_CACHE",
       {},
       "size",
       "16GiB",
       "0 to 1TiB (powers of 1024: 512M, 16GiB)",
       "How much memory of Context::regionOf() the verbs link keeps registered at a time for this "
       "side; the least recently used leaves first. 0: none, it is copied.",
       [](std::string_view text, Config& config) {
         auto value = parseByteSize(text);
         if (!value || *value > (1ull << 40)) return false;
         config.ibCacheBytes = *value;
         return true;
       }},
      {"PEERLANE_IB_DOMAIN",
       {},
       "choice",
       "context",
       "context, peer",
       "Whose pairs a key of the verbs link is good for. peer: of one peer only; each peer then "
       "costs its registrations and queues again.",
       [](std::string_view text, Config& config) {
         return readChoice<IbDomain, 2>(
             text, {{{"context", IbDomain::kContext}, {"peer", IbDomain::kPeer}}}, config.ibDomain);
       }},
      {"PEERLANE_STAGING_BYTES",
       {},
       "size",
       "16MiB",
       "64KiB to 4GiB (powers of 1024: 512K, 16MiB, 1G)",
       "The staging memory of a context, where a path needs any.",
       readStaging},
      {"PEERLANE_TICKET",
       {},
       "ticket",
       "",
       "a ticket as printed by the listening side",
       "The peer to connect to. It holds a secret; the value is never printed.",
       [](std::string_view text, Config& config) {
         config.ticket = text;
         return true;
       },
       true},
      {"PEERLANE_TUNE",
       {},
       "file",
       "",
       "a path",
       "A file of thresholds that replaces the built-in ones.",
       [](std::string_view text, Config& config) {
         config.tuneFile = text;
         return true;
       }},
      {"PEERLANE_EAGER_BYTES",
       {},
       "size",
       "4096",
       "0 to 4096",
       "Messages up to this size are sent without asking first.",
       readEager},
      {"PEERLANE_HUGEPAGES",
       {},
       "choice",
       "auto",
       "auto, on, off",
       "Huge pages for memory that the library allocates; on makes their absence an error.",
       [](std::string_view text, Config& config) {
         return readChoice<HugePages, 3>(
             text, {{{"auto", HugePages::kAuto}, {"on", HugePages::kOn}, {"off", HugePages::kOff}}},
             config.hugePages);
       }},
  };
  return *rows;
}

}  // namespace peerlane
