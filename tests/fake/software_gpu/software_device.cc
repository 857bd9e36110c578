// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_gpu/software_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "peerlane/core/mutex.h"

#if defined(__SANITIZE_THREAD__)
#define SOFTWARE_GPU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SOFTWARE_GPU_TSAN 1
#endif
#endif
#ifdef SOFTWARE_GPU_TSAN
extern "C" void __tsan_read_range(void* address, unsigned long bytes);
extern "C" void __tsan_write_range(void* address, unsigned long bytes);
#endif

namespace peerlane::softgpu {
namespace {

constexpr size_t kPage = 4096;
// So much of new memory holds what nobody wrote there.
constexpr size_t kGarbageBytes = 65536;

thread_local std::vector<int> contexts;
thread_local bool inCallback = false;

struct State {
  std::array<std::atomic<cudaError_t>, kMostDevices> health{};
  std::array<std::atomic<uint32_t>, kMostDevices> peers{};
  std::array<std::atomic<size_t>, kMostDevices> used{};
  std::array<std::atomic<bool>, kMostDevices> runtimeContexts{};
  std::atomic<uint64_t> lastId{0};
  std::atomic<uint64_t> generation{1};  // changes with every entry
  SharedMutex mutex;
  std::map<uintptr_t, AllocationPtr> allocations PEERLANE_GUARDED_BY(mutex);
};

// Leaked: threads of streams may still run when static objects are destroyed.
State& state() {
  static auto* const only = new State;
  return *only;
}

size_t wholePages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

uint32_t bitOf(int device) {
  return uint32_t{1} << device;
}

AllocationPtr findLocked(const State& all, uintptr_t address) PEERLANE_REQUIRES_SHARED(all.mutex) {
  auto next = all.allocations.upper_bound(address);
  if (next == all.allocations.begin()) return nullptr;
  const AllocationPtr& before = std::prev(next)->second;
  return address - before->base < before->bytes ? before : nullptr;
}

}  // namespace

int deviceCount() {
  static const int count = [] {
    const char* asked = std::getenv("SOFTWARE_GPUS");
    return asked == nullptr ? 0 : std::clamp(std::atoi(asked), 0, kMostDevices);
  }();
  return count;
}

bool isRightProc() {
  static const bool is = [] {
    char text[16] = {};
    return readlink("/proc/self", text, sizeof(text) - 1) > 0 && std::atoi(text) == getpid();
  }();
  return is;
}

int currentContext() {
  return contexts.empty() ? -1 : contexts.back();
}

int currentDevice() {
  if (contexts.empty()) setDevice(0);
  return contexts.back();
}

bool hasRuntimeContext(int device) {
  return state().runtimeContexts[static_cast<size_t>(device)];
}

void setDevice(int device) {
  state().runtimeContexts[static_cast<size_t>(device)] = true;
  if (contexts.empty())
    contexts.push_back(device);
  else
    contexts.back() = device;
}

void pushContext(int device) {
  contexts.push_back(device);
}

int popContext() {
  if (contexts.empty()) return -1;
  const int device = contexts.back();
  contexts.pop_back();
  return device;
}

void enterCallback() {
  inCallback = true;
}

bool isInCallback() {
  return inCallback;
}

void failDevice(int device, const std::string& why) {
  std::fprintf(stderr, "software GPU %d has failed: %s\n", device, why.c_str());
  state().health[static_cast<size_t>(device)].store(cudaErrorIllegalAddress);
}

cudaError_t healthOf(int device) {
  return state().health[static_cast<size_t>(device)].load();
}

Physical::~Physical() {
  // What shares its file with others leaves a hole.
  if (isOurs && offset != 0)
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                    static_cast<off_t>(mappedBytes));
  if (fd >= 0) close(fd);
  if (isOurs) state().used[static_cast<size_t>(device)] -= mappedBytes;
}

bool takeRoom(int device, size_t bytes) {
  std::atomic<size_t>& used = state().used[static_cast<size_t>(device)];
  if (bytes > kDeviceBytes) return false;
  if (used.fetch_add(bytes) <= kDeviceBytes - bytes) return true;
  used -= bytes;
  return false;
}

