// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/far_side.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "peerlane/core/wire.h"
#include "peerlane/os/unix_peer.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {

// What is asked, and what is answered. Each question says what it means by `key`.
enum class Verb : uint8_t {
  kOpen,      // key: the GPU; region.kind: of its memory. Answer: the offer
  kComplete,  // blob: the other side's offer
  kAllocate,  // key: bytes. Answer: where and what
  kFree,      // key: where
  kGrant,     // region. Answer: the region, and its descriptor
  kChunks,    // region. Answer: handles of its chunks
  kAttach,    // region, its descriptor; blob or descriptors: its chunks. Answer: linkKey and where
  kDetach,    // key: linkKey
  kRead,      // key: where; region.bytes: how much, to the window
  kWrite,     // the same from the window
};

struct Letter {
  Verb verb = Verb::kOpen;
  uint64_t key = 0;
  RegionGrant region{};
  std::vector<std::byte> blob{};
  std::vector<Fd> fds{};
  std::string failure{};  // in an answer: why there is none
};

namespace {

constexpr size_t kWindowBytes = size_t{1} << 20;
constexpr uint32_t kMostBytes = 1 << 16;

std::vector<std::byte> encode(const Letter& letter) {
  std::vector<std::byte> bytes;
  ByteWriter writer(bytes);
  writer.u32(0);
  writer.u8(static_cast<uint8_t>(letter.verb));
  writer.u64(letter.key);
  const RegionGrant& region = letter.region;
  for (const uint64_t word : {region.allocation, region.generation, region.base, region.bytes,
                              region.fdOffset, region.backingBytes, region.identity})
    writer.u64(word);
  writer.u8(static_cast<uint8_t>(region.kind));
  writer.u8(static_cast<uint8_t>(region.access));
  writer.u8(static_cast<uint8_t>(region.device.kind));
  writer.u32(static_cast<uint32_t>(region.device.index));
  writer.bytes(region.handle, kMostBytes);
  writer.bytes(letter.blob, kMostBytes);
  writer.string(letter.failure, kMostBytes);
  writer.patchU32(0, static_cast<uint32_t>(bytes.size()));
  must(writer.finish("a letter"), "encode");
  return bytes;
}

Letter decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  Letter letter;
  letter.verb = static_cast<Verb>(reader.u8());
  letter.key = reader.u64();
  RegionGrant& region = letter.region;
  for (uint64_t* word : {&region.allocation, &region.generation, &region.base, &region.bytes,
                         &region.fdOffset, &region.backingBytes, &region.identity})
    *word = reader.u64();
  region.kind = static_cast<MemoryKind>(reader.u8());
  region.access = static_cast<Access>(reader.u8());
  region.device.kind = static_cast<DeviceKind>(reader.u8());
  region.device.index = static_cast<int32_t>(reader.u32());
  const auto handle = reader.bytes(kMostBytes);
  region.handle.assign(handle.begin(), handle.end());
  const auto blob = reader.bytes(kMostBytes);
  letter.blob.assign(blob.begin(), blob.end());
  letter.failure = std::string(reader.string(kMostBytes));
  must(reader.finish("a letter"), "decode");
  return letter;
}

// Sockets of the library do not block.
void waitUntilReady(int socket, short events) {
  pollfd ready{socket, events, 0};
  (void)poll(&ready, 1, -1);
}

// False: the other process has ended.
bool sendLetter(int socket, const Letter& letter) {
  const std::vector<std::byte> bytes = encode(letter);
  std::vector<int> fds;
  for (const Fd& fd : letter.fds) fds.push_back(fd.get());
  for (size_t sent = 0; sent < bytes.size();) {
    waitUntilReady(socket, POLLOUT);
    const auto went = sendWithFds(socket, std::span(bytes).subspan(sent), fds);
    if (!went.isOk()) return false;
    sent += *went;
    fds.clear();
  }
  return true;
}

