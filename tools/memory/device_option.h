// SPDX-License-Identifier: Apache-2.0
//
// The --device option: whose memory a command uses at this side and at the other. Reads text and
// asks what GPUs there are; touches none. Any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "peerlane/memory/device.h"
#include "peerlane/memory/gpu_list.h"

namespace peerlane {

inline constexpr const char* kDeviceOption =
    "host, cuda (the first GPU here, the second one there, if there are two), cuda:I (the same one "
    "on both sides), cuda:I,cuda:J, or auto (GPUs when there are two that reach each other, else "
    "host)";
inline constexpr const char* kOneDeviceOption = "host, cuda (the first GPU), cuda:I, or auto";

struct DeviceChoice {
  Device local{};
  Device remote{};
  std::string why;         // "asked for", or the finding of auto; for people
  bool automatic = false;  // nobody insists on it

  bool isGpu() const { return local.kind == DeviceKind::kCuda; }
};

// How the machine is asked; tests answer in its place.
struct GpuFinder {
  std::function<Result<std::vector<Gpu>>()> list = listGpus;
  // Whether each of the two reaches the other's memory directly.
  std::function<bool(int, int)> direct = gpusReachEachOther;

  static bool gpusReachEachOther(int one, int other);
};

// kInvalidArgument (what is accepted, which GPUs there are), kNotSupported (why there is none). The
// GPUs are looked for only where the text needs them.
Result<DeviceChoice> readDevices(const std::string& text, const GpuFinder& finder = {});
// For one side: no pair is accepted, and auto is the first GPU of two or more.
Result<DeviceChoice> readOneDevice(const std::string& text, const GpuFinder& finder = {});
// "cuda", "cuda:3". kInvalidArgument, kNotSupported as above.
Result<Device> readGpu(const std::string& text, const GpuFinder& finder = {});
// The devices with which a context must be made to use `device`.
std::vector<Device> gpusOf(const Device& device);

}  // namespace peerlane