std::shared_ptr<Physical> makePhysical(int device, size_t bytes, unsigned handleTypes,
                                       cudaError_t& error) {
  auto made = std::make_shared<Physical>();
  made->device = device;
  made->bytes = bytes;
  made->mappedBytes = wholePages(bytes);
  made->handleTypes = handleTypes;
  error = cudaErrorMemoryAllocation;
  if (!takeRoom(device, made->mappedBytes)) return nullptr;
  made->isOurs = true;
  made->fd = makeNamedFile("software-gpu:" + std::to_string(device) + ":" + std::to_string(bytes) +
                               ":" + std::to_string(handleTypes) + ":",
                           made->name);
  if (made->fd < 0 || ftruncate(made->fd, static_cast<off_t>(made->mappedBytes)) != 0)
    return nullptr;
  const std::vector<char> garbage(std::min(bytes, kGarbageBytes), static_cast<char>(0xA5));
  if (pwrite(made->fd, garbage.data(), garbage.size(), 0) < 0) return nullptr;
  error = cudaSuccess;
  return made;
}

int makeNamedFile(const std::string& prefix, std::string& name) {
  uint64_t nonce = 0;
  if (getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce)) return -1;
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(nonce));
  name = prefix + text;
  return memfd_create(name.c_str(), MFD_CLOEXEC);
}

std::string nameOfFile(int fd) {
  constexpr size_t kSkipped = sizeof("/memfd:") - 1;
  char target[256] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), target, sizeof(target) - 1);
  if (length <= 0 || std::strncmp(target, "/memfd:", kSkipped) != 0) return {};
  const std::string name(target + kSkipped);
  return name.substr(0, name.find(' '));
}

namespace {

// Where processes are found.
std::string proc() {
  const char* asked = std::getenv("SOFTWARE_GPU_PROC");
  return asked == nullptr ? "/proc" : asked;
}

}  // namespace

// As that has it, which may be of a PID namespace around this one.
pid_t ownPid() {
  char text[16] = {};
  return readlink((proc() + "/self").c_str(), text, sizeof(text) - 1) > 0 ? std::atoi(text)
                                                                          : getpid();
}

bool makeHandle(const Physical& physical, HandleContent& content) {
  content = {ownPid(), physical.fd, {}};
  if (physical.name.size() >= sizeof(content.name)) return false;
  std::memcpy(content.name, physical.name.data(), physical.name.size());
  return true;
}

