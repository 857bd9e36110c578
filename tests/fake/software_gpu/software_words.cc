// SPDX-License-Identifier: Apache-2.0
//
// Stream memory operations: a stream that waits for a word or stores one.
#include <atomic>
#include <string>
#include <vector>

#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_error.h"
#include "tests/fake/software_gpu/software_stream.h"

namespace peerlane::softgpu {
namespace {

struct WordOp {
  bool isWait;
  bool isLong;
  uintptr_t address;
  uint64_t value;
  unsigned flags;
};

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
  if (!op.isWait) return word.store(value, std::memory_order_release);
  PollPause pause;
  while (!isSatisfied(word.load(std::memory_order_acquire), value, op.flags)) pause.wait();
}

CUresult enqueue(CUstream handle, std::vector<WordOp> ops) {
  if (deviceCount() == 0) return CUDA_ERROR_NO_DEVICE;
  if (handle == nullptr && currentContext() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const int device = stream->device();
  for (const WordOp& op : ops) {
    const size_t bytes = op.isLong ? 8 : 4;
    if (op.address % bytes != 0 ||
        !canReach(device, reinterpret_cast<const void*>(op.address), bytes))
      return CUDA_ERROR_INVALID_VALUE;
  }
  Work work = [ops = std::move(ops), device] {
    for (const WordOp& op : ops) {
      if (!canReach(device, reinterpret_cast<const void*>(op.address), op.isLong ? 8 : 4))
        return failDevice(device, "a word of a stream memory operation is gone");
      if (op.isLong)
        perform<uint64_t>(op);
      else
        perform<uint32_t>(op);
    }
  };
  return toDriver(submit(stream, std::move(work), nullptr, {}, /*holdsQueue=*/true));
}

}  // namespace
}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;

extern "C" {

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                             unsigned flags) {
  return enqueue(stream, {{true, true, address, value, flags}});
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                              unsigned flags) {
  return enqueue(stream, {{false, true, address, value, flags}});
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, CUstreamBatchMemOpParams* params,
                            unsigned /*flags*/) {
  if (count == 0 || count >= 256) return CUDA_ERROR_INVALID_VALUE;
  std::vector<WordOp> ops;
  for (unsigned i = 0; i < count; ++i) {
    const auto& wait = params[i].waitValue;
    const auto& write = params[i].writeValue;
    switch (params[i].operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        ops.push_back({true, true, wait.address, wait.value64, wait.flags});
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        ops.push_back({true, false, wait.address, wait.value, wait.flags});
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        ops.push_back({false, true, write.address, write.value64, write.flags});
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        ops.push_back({false, false, write.address, write.value, write.flags});
        break;
      default: return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return enqueue(stream, std::move(ops));
}

}  // extern "C"
