// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/cuda_ipc/cuda_ipc_offer.h"

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

constexpr uint8_t kVersion = 2;

}  // namespace

std::vector<std::byte> CudaIpcOffer::encode() const {
  PEERLANE_CHECK(!gpus.empty() && gpus.size() <= kMostGpus);
  std::vector<std::byte> blob;
  ByteWriter writer(blob);
  writer.u8(kVersion);
  writer.u8(static_cast<uint8_t>(gpus.size()));
  for (const Uuid& uuid : gpus) writer.raw(std::as_bytes(std::span(uuid)));
  writer.u64(pidNamespace);
  writer.u8(probe ? 1 : 0);
  if (probe) writer.raw(*probe);
  return blob;
}

Result<CudaIpcOffer> CudaIpcOffer::decode(std::span<const std::byte> blob) {
  ByteReader reader(blob);
  const uint8_t version = reader.u8();
  if (reader.ok() && version != kVersion)
    return Status(Code::kNotSupported, "cuda_ipc offer of version " + std::to_string(version) +
                                           "; this library speaks " + std::to_string(kVersion));
  const size_t count = reader.u8();
  if (reader.ok() && (count == 0 || count > kMostGpus))
    return Status(Code::kNotSupported, "cuda_ipc offer of " + std::to_string(count) +
                                           " GPUs; expected 1 to " + std::to_string(kMostGpus));
  CudaIpcOffer offer;
  for (size_t i = 0; i < count && reader.ok(); ++i)
    reader.rawInto(std::as_writable_bytes(std::span(offer.gpus.emplace_back())));
  offer.pidNamespace = reader.u64();
  const uint8_t probes = reader.u8();
  if (reader.ok() && probes > 1)
    return Status(Code::kCorrupt,
                  "cuda_ipc offer with " + std::to_string(probes) + " probes; expected 0 or 1");
  if (probes == 1) reader.rawInto(offer.probe.emplace());
  PEERLANE_RETURN_IF_ERROR(reader.finish("cuda_ipc offer"));
  return offer;
}

}  // namespace peerlane
