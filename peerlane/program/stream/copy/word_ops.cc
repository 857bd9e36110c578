// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/word_ops.h"

#include "peerlane/os/cuda_driver.h"

namespace peerlane::stream {
namespace {

using cuda::api;
using cuda::check;

CUdeviceptr deviceAddress(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
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

}  // namespace peerlane::stream
