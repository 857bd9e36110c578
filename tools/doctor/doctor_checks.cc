// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/doctor_checks.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/capability.h>
#include <linux/membarrier.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "peerlane/core/config.h"
#include "peerlane/core/text.h"
#include "peerlane/os/topology.h"
#include "peerlane/session/context/context.h"
#include "tools/doctor/doctor_gpu_checks.h"
#include "tools/report/failure_report.h"

extern char** environ;

namespace peerlane {
namespace {

using State = Finding::State;

std::string why() {
  return std::strerror(errno);
}

// A small file of /proc or /sys without the line break; empty when it cannot be read.
std::string contentOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  std::string content = text.str();
  content.erase(content.find_last_not_of("\n ") + 1);
  return content;
}

Finding checkKernel() {
  utsname name{};
  ::uname(&name);
  return {"kernel", State::kWorks,
          fmt::format("{} {} {}", name.sysname, name.release, name.machine), ""};
}

Finding checkProcessors() {
  cpu_set_t set;
  const int count = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  if (count > 1)
    return {"processors", State::kWorks, fmt::format("{} usable by this process", count), ""};
  return {"processors", State::kLimited, "1: a waiting thread and the one it waits for take turns",
          "allow more processors (taskset, container limits); else set PEERLANE_SPIN_US=0"};
}

Finding checkMemfd() {
  const int fd = static_cast<int>(
      ::syscall(SYS_memfd_create, "peerlane-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0)
    return {"memfd", State::kBroken, "memfd_create: " + why(),
            "shared memory between processes needs Linux 3.17 and a sandbox that allows it"};
  const bool sealed = ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0;
  const std::string reason = why();
  ::close(fd);
  if (sealed) return {"memfd", State::kWorks, "can be made and sealed against shrinking", ""};
  return {"memfd", State::kBroken, "sealing: " + reason, "peers refuse memory that may shrink"};
}

Finding checkPidfd() {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0));
  if (fd >= 0) {
    ::close(fd);
    return {"pidfd", State::kWorks, "the end of a peer is noticed at once", ""};
  }
  return {"pidfd", State::kLimited, "pidfd_open: " + why(),
          "engine cma needs Linux 5.3; other engines do not"};
}

Finding checkOtherMemory() {
  const std::string hindrance = cmaHindrance();
  if (hindrance.empty())
    return {"reading peers", State::kWorks, "process_vm_readv is not forbidden by any setting", ""};
  return {"reading peers", State::kLimited, hindrance,
          "private memory is staged (engine ring); Context::allocate's memory is not concerned"};
}

Finding checkReservedHugePages() {
  std::ifstream file("/proc/meminfo");
  uint64_t total = 0;
  uint64_t free = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    uint64_t value = 0;
    words >> key >> value;
    if (key == "HugePages_Total:") total = value;
    if (key == "HugePages_Free:") free = value;
  }
  if (total > 0)
    return {"huge pages, reserved", State::kWorks, fmt::format("{} of {} free", free, total), ""};
  return {"huge pages, reserved", State::kAbsent, "none (only PEERLANE_HUGEPAGES=on needs them)",
          "sysctl vm.nr_hugepages=N reserves N of them"};
}

Finding checkTransparentHugePages() {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  const std::string heap = contentOf(folder + "enabled");
  const std::string shared = contentOf(folder + "shmem_enabled");
  const std::string text = "heap: " + (heap.empty() ? "unknown" : heap) +
                           "; shared memory: " + (shared.empty() ? "unknown" : shared);
  if (shared.find("[never]") == std::string::npos && shared.find("[deny]") == std::string::npos)
    return {"huge pages, transparent", State::kWorks, text, ""};
  return {"huge pages, transparent", State::kLimited, text,
          "echo advise > " + folder + "shmem_enabled lets large shared regions use them"};
}

std::string limitText(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

// The kernel lets it lock more than the limit says.
bool mayLockAnything() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  return ::syscall(SYS_capget, &header, data) == 0 && (data[0].effective & 1u << CAP_IPC_LOCK) != 0;
}

