// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/calls/communicator_options.h"

#include <chrono>
#include <string>

#include "peerlane/os/cuda.h"
#include "peerlane/p2p/process/process_contexts.h"

namespace peerlane::p2p {
namespace {

// As in p2p-transfer.
constexpr std::chrono::milliseconds kConnectPatience{30000};

Status checkKind(P2pKind kind) {
  if (kind >= P2P_RECEIVER && kind <= P2P_BIDIRECTIONAL) return Status::ok();
  return Status(Code::kInvalidArgument, "kind is " + std::to_string(static_cast<int>(kind)) +
                                            "; accepted: P2P_RECEIVER (0), P2P_SENDER (1), "
                                            "P2P_BIDIRECTIONAL (2)");
}

Status checkLink(P2pLink link) {
  if (link >= P2P_LINK_HCCS && link <= P2P_LINK_AUTO) return Status::ok();
  return Status(Code::kInvalidArgument, "link is " + std::to_string(static_cast<int>(link)) +
                                            "; accepted: P2P_LINK_HCCS (0), P2P_LINK_ROCE (1), "
                                            "P2P_LINK_AUTO (2)");
}

Status checkSize(const P2PCommInitOptions& options) {
  if (options.structBytes == sizeof(P2PCommInitOptions)) return Status::ok();
  return Status(Code::kInvalidArgument,
                "structBytes of the options is " + std::to_string(options.structBytes) +
                    ", this library knows " + std::to_string(sizeof(P2PCommInitOptions)) +
                    "; begin with P2P_COMM_INIT_OPTIONS_INIT");
}

Status checkDevice(const P2PCommInitOptions& options) {
  if (options.device == P2P_DEVICE_CURRENT || options.device == P2P_DEVICE_NONE)
    return Status::ok();
  const std::string given = "device of the options is " + std::to_string(options.device);
  const std::string constants = "P2P_DEVICE_CURRENT (-1), P2P_DEVICE_NONE (-2)";
  if (options.device < 0)
    return Status(Code::kInvalidArgument, given + "; accepted: the number of a GPU, " + constants);
  const auto gpus = cuda::gpus();
  if (!gpus.isOk()) return gpus.status().withContext(given + "; accepted here: " + constants);
  const auto count = static_cast<int32_t>(gpus->size());
  if (options.device < count) return Status::ok();
  return Status(Code::kInvalidArgument, given + "; accepted: " + (count == 1 ? "" : "0 to ") +
                                            std::to_string(count - 1) +
                                            " (GPUs that this process sees), " + constants);
}

// Nothing: as PEERLANE_STAGING_BYTES says.
Result<std::optional<uint64_t>> stagingOf(const P2PCommInitOptions& options) {
  if (options.blockBytes == 0 && options.pingPongBuffers == 0) return std::optional<uint64_t>();
  PEERLANE_ASSIGN(const Config config, Config::fromEnvironment());
  constexpr uint64_t kLeastBlock = 64 << 10;
  constexpr uint32_t kLeastBuffers = 2, kMostBuffers = 64;
  const uint64_t most = stagingHalf(config);
  if (options.pingPongBuffers < kLeastBuffers || options.pingPongBuffers > kMostBuffers ||
      options.blockBytes < kLeastBlock || options.blockBytes > most / kLeastBuffers ||
      options.blockBytes * options.pingPongBuffers > most)
    return Status(
        Code::kInvalidArgument,
        "staging of " + std::to_string(options.pingPongBuffers) + " buffers (" +
            "pingPongBuffers) of " + std::to_string(options.blockBytes) +
            " bytes (blockBytes); accepted: 2 to 64 of 64 KiB or more, together at most " +
            std::to_string(most) +
            " (half of PEERLANE_STAGING_BYTES; the other half is for put and get); or 0 and 0");
  return std::optional(options.blockBytes * options.pingPongBuffers);
}

OptionalGpu gpuFor(const P2PCommInitOptions& options) {
  if (options.device >= 0) return options.device;
  return options.device == P2P_DEVICE_NONE ? std::nullopt : cuda::currentGpu();
}

}  // namespace

Result<PairOptions> checkedOptions(P2pKind kind, P2pLink link, const P2PCommInitOptions& options) {
  PEERLANE_RETURN_IF_ERROR(checkKind(kind));
  PEERLANE_RETURN_IF_ERROR(checkLink(link));
  PEERLANE_RETURN_IF_ERROR(checkSize(options));
  PEERLANE_RETURN_IF_ERROR(checkDevice(options));
  PairOptions checked;
  checked.kind = kind;
  checked.link = link;
  checked.wantsMessages = options.enableTwoSidedBuffer;
  checked.timeout =
      options.timeoutMs == 0 ? kConnectPatience : std::chrono::milliseconds(options.timeoutMs);
  checked.gpu = gpuFor(options);
  PEERLANE_ASSIGN(checked.stagingBytes, stagingOf(options));
  return checked;
}

}  // namespace peerlane::p2p