std::shared_ptr<Physical> followHandle(const HandleContent& content) {
  const std::string path =
      proc() + "/" + std::to_string(content.pid) + "/fd/" + std::to_string(content.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  auto physical = fd < 0 ? nullptr : adoptPhysical(fd);
  const std::string name(content.name, strnlen(content.name, sizeof(content.name)));
  if (physical == nullptr || physical->name != name || !isDevice(physical->device)) return nullptr;
  return physical;
}

bool fabricFails(const char* how) {
  const char* asked = std::getenv("SOFTWARE_GPU_FABRIC");
  return asked != nullptr && std::strcmp(asked, how) == 0;
}

bool hasNoDmaBuf() {
  const char* asked = std::getenv("SOFTWARE_GPU_DMA_BUF");
  return asked != nullptr && std::strcmp(asked, "absent") == 0;
}

Pool::~Pool() {
  if (fd >= 0) close(fd);
}

std::shared_ptr<Physical> adoptPhysical(int fd) {
  auto made = std::make_shared<Physical>();
  made->fd = fd;
  const std::string name = nameOfFile(fd);
  if (std::sscanf(name.c_str(), "software-gpu:%d:%zu:%u:", &made->device, &made->bytes,
                  &made->handleTypes) != 3)
    return nullptr;
  made->mappedBytes = wholePages(made->bytes);
  made->name = name;
  return made;
}

size_t usedBytes(int device) {
  return state().used[static_cast<size_t>(device)];
}

AllocationPtr mapPhysical(const std::shared_ptr<Physical>& physical, MemoryKind kind, void* base,
                          const std::shared_ptr<Pool>& pool) {
  void* at = mmap(base, physical->mappedBytes, PROT_READ | PROT_WRITE,
                  MAP_SHARED | (base != nullptr ? MAP_FIXED : 0), physical->fd, physical->offset);
  if (at == MAP_FAILED) return nullptr;
  auto made = std::make_shared<Allocation>();
  made->base = reinterpret_cast<uintptr_t>(at);
  made->bytes = physical->bytes;
  made->mappedBytes = physical->mappedBytes;
  made->kind = kind;
  made->device = physical->device;
  made->physical = physical;
  made->pool = pool;
  (void)enter(made);
  return made;
}

bool enter(const AllocationPtr& allocation) {
  State& all = state();
  const WriterLock lock(all.mutex);
  auto next = all.allocations.lower_bound(allocation->base);
  if (next != all.allocations.end() && next->first < allocation->base + allocation->bytes)
    return false;
  if (findLocked(all, allocation->base) != nullptr) return false;
  allocation->id = ++all.lastId;
  all.allocations.emplace(allocation->base, allocation);
  ++all.generation;
  return true;
}

AllocationPtr enterHost(void* base, size_t bytes, MemoryKind kind, unsigned flags) {
  auto made = std::make_shared<Allocation>();
  made->base = reinterpret_cast<uintptr_t>(base);
  made->bytes = bytes;
  made->mappedBytes = wholePages(bytes);
  made->kind = kind;
  made->flags = flags;
  made->device = currentDevice();
  return enter(made) ? made : nullptr;
}

void forget(const Allocation& allocation) {
  State& all = state();
  const WriterLock lock(all.mutex);
  const auto found = all.allocations.find(allocation.base);
  if (found == all.allocations.end() || found->second.get() != &allocation) return;
  all.allocations.erase(found);
  ++all.generation;
}

void unmap(const Allocation& allocation) {
  munmap(allocation.at(), allocation.mappedBytes);
}

AllocationPtr find(const void* address) {
  State& all = state();
  const ReaderLock lock(all.mutex);
  return findLocked(all, reinterpret_cast<uintptr_t>(address));
}

void enablePeer(int device, int peer, bool enabled) {
  std::atomic<uint32_t>& peers = state().peers[static_cast<size_t>(device)];
  if (enabled)
    peers |= bitOf(peer);
  else
    peers &= ~bitOf(peer);
  ++state().generation;
}

bool isPeerEnabled(int device, int peer) {
  return (state().peers[static_cast<size_t>(device)] & bitOf(peer)) != 0;
}

bool canReach(int device, const Allocation& allocation) {
  switch (allocation.kind) {
    case MemoryKind::kHost:
    case MemoryKind::kRegistered:
    case MemoryKind::kManaged: return true;
    case MemoryKind::kDevice:
      return device == allocation.device || isPeerEnabled(device, allocation.device);
    case MemoryKind::kOpened: {
      // Mapped for the device that opened it; like memory of its own where it lies there.
      const int opener = static_cast<int>(allocation.flags);
      return device == opener || (opener == allocation.device && isPeerEnabled(device, opener));
    }
    case MemoryKind::kMapped: return (allocation.access & bitOf(device)) != 0;
    case MemoryKind::kPool:
      return device == allocation.device || (allocation.pool->access & bitOf(device)) != 0;
  }
  return false;
}

bool canReach(int device, const void* address, size_t bytes) {
  // Lists name the same few allocations again and again.
  struct Seen {
    uint64_t generation = 0;
    int device = -1;
    uintptr_t begin = 0, end = 0;
  };
  thread_local Seen seen;
  const auto first = reinterpret_cast<uintptr_t>(address);
  const uint64_t generation = state().generation;
  if (seen.generation == generation && seen.device == device && first >= seen.begin &&
      first < seen.end && bytes <= seen.end - first)
    return true;
  uintptr_t at = first;
  size_t left = bytes;
  while (left > 0) {
    const AllocationPtr found = find(reinterpret_cast<const void*>(at));
    if (found == nullptr || !canReach(device, *found)) return false;
    // Access of mappings may be taken away without an entry changing.
    if (found->kind != MemoryKind::kMapped && found->kind != MemoryKind::kPool)
      seen = {generation, device, found->base, found->base + found->bytes};
    const size_t here = found->base + found->bytes - at;
    if (here >= left) return true;
    at += here;
    left -= here;
  }
  return true;
}

#ifdef SOFTWARE_GPU_TSAN

namespace {

bool isSeenBySanitizer(const void* address) {
  const AllocationPtr found = find(address);
  return found == nullptr || found->kind == MemoryKind::kHost;
}

}  // namespace

void moveBytes(void* to, const void* from, size_t bytes) {
  if (isSeenBySanitizer(from)) __tsan_read_range(const_cast<void*>(from), bytes);
  if (isSeenBySanitizer(to)) __tsan_write_range(to, bytes);
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

void fillBytes(void* to, int value, size_t bytes) {
  if (isSeenBySanitizer(to)) __tsan_write_range(to, bytes);
  asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
}

#else

void moveBytes(void* to, const void* from, size_t bytes) {
  std::memmove(to, from, bytes);
}

void fillBytes(void* to, int value, size_t bytes) {
  std::memset(to, value, bytes);
}

#endif

}  // namespace peerlane::softgpu
