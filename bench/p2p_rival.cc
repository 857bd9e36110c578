// SPDX-License-Identifier: Apache-2.0
#include "bench/p2p_rival.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace peerlane::blocks {
namespace {

// The few calls of nccl.h that are used, as they have been since version 2.7.
constexpr int kBytesType = 1;  // ncclUint8
using GetUniqueId = int (*)(RivalId*);
using CommInitRank = int (*)(void**, int, RivalId, int);
using SendTo = int (*)(const void*, size_t, int, int, void*, void*);
using ReceiveFrom = int (*)(void*, size_t, int, int, void*, void*);
using GroupCall = int (*)();

template <typename Call>
Call find(void* library, const char* name) {
  auto* const found = reinterpret_cast<Call>(::dlsym(library, name));
  if (found == nullptr) {
    (void)std::fprintf(stderr, "p2p_blocks: libnccl.so.2 has no %s\n", name);
    ::_exit(1);
  }
  return found;
}

void must(int result, const char* what) {
  if (result == 0) return;
  (void)std::fprintf(stderr, "p2p_blocks: %s: NCCL's error %d\n", what, result);
  ::_exit(1);
}

}  // namespace

Rival::Rival() {
  // NVLink SHARP is not for point to point, and setting it up costs time.
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  const char* const named = std::getenv("P2P_BLOCKS_NCCL");
  library_ = ::dlopen(named == nullptr ? "libnccl.so.2" : named, RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) whyNot_ = ::dlerror();
}

RivalId Rival::makeId() {
  RivalId id{};
  if (library_ != nullptr) must(find<GetUniqueId>(library_, "ncclGetUniqueId")(&id), "an id");
  return id;
}

bool Rival::join(const RivalId& id, int rank) {
  if (library_ == nullptr) return false;
  other_ = 1 - rank;
  must(find<CommInitRank>(library_, "ncclCommInitRank")(&comm_, 2, id, rank), "a communicator");
  return true;
}

void Rival::transfer(bool isSend, const std::vector<void*>& blocks, size_t bytes, void* stream) {
  static const auto begin = find<GroupCall>(library_, "ncclGroupStart");
  static const auto end = find<GroupCall>(library_, "ncclGroupEnd");
  static const auto send = find<SendTo>(library_, "ncclSend");
  static const auto receive = find<ReceiveFrom>(library_, "ncclRecv");
  must(begin(), "a group");
  for (void* block : blocks)
    must(isSend ? send(block, bytes, kBytesType, other_, comm_, stream)
                : receive(block, bytes, kBytesType, other_, comm_, stream),
         "a block");
  must(end(), "a group");
}

}  // namespace peerlane::blocks
