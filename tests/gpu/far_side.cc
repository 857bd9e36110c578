// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/far_side.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include "peerlane/transport/cuda_ipc/cuda_ipc_link.h"
#include "tests/gpu/far_letter.h"
#include "tests/gpu/far_process.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {

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
  traits_.abilities = CudaIpcLink::abilities(/*sameProcess=*/false);
  Letter letter{Verb::kOpen, static_cast<uint64_t>(gpu)};
  letter.region.kind = kind;
  offer_ = ask(letter).blob;
}

FarSide::~FarSide() = default;

Offer FarSide::offer() {
  return {offer_, {}};
}

void FarSide::complete(Offer peerOffer) {
  Letter letter{Verb::kComplete};
  letter.blob = std::move(peerOffer.blob);
  (void)ask(letter);
}

Letter FarSide::ask(const Letter& letter) {
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
  memory.fdOffset = made.fdOffset;
  memory.device = made.region.device;
  memory.backingBytes = made.backingBytes;
  memory.identity = made.identity;
  memory.handle = std::move(made.handle);
  return memory;
}

Letter FarSide::askAbout(Verb verb, const RegionRecord& region) {
  Letter letter{verb};
  letter.region.allocation = region.allocation;
  letter.region.generation = region.generation;
  letter.region.bytes = region.bytes;
  letter.region.access = region.access;
  letter.region.kind = region.memory.kind;
  letter.region.device = region.memory.device;
  letter.place = there(region.base);
  letter.fdOffset = region.memory.fdOffset;
  letter.backingBytes = region.memory.backingBytes;
  letter.identity = region.memory.identity;
  letter.handle = region.memory.handle;
  return ask(letter);
}

Result<LinkPart> FarSide::grant(const RegionRecord& region) {
  Letter answer = askAbout(Verb::kGrant, region);
  if (!answer.failure.empty()) return Status(Code::kInternal, answer.failure);
  LinkPart part;
  part.blob = std::move(answer.part);
  if (!answer.fds.empty()) part.fd = std::move(answer.fds.front());
  return part;
}

std::vector<VmmHandle> FarSide::chunksOf(const RegionRecord& region) {
  if (!isInChunks(region.memory.kind)) return {};
  Letter answer = askAbout(Verb::kChunks, region);
  return takeHandles(answer);
}

Result<RemoteMemory> FarSide::attach(Grant grant, std::vector<VmmHandle> chunks) {
  Letter letter{Verb::kAttach};
  letter.region = std::move(grant.region);
  letter.part = std::move(grant.own.blob);
  if (grant.own.fd) letter.fds.push_back(std::move(grant.own.fd));
  putHandles(std::move(chunks), letter);
  Letter answer = ask(letter);
  if (!answer.failure.empty()) return Status(Code::kInternal, answer.failure);
  const auto shadow = shadowOf(answer.place, answer.region.bytes);
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
    const size_t now = std::min(bytes - done, FarProcess::kWindowBytes);
    const std::lock_guard lock(windowMutex);
    Letter letter{target != 0 ? Verb::kWrite : Verb::kRead, (target | source) + done};
    letter.region.bytes = now;
    if (target != 0) std::memcpy(window, from + done, now);
    (void)side_.ask(letter);
    if (target == 0) std::memcpy(to + done, window, now);
    done += now;
  }
}

}  // namespace peerlane::gputest
