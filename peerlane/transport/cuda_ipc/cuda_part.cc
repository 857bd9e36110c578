// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/cuda_ipc/cuda_part.h"

#include "peerlane/core/wire.h"

namespace peerlane {

std::vector<std::byte> CudaPart::encode() const {
  PEERLANE_CHECK(handle.size() <= kMostHandleBytes);
  std::vector<std::byte> blob;
  ByteWriter writer(blob);
  writer.u64(address);
  writer.u64(offset);
  writer.u64(backingBytes);
  writer.u64(identity);
  writer.u8(isKept ? 1 : 0);
  writer.bytes(handle, kMostHandleBytes);
  return blob;
}

Result<CudaPart> CudaPart::decode(std::span<const std::byte> blob) {
  ByteReader reader(blob);
  CudaPart part;
  part.address = reader.u64();
  part.offset = reader.u64();
  part.backingBytes = reader.u64();
  part.identity = reader.u64();
  const uint8_t isKept = reader.u8();
  if (reader.ok() && isKept > 1)
    return Status(Code::kCorrupt, "cuda_ipc's part of a grant says kept " + std::to_string(isKept) +
                                      "; expected 0 or 1");
  part.isKept = isKept == 1;
  const auto handle = reader.bytes(kMostHandleBytes);
  part.handle.assign(handle.begin(), handle.end());
  PEERLANE_RETURN_IF_ERROR(reader.finish("cuda_ipc's part of a grant"));
  return part;
}

}  // namespace peerlane