bool receiveAll(int socket, std::span<std::byte> space, std::vector<Fd>& fds) {
  for (size_t here = 0; here < space.size();) {
    waitUntilReady(socket, POLLIN);
    const auto came = recvWithFds(socket, space.subspan(here), fds);
    if (!came.isOk() || *came == 0) return false;
    here += *came;
  }
  return true;
}

std::optional<Letter> receiveLetter(int socket) {
  std::vector<Fd> fds;
  uint32_t bytes = 0;
  if (!receiveAll(socket, std::as_writable_bytes(std::span(&bytes, 1)), fds)) return {};
  std::vector<std::byte> rest(bytes - sizeof(bytes));
  if (!receiveAll(socket, rest, fds)) return {};
  Letter letter = decode(rest);
  letter.fds = std::move(fds);
  return letter;
}

// Handles of chunks: all of them descriptors, or all of them bytes.
void putHandles(std::vector<VmmHandle> handles, Letter& letter) {
  for (VmmHandle& handle : handles) {
    if (handle.fd) letter.fds.push_back(std::move(handle.fd));
    letter.blob.insert(letter.blob.end(), handle.fabric.begin(), handle.fabric.end());
  }
}

std::vector<VmmHandle> takeHandles(Letter& letter) {
  std::vector<VmmHandle> handles;
  for (Fd& fd : letter.fds) handles.push_back({std::move(fd), {}});
  letter.fds.clear();
  for (auto at = letter.blob.begin(); at != letter.blob.end(); at += kFabricHandleBytes)
    handles.push_back({Fd(), {at, at + kFabricHandleBytes}});
  return handles;
}

// --- Over there ---

class Server {
 public:
  Server(pid_t asker, std::byte* window)
      : asker_(must(ProcessHandle::open(asker), "pidfd")), window_(window) {
    facts_.unixSocket = true;
    facts_.credentials.pid = asker;
    facts_.pidFd = asker_.fd();
  }

  Letter answer(Letter asked) {
    Letter answer;
    switch (asked.verb) {
      case Verb::kOpen:
        memory_.clear();
        side_.reset();
        side_.emplace(static_cast<int>(asked.key), asked.region.kind, facts_);
        answer.blob = side_->offer().blob;
        break;
      case Verb::kComplete: side_->complete({std::move(asked.blob), {}}); break;
      case Verb::kAllocate: describe(side_->allocate(asked.key), answer); break;
      case Verb::kFree: memory_.erase(asked.key); break;
      case Verb::kGrant: grant(std::move(asked.region), answer); break;
      case Verb::kChunks: putHandles(side_->chunksOf(asked.region), answer); break;
      case Verb::kAttach: attach(asked, answer); break;
      case Verb::kDetach: side_->detach(asked.key); break;
      case Verb::kRead:
        side_->path().copy(window_, std::bit_cast<std::byte*>(asked.key), asked.region.bytes);
        break;
      case Verb::kWrite:
        side_->path().copy(std::bit_cast<std::byte*>(asked.key), window_, asked.region.bytes);
        break;
    }
    return answer;
  }

 private:
  void describe(LinkMemory memory, Letter& answer) {
    answer.key = reinterpret_cast<uint64_t>(memory.bytes.data());
    answer.region.kind = memory.kind;
    answer.region.fdOffset = memory.fdOffset;
    answer.region.device = memory.device;
    answer.region.backingBytes = memory.backingBytes;
    answer.region.identity = memory.identity;
    answer.region.handle = memory.handle;
    memory_.emplace(answer.key, std::move(memory));
  }

  void grant(RegionGrant region, Letter& answer) {
    const Fd& backing = memory_.at(region.base).backing;
    auto granted = side_->grant(std::move(region), backing);
    if (!granted.isOk()) {
      answer.failure = granted.status().toString();
      return;
    }
    answer.region = std::move(granted->region);
    if (granted->fd) answer.fds.push_back(std::move(granted->fd));
  }

