// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/word_ops.h"

#include <algorithm>
#include <array>

#include "peerlane/os/cuda_driver.h"

namespace peerlane::stream {
namespace {

using cuda::api;
using cuda::check;

CUdeviceptr deviceAddress(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

unsigned waitFlags(Compare compare) {
  switch (compare) {
    case Compare::kGreaterEqual: return CU_STREAM_WAIT_VALUE_GEQ;
    case Compare::kEqual: return CU_STREAM_WAIT_VALUE_EQ;
    case Compare::kAnd: return CU_STREAM_WAIT_VALUE_AND;
    case Compare::kNor: return CU_STREAM_WAIT_VALUE_NOR;
  }
  return CU_STREAM_WAIT_VALUE_GEQ;
}

// The parameters are a union: the driver reads the member that the operation names.
void describe(const WordOp& op, CUstreamBatchMemOpParams& params) {
  params = {};
  const bool isLong = op.width == Width::k64;
  switch (op.kind) {
    case WordOp::Kind::kWait:
      params.waitValue.operation =
          isLong ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32;
      params.waitValue.address = deviceAddress(op.at);
      if (isLong)
        params.waitValue.value64 = op.value;
      else
        params.waitValue.value = static_cast<cuuint32_t>(op.value);
      params.waitValue.flags = waitFlags(op.compare);
      break;
    case WordOp::Kind::kStore:
      params.writeValue.operation =
          isLong ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
      params.writeValue.address = deviceAddress(op.at);
      if (isLong)
        params.writeValue.value64 = op.value;
      else
        params.writeValue.value = static_cast<cuuint32_t>(op.value);
      params.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
      break;
    case WordOp::Kind::kBarrier:
      params.memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
      params.memoryBarrier.flags = op.scope == Scope::kDevice ? CU_STREAM_MEMORY_BARRIER_TYPE_GPU
                                                              : CU_STREAM_MEMORY_BARRIER_TYPE_SYS;
      break;
    case WordOp::Kind::kFlush:
      params.flushRemoteWrites.operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
      break;
  }
}

}  // namespace

Status storeWord(void* stream, const void* word, uint64_t value) {
  return check(api().cuStreamWriteValue64(static_cast<CUstream>(stream), deviceAddress(word), value,
                                          CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue64");
}

Status awaitWord(void* stream, const void* word, uint64_t atLeast) {
  return check(api().cuStreamWaitValue64(static_cast<CUstream>(stream), deviceAddress(word),
                                         atLeast, CU_STREAM_WAIT_VALUE_GEQ),
               "cuStreamWaitValue64");
}

Status postWordOps(void* stream, std::span<const WordOp> ops) {
  std::array<CUstreamBatchMemOpParams, kMostWordOps> batch;  // 12 KiB, filled as far as needed
  while (!ops.empty()) {
    const size_t count = std::min(ops.size(), kMostWordOps);
    for (size_t i = 0; i < count; ++i) describe(ops[i], batch[i]);
    PEERLANE_RETURN_IF_ERROR(
        check(api().cuStreamBatchMemOp(static_cast<CUstream>(stream), static_cast<unsigned>(count),
                                       batch.data(), 0),
              "cuStreamBatchMemOp"));
    ops = ops.subspan(count);
  }
  return Status::ok();
}

}  // namespace peerlane::stream