Finding checkLockedMemory() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur != RLIM_INFINITY && mayLockAnything())
    return {"locked memory", State::kWorks,
            "unlimited for this process (CAP_IPC_LOCK), whatever its limit of " +
                limitText(limit.rlim_cur) + " bytes",
            ""};
  const bool enough = limit.rlim_cur == RLIM_INFINITY;
  return {"locked memory", enough ? State::kWorks : State::kLimited,
          limitText(limit.rlim_cur) + (enough ? "" : " bytes: only NICs need more"),
          enough ? "" : "ulimit -l unlimited, where a NIC shall be used"};
}

Finding checkDescriptors() {
  // Of a peer over shm that imports nothing; one over tcp takes fewer.
  constexpr rlim_t kOfAPeer = 10;
  constexpr rlim_t kOfTheProcess = 20;  // streams, and what a context has before its first peer
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  // Contexts raise the soft limit (raiseDescriptorLimit).
  const rlim_t most = std::min<rlim_t>(limit.rlim_max, 1 << 20);
  const bool enough = most >= 4096;
  return {"descriptors", enough ? State::kWorks : State::kLimited,
          fmt::format("{} per process, {} once it has a context: enough for about {} peers of this "
                      "host; each imported region takes one more",
                      limitText(limit.rlim_cur), most,
                      most > kOfTheProcess ? (most - kOfTheProcess) / kOfAPeer : 0),
          enough ? "" : "ulimit -Hn 65536, or LimitNOFILE= of the service, for more peers"};
}

// The number of the namespace that the kernel starts with.
constexpr ino_t kFirstPidNamespace = 0xEFFFFFFC;

Finding checkPidNamespace() {
  struct stat found {};
  if (::stat("/proc/self/ns/pid", &found) != 0)
    return {"pid namespace", State::kLimited, "/proc/self/ns/pid: " + why(), "mount /proc"};
  if (found.st_ino == kFirstPidNamespace)
    return {"pid namespace", State::kWorks, "the host's own", ""};
  return {
      "pid namespace", State::kWorks,
      "one of its own (a container): engine cma and memory by cudaMalloc need peers in the same "
      "one, memory of Context::allocate does not",
      ""};
}

Finding checkAbstractSockets() {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("peerlane-doctor-{}", ::getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const bool bound = fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) == 0;
  const std::string reason = why();
  if (fd >= 0) ::close(fd);
  if (bound) return {"unix sockets", State::kWorks, "abstract names can be bound", ""};
  return {"unix sockets", State::kBroken, reason,
          "set PEERLANE_SOCKET_DIR to a folder that all processes can reach"};
}

bool loopbackWorks() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool works = listener >= 0 && client >= 0 &&
                     ::bind(listener, generic, sizeof address) == 0 && ::listen(listener, 1) == 0 &&
                     ::getsockname(listener, generic, &bytes) == 0 &&
                     ::connect(client, generic, sizeof address) == 0;
  const int error = errno;
  if (listener >= 0) ::close(listener);
  if (client >= 0) ::close(client);
  errno = error;
  return works;
}

Finding checkLoopback() {
  if (loopbackWorks()) return {"tcp", State::kWorks, "127.0.0.1 can be connected to", ""};
  return {"tcp", State::kBroken, "127.0.0.1: " + why(), "ip link set lo up"};
}

Finding checkMembarrier() {
  const long commands = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  if (commands > 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0)
    return {"membarrier", State::kWorks, "posting needs no fence of its own", ""};
  return {"membarrier", State::kLimited, commands < 0 ? why() : "the expedited form is missing",
          "every post pays a full fence; Linux 4.14 has it"};
}

bool isSecret(const std::string& name) {
  return name.find("TICKET") != std::string::npos || name.find("SECRET") != std::string::npos;
}

std::string namesOf(const TopologyReport& report, TopologyDeviceKind kind) {
  std::string names;
  for (const TopologyDevice& device : report.devices)
    if (device.kind == kind) names += (names.empty() ? "" : ", ") + device.name;
  return names;
}

Finding nicFinding(const std::string& names) {
  if (names.empty())
    return {"nic", State::kAbsent,
            "none was found on PCI: other hosts are reached through tcp, if at all", ""};
  return {"nic", State::kWorks, names + ": used through tcp, and as section RDMA says", ""};
}

}  // namespace