  void attach(Letter& asked, Letter& answer) {
    Grant grant;
    const bool inChunks = isInChunks(asked.region.kind);
    if (!inChunks && !asked.fds.empty()) grant.fd = std::move(asked.fds.front());
    std::vector<VmmHandle> chunks;
    if (inChunks) chunks = takeHandles(asked);
    grant.region = std::move(asked.region);
    const auto attached = side_->attach(std::move(grant), std::move(chunks));
    if (!attached.isOk()) {
      answer.failure = attached.status().toString();
      return;
    }
    answer.key = attached->linkKey;
    answer.region = attached->grant;
    answer.region.base = reinterpret_cast<uint64_t>(attached->mapped);
  }

  const ProcessHandle asker_;
  std::byte* const window_;
  PeerFacts facts_;
  std::optional<NearSide> side_;
  std::map<uint64_t, LinkMemory> memory_;  // by place
};

[[noreturn]] void serve(int socket, pid_t asker, std::byte* window) {
  Server server(asker, window);
  while (auto asked = receiveLetter(socket))
    if (!sendLetter(socket, server.answer(std::move(*asked)))) break;
  std::fflush(nullptr);
  std::_Exit(0);
}

FarProcess* started = nullptr;

// Before any test, so before anything touches CUDA.
class StartsFarProcess final : public testing::Environment {
 public:
  void SetUp() override { FarProcess::start(); }
};
[[maybe_unused]] testing::Environment* const environment =
    testing::AddGlobalTestEnvironment(new StartsFarProcess);

}  // namespace

void FarProcess::start() {
  if (started != nullptr) return;
  int ends[2];
  void* const window =
      mmap(nullptr, kWindowBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (window == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    die("a far process", Status(Code::kSystem, std::strerror(errno)));
  const pid_t asker = getpid();
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ends[0]);
    serve(ends[1], asker, static_cast<std::byte*>(window));
  }
  close(ends[1]);
  started = new FarProcess(child, ends[0], static_cast<std::byte*>(window));
}

FarProcess& FarProcess::instance() {
  if (started == nullptr) die("a far process", Status(Code::kInternal, "it was not started"));
  return *started;
}

class FarSide::Shadow {
 public:
  Shadow(uint64_t place, size_t size)
      : there(place),
        bytes(size),
        here_(mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (here_ == MAP_FAILED) die("addresses", Status(Code::kSystem, std::strerror(errno)));
  }
  ~Shadow() { munmap(here_, bytes); }
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(here_); }

  const uint64_t there;
  const size_t bytes;

 private:
  void* const here_;
};

FarSide::FarSide(int gpu, MemoryKind kind) : path_(*this) {
  traits_.transport = "cuda_ipc";
  traits_.wordsBy = "mapped";
  Letter letter{Verb::kOpen, static_cast<uint64_t>(gpu)};
  letter.region.kind = kind;
  offer_ = ask(std::move(letter)).blob;
}

FarSide::~FarSide() = default;

Offer FarSide::offer() {
  return {offer_, {}};
}

void FarSide::complete(Offer peerOffer) {
  Letter letter{Verb::kComplete};
  letter.blob = std::move(peerOffer.blob);
  (void)ask(std::move(letter));
}

Letter FarSide::ask(Letter letter) {
  const std::lock_guard lock(mutex_);
  const int socket = FarProcess::instance().socket();
  std::optional<Letter> answer;
  if (sendLetter(socket, letter)) answer = receiveLetter(socket);
  if (!answer) die("the far process", Status(Code::kPeerLost, "it has ended"));
  return std::move(*answer);
}

