// SPDX-License-Identifier: Apache-2.0
#include "tools/memory/device_option.h"

#include <fmt/core.h>

#include "peerlane/core/text.h"
#include "tools/memory/device_bytes.h"

namespace peerlane {
namespace {

constexpr const char* kGpu = "cuda";
constexpr const char* kNumbered = "cuda:";

Device gpu(int index) {
  return {.kind = DeviceKind::kCuda, .index = index};
}

Status notUnderstood(const std::string& text, const char* accepted) {
  return Status(Code::kInvalidArgument,
                peerlane::quoted(text) + " names no device; accepted: " + accepted);
}

std::string seenGpus(const std::vector<Gpu>& gpus) {
  if (gpus.size() == 1) return "this process sees cuda:0 only";
  return fmt::format("this process sees cuda:0 to cuda:{}", gpus.size() - 1);
}

// The number after "cuda:"; -1 when it is none.
int numberOf(const std::string& text) {
  const std::string digits = text.substr(std::string(kNumbered).size());
  if (digits.empty() || digits.size() > 4 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return -1;
  return std::stoi(digits);
}

Result<Device> readNumbered(const std::string& text, const GpuFinder& finder) {
  const int index = numberOf(text);
  if (index < 0) return notUnderstood(text, "cuda:0, cuda:1, ...");
  const auto gpus = finder.list();
  if (!gpus.isOk()) return gpus.status().withContext(text);
  if (static_cast<size_t>(index) >= gpus->size())
    return Status(Code::kInvalidArgument, text + ": " + seenGpus(*gpus));
  return gpu(index);
}

DeviceChoice onHost(std::string why) {
  return {.why = "auto: " + std::move(why), .automatic = true};
}

Result<DeviceChoice> chooseForPair(const GpuFinder& finder) {
  const auto gpus = finder.list();
  if (!gpus.isOk()) return onHost(std::string(gpus.status().message()));
  if (gpus->size() < 2) return onHost("one GPU only; --device cuda uses it on both sides");
  if (!finder.direct(0, 1)) return onHost("cuda:0 and cuda:1 do not reach each other directly");
  return DeviceChoice{.local = gpu(0),
                      .remote = gpu(1),
                      .why = fmt::format("auto: {} GPUs are there", gpus->size()),
                      .automatic = true};
}

}  // namespace

bool GpuFinder::gpusReachEachOther(int one, int other) {
  const auto there = findGpuPath(one, other);
  const auto back = findGpuPath(other, one);
  return there.isOk() && back.isOk() && there->direct && back->direct;
}

Result<Device> readGpu(const std::string& text, const GpuFinder& finder) {
  if (text == kGpu) return readNumbered("cuda:0", finder);
  if (!text.starts_with(kNumbered)) return notUnderstood(text, "cuda, cuda:0, cuda:1, ...");
  return readNumbered(text, finder);
}

Result<DeviceChoice> readDevices(const std::string& text, const GpuFinder& finder) {
  if (text == "auto") return chooseForPair(finder);
  if (text == "host") return DeviceChoice{.why = "asked for"};
  const size_t comma = text.find(',');
  const std::string first = text.substr(0, comma);
  if (first != kGpu && !first.starts_with(kNumbered)) return notUnderstood(text, kDeviceOption);
  DeviceChoice choice{.why = "asked for"};
  PEERLANE_ASSIGN(choice.local, readGpu(first, finder));
  choice.remote = choice.local;
  if (comma != std::string::npos) {
    const std::string second = text.substr(comma + 1);
    PEERLANE_ASSIGN(choice.remote,
                    second == kGpu ? readGpu("cuda:1", finder) : readGpu(second, finder));
  } else if (first == kGpu) {
    PEERLANE_ASSIGN(const auto gpus, finder.list());
    if (gpus.size() > 1) choice.remote = gpu(1);
  }
  return choice;
}

Result<DeviceChoice> readOneDevice(const std::string& text, const GpuFinder& finder) {
  if (text.find(',') != std::string::npos) return notUnderstood(text, kOneDeviceOption);
  if (text == "auto") return chooseForPair(finder);
  if (text == "host") return DeviceChoice{.why = "asked for"};
  if (text != kGpu && !text.starts_with(kNumbered)) return notUnderstood(text, kOneDeviceOption);
  DeviceChoice choice{.why = "asked for"};
  PEERLANE_ASSIGN(choice.local, readGpu(text, finder));
  choice.remote = choice.local;
  return choice;
}

std::vector<Device> gpusOf(const Device& device) {
  if (device.kind == DeviceKind::kHost) return {};
  return {device};
}

}  // namespace peerlane