const char* findingStateName(Finding::State state) {
  switch (state) {
    case State::kWorks: return "works";
    case State::kLimited: return "limited";
    case State::kAbsent: return "absent";
    case State::kBroken: return "broken";
  }
  return "unknown";
}

std::string cmaHindrance() {
  const std::string scope = contentOf("/proc/sys/kernel/yama/ptrace_scope");
  if (scope == "2" && ::geteuid() != 0)
    return "kernel.yama.ptrace_scope is 2: only administrators may read other processes";
  if (scope == "3") return "kernel.yama.ptrace_scope is 3: nobody may read other processes";
  if (::prctl(PR_GET_DUMPABLE) != 1)
    return "this process is not dumpable (PR_SET_DUMPABLE, or started with other rights)";
  return "";
}

std::vector<Finding> checkMachine() {
  return {checkKernel(),
          checkProcessors(),
          checkMemfd(),
          checkPidfd(),
          checkOtherMemory(),
          checkReservedHugePages(),
          checkTransparentHugePages(),
          checkLockedMemory(),
          checkDescriptors(),
          checkPidNamespace(),
          checkAbstractSockets(),
          checkLoopback(),
          checkMembarrier()};
}

std::vector<Finding> checkDevices() {
  const auto report = loadTopology();
  std::vector<Finding> findings =
      checkGpus(report.isOk() ? namesOf(*report, TopologyDeviceKind::kGpu) : "");
  findings.push_back(report.isOk() ? nicFinding(namesOf(*report, TopologyDeviceKind::kNic))
                                   : Finding{"nic", State::kLimited, failureText(report.status()),
                                             "peerlane topo"});
  return findings;
}

namespace {

// Names of other projects, in the order in which they are read where ours is not set.
constexpr const char* kSubstitutes[][2] = {{"PEERLANE_IF_IP", "P2P_IF_IP"},
                                           {"PEERLANE_IF_IP", "IF_IP_DEFAULT"},
                                           {"PEERLANE_IF_IP", "HCCL_IF_IP"},
                                           {"PEERLANE_SOCKET_IFNAME", "P2P_SOCKET_IFNAME"},
                                           {"PEERLANE_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"},
                                           {"PEERLANE_PORT_RANGE", "P2P_PORT_RANGE"}};

bool isSet(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

bool isSubstitute(const std::string& name) {
  return std::any_of(std::begin(kSubstitutes), std::end(kSubstitutes),
                     [&](const auto& row) { return name == row[1]; });
}

// The variable that is read instead of `name`; null: `name` itself is.
const char* readInstead(const std::string& name) {
  for (const auto& [own, substitute] : kSubstitutes) {
    if (name != substitute) continue;
    if (isSet(own)) return own;
    for (const auto& [otherOwn, other] : kSubstitutes) {
      if (name == other) return nullptr;
      if (std::string_view(own) == otherOwn && isSet(other)) return other;
    }
  }
  return nullptr;
}

Finding variableFinding(const std::string& name, const std::string& value) {
  if (isSecret(name)) return {name, State::kWorks, "set (a secret, not shown)", ""};
  if (const char* const winner = readInstead(name))
    return {name, State::kAbsent, peerlane::quoted(value) + ", not read: " + winner + " is set",
            ""};
  const auto alone = Config::fromVariables({{name, value}});
  return {name, alone.isOk() ? State::kWorks : State::kBroken, peerlane::quoted(value), ""};
}

}  // namespace

std::vector<Finding> checkEnvironment() {
  std::vector<Finding> findings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = text.substr(0, equals);
    if (name.starts_with("PEERLANE_") || isSubstitute(name))
      findings.push_back(variableFinding(name, text.substr(equals + 1)));
  }
  const auto config = Config::fromEnvironment();
  if (!config.isOk()) {
    findings.push_back({"environment", State::kBroken, failureText(config.status()), ""});
    return findings;
  }
  // What only a context knows: which links there are, for example.
  if (const auto context = Context::create({*config, {}, ""}); !context.isOk())
    findings.push_back({"environment", State::kBroken, failureText(context.status()), ""});
  for (const std::string& warning : config->warnings)
    findings.push_back({"environment", State::kLimited, warning, ""});
  if (findings.empty())
    findings.push_back({"environment", State::kWorks, "no variable of this library is set", ""});
  return findings;
}

}  // namespace peerlane
