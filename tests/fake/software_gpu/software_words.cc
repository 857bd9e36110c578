// SPDX-License-Identifier: Apache-2.0
//
// Stream memory operations: a stream that waits for a word or stores one, flushes what NICs wrote,
// or orders its own writes. A batch is refused whole, before any of it is on the stream.
#include "tests/fake/software_gpu/software_words.h"

#include <atomic>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_error.h"
#include "tests/fake/software_gpu/software_nic.h"
#include "tests/fake/software_gpu/software_stream.h"

namespace peerlane::softgpu {
namespace {

struct WordOp {
  enum class Kind : uint8_t { kWait, kStore, kFlush, kBarrier };
  Kind kind;
  bool isLong = false;
  uintptr_t address = 0;
  uint64_t value = 0;
  unsigned flags = 0;

  bool hasWord() const { return kind == Kind::kWait || kind == Kind::kStore; }
  size_t bytes() const { return isLong ? 8 : 4; }
};
using Kind = WordOp::Kind;

bool isAsked(std::string_view what) {
  const char* const asked = std::getenv("SOFTWARE_GPU_MEMOPS");
  return asked != nullptr && what == asked;
}

template <class Word>
bool isSatisfied(Word found, Word wanted, unsigned flags) {
  using Signed = std::make_signed_t<Word>;
  switch (flags & 3u) {
    case CU_STREAM_WAIT_VALUE_GEQ: return static_cast<Signed>(found - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return found == wanted;
    case CU_STREAM_WAIT_VALUE_AND: return (found & wanted) != 0;
    default: return static_cast<Word>(~(found | wanted)) != 0;
  }
}

template <class Word>
void perform(const WordOp& op) {
  const std::atomic_ref<Word> word(*reinterpret_cast<Word*>(op.address));
  const auto value = static_cast<Word>(op.value);
  // A write comes after a system-wide fence.
  if (op.kind == Kind::kStore) return word.store(value, std::memory_order_release);
  PollPause pause;
  while (!isSatisfied(word.load(std::memory_order_acquire), value, op.flags)) pause.wait();
  if ((op.flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0) flushNicWritesNow();
}

void performOn(int device, const WordOp& op) {
  if (op.kind == Kind::kFlush) return flushNicWritesNow();
  if (op.kind == Kind::kBarrier) return std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!canReach(device, reinterpret_cast<const void*>(op.address), op.bytes()))
    return failDevice(device, "a word of a stream memory operation is gone");
  if (op.isLong)
    perform<uint64_t>(op);
  else
    perform<uint32_t>(op);
}

CUresult checkWord(int device, const WordOp& op) {
  const AllocationPtr found = find(reinterpret_cast<const void*>(op.address));
  if (op.address % op.bytes() != 0 || (found != nullptr && found->kind == MemoryKind::kManaged) ||
      !canReach(device, reinterpret_cast<const void*>(op.address), op.bytes()))
    return CUDA_ERROR_INVALID_VALUE;
  if (op.isLong && !hasLongWordOps()) return CUDA_ERROR_NOT_SUPPORTED;
  // A write without its fence is one of the API before 11.7.
  if (op.kind == Kind::kStore)
    return op.flags == CU_STREAM_WRITE_VALUE_DEFAULT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  if ((op.flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((op.flags & 3u) == CU_STREAM_WAIT_VALUE_NOR && !hasNorWaits())
    return CUDA_ERROR_NOT_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult checkOp(int device, const WordOp& op) {
  if (op.hasWord())
    if (const CUresult refused = checkWord(device, op)) return refused;
  const bool flushes = op.kind == Kind::kFlush ||
                       (op.kind == Kind::kWait && (op.flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0);
  if (flushes && !hasWordFlush(device)) return CUDA_ERROR_NOT_SUPPORTED;
  const bool isFlagged =
      (op.kind == Kind::kFlush && op.flags != 0) ||
      (op.kind == Kind::kBarrier && op.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU);
  return isFlagged ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult enqueue(CUstream handle, std::vector<WordOp> ops) {
  if (deviceCount() == 0) return CUDA_ERROR_NO_DEVICE;
  if (handle == nullptr && currentContext() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const int device = stream->device();
  for (const WordOp& op : ops)
    if (const CUresult refused = checkOp(device, op)) return refused;
  Work work = [ops = std::move(ops), device] {
    for (const WordOp& op : ops) performOn(device, op);
  };
  return toDriver(submit(stream, NodeKind::kWords, std::move(work), nullptr, {},
                         /*holdsQueue=*/true));
}

// False: an operation that is not known.
bool readOp(const CUstreamBatchMemOpParams& params, WordOp& op) {
  const auto& wait = params.waitValue;
  const auto& write = params.writeValue;
  switch (params.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      op = {Kind::kWait, true, wait.address, wait.value64, wait.flags};
      return true;
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      op = {Kind::kWait, false, wait.address, wait.value, wait.flags};
      return true;
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      op = {Kind::kStore, true, write.address, write.value64, write.flags};
      return true;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      op = {Kind::kStore, false, write.address, write.value, write.flags};
      return true;
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
      op = {.kind = Kind::kFlush, .flags = params.flushRemoteWrites.flags};
      return true;
    case CU_STREAM_MEM_OP_BARRIER:
      op = {.kind = Kind::kBarrier, .flags = params.memoryBarrier.flags};
      return true;
    default: return false;
  }
}

}  // namespace

bool hasLongWordOps() {
  return !isAsked("short");
}

bool hasNorWaits() {
  return !isAsked("no-nor");
}

bool hasWordFlush(int device) {
  return (nicFlushOptions(device) & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS) != 0;
}

}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;

extern "C" {

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                             unsigned flags) {
  return enqueue(stream, {{Kind::kWait, true, address, value, flags}});
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned flags) {
  return enqueue(stream, {{Kind::kStore, true, address, value, flags}});
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* params,
                            unsigned flags) {
  if (count == 0 || count >= 256 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<WordOp> ops(count);
  for (unsigned i = 0; i < count; ++i)
    if (!readOp(params[i], ops[i])) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(stream, std::move(ops));
}

}  // extern "C"
