// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "peerlane/os/file.h"
#include "peerlane/os/mappings/adopted_mapping.h"
#include "peerlane/os/unix_peer.h"

namespace peerlane {
namespace {

std::string processName(pid_t pid) {
  return "process " + std::to_string(pid);
}

// Which side of a failed copy is at fault: the kernel says EFAULT for both.
Status faultStatus(const char* what, bool localIsWritten, std::span<const IoSlice> local,
                   std::span<const IoSlice> remote) {
  char text[160];
  for (const IoSlice& slice : local) {
    if (slice.bytes == 0) continue;
    auto mapping = findSharedMapping(slice.base, slice.bytes);
    bool good = mapping.isOk() && (!localIsWritten || mapping->writable);
    if (good) continue;
    std::snprintf(text, sizeof text,
                  ": the local memory at %p of %zu bytes is not mapped completely%s", slice.base,
                  slice.bytes, localIsWritten ? " for writing" : "");
    return Status(Code::kInvalidArgument, std::string(what) + text);
  }
  const void* first = remote.empty() ? nullptr : remote.front().base;
  std::snprintf(text, sizeof text,
                ": the remote memory is not mapped there or lacks the right (%zu slices from %p)",
                remote.size(), first);
  return Status(Code::kInvalidArgument, std::string(what) + text);
}

using VmCall = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                           unsigned long);

Result<size_t> moveMemory(VmCall call, bool localIsWritten, pid_t pid,
                          std::span<const IoSlice> local, std::span<const IoSlice> remote) {
  if (local.size() > kMaxIoSlices || remote.size() > kMaxIoSlices) {
    return Status(Code::kInvalidArgument,
                  "copying " + std::to_string(local.size()) + " local and " +
                      std::to_string(remote.size()) + " remote slices in one call; at most " +
                      std::to_string(kMaxIoSlices) + " of each are accepted");
  }
  ssize_t moved = call(pid, reinterpret_cast<const iovec*>(local.data()), local.size(),
                       reinterpret_cast<const iovec*>(remote.data()), remote.size(), 0);
  if (moved >= 0) return static_cast<size_t>(moved);
  int error = errno;
  std::string what = localIsWritten ? "process_vm_readv from " : "process_vm_writev to ";
  what += processName(pid);
  switch (error) {
    case ESRCH: return Status(Code::kPeerLost, what + ": it has ended");
    case EPERM:
      return Status(Code::kPermissionDenied,
                    what +
                        " is not permitted (other user, not dumpable, Yama ptrace_scope, or a "
                        "seccomp filter)");
    case EFAULT: return faultStatus(what.c_str(), localIsWritten, local, remote);
    case ENOMEM: return Status(Code::kOutOfMemory, what + ": the kernel has no memory for it");
    case ENOSYS: return Status(Code::kNotSupported, what + ": this kernel does not have it");
    default: return Status::system(error, what);
  }
}

// The count is bumped in each forked child before fork returns there: the child is single-threaded
// then, so relaxed suffices; in one process the value never changes.
const int kForksAreCounted = ::pthread_atfork(
    nullptr, nullptr, [] { internal::fork_count.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

namespace {

constinit std::atomic<void (*)()> goodbyes{nullptr};

}  // namespace

void setGoodbyes(void (*say)()) {
  goodbyes.store(say, std::memory_order_release);
}

void sayGoodbyes() {
  if (const auto say = goodbyes.load(std::memory_order_acquire)) say();
}

bool hasManyCores() {
  constexpr int kEnough = 8;
  // The count for the process, even where the thread that asks first is pinned; and within the
  // limit of a container.
  static const bool has = [] {
    cpu_set_t cores;
    if (::sched_getaffinity(::getpid(), sizeof cores, &cores) != 0 || CPU_COUNT(&cores) < kEnough)
      return false;
    const auto limit = readWhole("/sys/fs/cgroup/cpu.max", 256);
    long long quota = 0, period = 0;
    return !limit.isOk() || std::sscanf(limit->c_str(), "%lld %lld", &quota, &period) != 2 ||
           quota >= kEnough * period;
  }();
  return has;
}

namespace internal {
std::atomic<uint64_t> fork_count{0};
}  // namespace internal

Result<ProcessHandle> ProcessHandle::open(pid_t pid) {
  Fd fd(pid > 0 ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1);
  if (!fd) {
    int error = pid > 0 ? errno : ESRCH;
    if (error == ESRCH) return Status(Code::kPeerLost, "there is no " + processName(pid));
    if (error == ENOSYS) return Status(Code::kNotSupported, "pidfd_open needs Linux 5.3");
    if (error == EINVAL) {
      return Status(Code::kInvalidArgument, processName(pid) + " is a thread, not a process");
    }
    return Status::system(error, "pidfd_open of " + processName(pid));
  }
  return ProcessHandle(std::move(fd), pid);
}

Result<ProcessHandle> ProcessHandle::ofPeer(int socket) {
  PEERLANE_ASSIGN(Fd pidFd, peerPidFd(socket));
  PEERLANE_ASSIGN(const PeerCredentials who, peerCredentials(socket));
  return of(std::move(pidFd), who.pid);
}

Result<AddressSpace> AddressSpace::open(pid_t pid) {
  return openAs(pid, O_RDONLY);
}

Result<AddressSpace> AddressSpace::openForWriting(pid_t pid) {
  return openAs(pid, O_RDWR);
}

Result<AddressSpace> AddressSpace::openAs(pid_t pid, int mode) {
  if (pid <= 0) return Status(Code::kPeerLost, "there is no " + processName(pid));
  const std::string path = "/proc/" + std::to_string(pid) + "/mem";
  Fd memory(::open(path.c_str(), mode | O_CLOEXEC));
  if (memory) return AddressSpace(std::move(memory));
  if (errno == ENOENT || errno == ESRCH)
    return Status(Code::kPeerLost, "there is no " + processName(pid));
  if (errno == EACCES || errno == EPERM)
    return Status(Code::kPermissionDenied, "opening " + path + " is not permitted");
  return Status::system(errno, "open " + path);
}

// The file is bound to the memory it was opened for. A read returns no byte once that memory has no
// user; before that, a read at an address where nothing is mapped returns an error.
bool AddressSpace::hasEnded() const {
  char byte;
  return ::pread(memory_.get(), &byte, 1, 0) == 0;
}

size_t AddressSpace::read(uint64_t address, std::span<std::byte> to) const {
  const ssize_t moved = ::pread(memory_.get(), to.data(), to.size(), static_cast<off_t>(address));
  return moved < 0 ? 0 : static_cast<size_t>(moved);
}

size_t AddressSpace::write(uint64_t address, std::span<const std::byte> from) const {
  const ssize_t moved =
      ::pwrite(memory_.get(), from.data(), from.size(), static_cast<off_t>(address));
  return moved < 0 ? 0 : static_cast<size_t>(moved);
}

bool ProcessHandle::alive() const {
  pollfd entry{pidFd_.get(), POLLIN, 0};
  int rc;
  do {
    rc = ::poll(&entry, 1, 0);
  } while (rc < 0 && errno == EINTR);
  return rc == 0;
}

Result<size_t> readProcess(pid_t pid, std::span<const IoSlice> local,
                           std::span<const IoSlice> remote) {
  return moveMemory(::process_vm_readv, true, pid, local, remote);
}

Result<size_t> writeProcess(pid_t pid, std::span<const IoSlice> local,
                            std::span<const IoSlice> remote) {
  return moveMemory(::process_vm_writev, false, pid, local, remote);
}

Status allowPtraceBy(pid_t pid) {
  if (::prctl(PR_SET_PTRACER, static_cast<unsigned long>(pid), 0, 0, 0) == 0) return Status::ok();
  if (errno != EINVAL) return Status::system(errno, "PR_SET_PTRACER");
  // EINVAL stands for "no Yama here" and for "no such process".
  if (!ptraceScope()) return Status::ok();
  return Status(Code::kPeerLost, "PR_SET_PTRACER: there is no " + processName(pid));
}

std::optional<int> ptraceScope() {
  // Yama comes with the start of the system, or never; its value may change at any time.
  static std::atomic<bool> isAbsent{false};
  if (isAbsent.load(std::memory_order_relaxed)) return std::nullopt;
  auto text = readWhole("/proc/sys/kernel/yama/ptrace_scope", 64);
  // A shortage of descriptors, whose errno it has, passes.
  if (text.status().code() == Code::kUnavailable && text.status().systemError() == 0)
    isAbsent.store(true, std::memory_order_relaxed);
  if (!text.isOk() || text->empty()) return std::nullopt;
  return std::atoi(text->c_str());
}

Result<uint64_t> processStartTime(pid_t pid) {
  auto text = readWhole("/proc/" + std::to_string(pid) + "/stat", 1 << 16);
  if (!text.isOk()) return Status(Code::kPeerLost, "there is no " + processName(pid));
  // The second field is the program's name in parentheses and may hold anything: count from its
  // end.
  size_t at = text->rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text->find(' ', at + 1);
  if (at == std::string::npos) {
    return Status(Code::kSystem, "/proc/" + std::to_string(pid) + "/stat has fewer than 22 fields");
  }
  return static_cast<uint64_t>(std::strtoull(text->c_str() + at + 1, nullptr, 10));
}

Status fillRandom(std::span<std::byte> space) {
  while (!space.empty()) {
    ssize_t got = ::getrandom(space.data(), space.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::system(errno, "getrandom");
    space = space.subspan(static_cast<size_t>(got));
  }
  return Status::ok();
}

Result<uint64_t> raiseDescriptorLimit() {
  constexpr rlim_t kMost = 1 << 20;  // programs that visit each possible one want fewer
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return Status::system(errno, "RLIMIT_NOFILE");
  const rlim_t wanted = std::min(limit.rlim_max, kMost);
  if (limit.rlim_cur >= wanted) return uint64_t{limit.rlim_cur};
  limit.rlim_cur = wanted;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    return Status::system(errno, "raising RLIMIT_NOFILE to " + std::to_string(wanted));
  return uint64_t{wanted};
}

Result<uint64_t> residentBytes() {
  PEERLANE_ASSIGN(std::string text, readWhole("/proc/self/statm", 4096));
  uint64_t total = 0;
  uint64_t resident = 0;
  if (std::sscanf(text.c_str(), "%" SCNu64 " %" SCNu64, &total, &resident) != 2) {
    return Status(Code::kSystem, "/proc/self/statm is not two numbers: " + text);
  }
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace peerlane