LinkMemory FarSide::allocate(size_t bytes) {
  Letter made = ask({Verb::kAllocate, bytes});
  const auto shadow = shadowOf(made.key, bytes);
  LinkMemory memory;
  memory.bytes = {shadow->data(), bytes};
  memory.owner = {shadow.get(), [this, shadow](void*) { (void)ask({Verb::kFree, shadow->there}); }};
  memory.kind = made.region.kind;
  memory.fdOffset = made.region.fdOffset;
  memory.device = made.region.device;
  memory.backingBytes = made.region.backingBytes;
  memory.identity = made.region.identity;
  memory.handle = std::move(made.region.handle);
  return memory;
}

Result<Grant> FarSide::grant(RegionGrant region, const Fd& /*backing*/) {
  Letter letter{Verb::kGrant};
  letter.region = std::move(region);
  letter.region.base = there(std::bit_cast<const std::byte*>(letter.region.base));
  Letter answer = ask(std::move(letter));
  if (!answer.failure.empty()) return Status(Code::kInternal, answer.failure);
  Grant grant;
  grant.region = std::move(answer.region);
  if (!answer.fds.empty()) grant.fd = std::move(answer.fds.front());
  return grant;
}

std::vector<VmmHandle> FarSide::chunksOf(const RegionGrant& region) {
  if (!isInChunks(region.kind)) return {};
  Letter letter{Verb::kChunks};
  letter.region = region;
  Letter answer = ask(std::move(letter));
  return takeHandles(answer);
}

Result<RemoteMemory> FarSide::attach(Grant grant, std::vector<VmmHandle> chunks) {
  Letter letter{Verb::kAttach};
  letter.region = std::move(grant.region);
  if (grant.fd) letter.fds.push_back(std::move(grant.fd));
  putHandles(std::move(chunks), letter);
  Letter answer = ask(std::move(letter));
  if (!answer.failure.empty()) return Status(Code::kInternal, answer.failure);
  const auto shadow = shadowOf(answer.region.base, answer.region.bytes);
  attached_[answer.key] = shadow;
  RemoteMemory memory;
  memory.grant = std::move(answer.region);
  memory.mapped = shadow->data();
  memory.engine = kCudaEngine;
  memory.linkKey = answer.key;
  return memory;
}

void FarSide::detach(uint64_t key) {
  attached_.erase(key);
  (void)ask({Verb::kDetach, key});
}

std::shared_ptr<FarSide::Shadow> FarSide::shadowOf(uint64_t there, size_t bytes) {
  auto made = std::make_shared<Shadow>(there, bytes);
  const std::lock_guard lock(shadowMutex_);
  std::erase_if(shadows_, [](const auto& entry) { return entry.second.expired(); });
  shadows_[made->data()] = made;
  return made;
}

uint64_t FarSide::there(const std::byte* here) {
  const std::lock_guard lock(shadowMutex_);
  auto next = shadows_.upper_bound(here);
  if (next == shadows_.begin()) return 0;
  const auto shadow = std::prev(next)->second.lock();
  if (!shadow || static_cast<size_t>(here - shadow->data()) >= shadow->bytes) return 0;
  return shadow->there + static_cast<uint64_t>(here - shadow->data());
}

// The window is for one at a time, so the question is sent with the lock held.
void FarSide::Path::copy(std::byte* to, const std::byte* from, size_t bytes) {
  const uint64_t target = side_.there(to);
  const uint64_t source = target == 0 ? side_.there(from) : 0;
  PEERLANE_CHECK(target != 0 || source != 0);
  std::byte* const window = FarProcess::instance().window();
  static std::mutex windowMutex;
  for (size_t done = 0; done < bytes;) {
    const size_t now = std::min(bytes - done, kWindowBytes);
    const std::lock_guard lock(windowMutex);
    Letter letter{target != 0 ? Verb::kWrite : Verb::kRead, (target | source) + done};
    letter.region.bytes = now;
    if (target != 0) std::memcpy(window, from + done, now);
    (void)side_.ask(std::move(letter));
    if (target == 0) std::memcpy(to + done, window, now);
    done += now;
  }
}

}  // namespace peerlane::gputest
