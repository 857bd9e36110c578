// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/doctor_gpu_checks.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "peerlane/core/text.h"
#include "peerlane/memory/gpu_list.h"
#include "tools/report/failure_report.h"

namespace peerlane {
namespace {

using State = Finding::State;

constexpr const char* kDriverFile = "/proc/driver/nvidia/version";
constexpr const char* kFabricChannel = "/dev/nvidia-caps-imex-channels/channel0";

std::string versionOf(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// The first release of the driver for each generation of CUDA, whose minor versions all run on it.
const char* releaseFor(int major) {
  return major <= 11 ? "450" : major == 12 ? "525" : major == 13 ? "580" : "a newer one";
}

std::string contentOfDriverFile() {
  std::ifstream file(kDriverFile);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// One line for however many GPUs of one model.
std::string modelsOf(const std::vector<Gpu>& gpus) {
  std::string models;
  for (const Gpu& gpu : gpus)
    if (models.find(gpu.name) == std::string::npos)
      models += (models.empty() ? "" : ", ") + gpu.name;
  return models;
}

Finding visibleFinding(const std::vector<Gpu>& gpus) {
  const char* chosen = std::getenv("CUDA_VISIBLE_DEVICES");
  return {"gpu", State::kWorks,
          fmt::format(
              "{} visible: {}{}", gpus.size(), modelsOf(gpus),
              chosen != nullptr ? " (CUDA_VISIBLE_DEVICES=" + peerlane::quoted(chosen) + ")" : ""),
          ""};
}

Finding descriptorFinding(const std::vector<Gpu>& gpus) {
  std::string without;
  for (const Gpu& gpu : gpus)
    if (!gpu.exportsDescriptors)
      without += (without.empty() ? "" : ", ") + fmt::format("cuda:{}", gpu.index);
  if (without.empty())
    return {"gpu descriptors", State::kWorks,
            "memory of Context::allocate travels to other processes as a descriptor", ""};
  return {"gpu descriptors", State::kLimited, without + ": no export of descriptors",
          "memory by cudaMalloc can still be registered; virtual machines and MIG often lack it"};
}

Finding pairFinding(const std::vector<Gpu>& gpus) {
  std::string apart;
  size_t fast = 0;
  size_t direct = 0;
  for (const Gpu& from : gpus)
    for (const Gpu& to : gpus) {
      if (from.index == to.index) continue;
      const auto path = findGpuPath(from.index, to.index);
      if (!path.isOk() || !path->direct) {
        apart += fmt::format("{}{}-{}", apart.empty() ? "" : ", ", from.index, to.index);
        continue;
      }
      ++direct;
      fast += path->nativeAtomics ? 1 : 0;
    }
  if (gpus.size() < 2)
    return {"gpu peers", State::kAbsent, "one GPU: nothing to reach but itself", ""};
  if (apart.empty())
    return {"gpu peers", State::kWorks,
            fmt::format("all {} directed pairs reach each other directly, {} over NVLink", direct,
                        fast),
            ""};
  return {"gpu peers", State::kLimited, "no direct access (from-to): " + apart,
          "put nothing between them; PCIe access needs the IOMMU and ACS off and one root complex "
          "(peerlane topo, nvidia-smi topo -p2p r)"};
}

std::string channelText() {
  if (::access(kFabricChannel, R_OK | W_OK) == 0) return fmt::format("{} is there", kFabricChannel);
  const std::string reason = std::strerror(errno);
  const bool folder = ::access("/dev/nvidia-caps", F_OK) == 0;
  return fmt::format("{}: {}{}", kFabricChannel, reason,
                     folder ? "" : "; no /dev/nvidia-caps either");
}

Finding unusableFinding(const Status& why, const std::string& onBus) {
  const std::string reason(why.message());
  if (onBus.empty()) return {"gpu", State::kAbsent, "host memory only: " + reason, ""};
  return {"gpu", State::kLimited, onBus + " on PCI, not usable: " + reason,
          "needed: a build with CUDA, the driver's libcuda.so.1, and the devices /dev/nvidia* in "
          "this container"};
}

}  // namespace

std::string driverRelease(const std::string& text) {
  // "NVRM version: NVIDIA UNIX ... Kernel Module  580.95.05  Release Build ..."
  std::istringstream line(text.substr(0, text.find('\n')));
  for (std::string word; line >> word;)
    if (word.find('.') != std::string::npos &&
        word.find_first_not_of("0123456789.") == std::string::npos)
      return word;
  return {};
}

Finding driverFinding(const CudaVersions& versions, const std::string& release) {
  const std::string loaded = release.empty() ? "" : " (release " + release + ")";
  const std::string needed = fmt::format(
      "install driver release {} or newer, or build with a {} "
      "toolkit",
      releaseFor(versions.runtime / 1000),
      versions.driver == 0 ? "matching" : versionOf(versions.driver));
  if (versions.driver == 0) {
    if (release.empty()) return {"gpu driver", State::kAbsent, "none is loaded", ""};
    return {"gpu driver", State::kBroken, "loaded" + loaded + ", but libcuda.so.1 does not answer",
            "containers need --gpus all (the NVIDIA container toolkit brings libcuda.so.1)"};
  }
  const std::string text =
      fmt::format("CUDA {}{}, this build's runtime is {}", versionOf(versions.driver), loaded,
                  versionOf(versions.runtime));
  if (versions.driver / 1000 < versions.runtime / 1000)
    return {"gpu driver", State::kBroken, text + ": too old", needed};
  return {"gpu driver", State::kWorks, text, ""};
}

Finding fabricFinding(const std::vector<Gpu>& gpus, const std::function<Status(int)>& tryHandles) {
  std::string works;
  std::string fails;
  for (const Gpu& gpu : gpus) {
    if (!gpu.fabricHandles) continue;
    if (const Status tried = tryHandles(gpu.index); tried.isOk())
      works += fmt::format("{}cuda:{}", works.empty() ? "" : ", ", gpu.index);
    else
      fails += fmt::format("{}{}", fails.empty() ? "" : "; ", tried.message());
  }
  if (works.empty() && fails.empty())
    return {"gpu fabric", State::kAbsent,
            "the driver offers no fabric handles (one host needs none)", ""};
  if (works.empty())
    return {"gpu fabric", State::kAbsent,
            fmt::format("{}; {} (one host needs none)", fails, channelText()), ""};
  return {"gpu fabric", State::kWorks,
          fmt::format("2 MiB exported and imported by handle on {}; unverified between processes: "
                      "no machine with such handles has run this version yet{}{}",
                      works, fails.empty() ? "" : "; ", fails),
          ""};
}

Finding queueFinding(const char* value) {
  if (value == nullptr || std::string(value) != "1")
    return {"gpu queues", State::kWorks,
            value == nullptr ? "CUDA_DEVICE_MAX_CONNECTIONS is not set"
                             : "CUDA_DEVICE_MAX_CONNECTIONS=" + peerlane::quoted(value),
            ""};
  return {"gpu queues", State::kLimited,
          "CUDA_DEVICE_MAX_CONNECTIONS=1: a stream that waits for a peer holds up all streams of "
          "its GPU",
          "unset it; where a framework needs it, post the work that a peer waits for before "
          "waiting for "
          "that peer, and import regions beforehand (RemoteRegion::prepare)"};
}

Finding loadingFinding(const char* value) {
  if (value != nullptr && std::string(value) == "EAGER")
    return {"gpu modules", State::kWorks, "CUDA_MODULE_LOADING=EAGER", ""};
  return {"gpu modules", State::kLimited,
          fmt::format("{}: a kernel of yours that is first used while a stream waits for a peer is "
                      "loaded then, which waits for that stream: a deadlock",
                      value == nullptr ? "lazy loading (the default)"
                                       : "CUDA_MODULE_LOADING=" + peerlane::quoted(value)),
          "CUDA_MODULE_LOADING=EAGER, or load each kernel before (peerlane::preload(kernel) of "
          "peerlane/program/device/preload.h, or cudaFuncGetAttributes); "
          "Peerlane's own are loaded by Context::create"};
}

std::vector<Finding> checkGpus(const std::string& onBus) {
  const std::string release = driverRelease(contentOfDriverFile());
  const CudaVersions versions = cudaVersions();
  std::vector<Finding> findings;
  const auto gpus = listGpus();
  if (!gpus.isOk()) {
    findings.push_back(unusableFinding(gpus.status(), onBus));
    // Without CUDA in this build no driver would help.
    if (versions.runtime != 0 && (versions.driver != 0 || !release.empty()))
      findings.push_back(driverFinding(versions, release));
    return findings;
  }
  findings.push_back(visibleFinding(*gpus));
  findings.push_back(driverFinding(versions, release));
  findings.push_back(descriptorFinding(*gpus));
  findings.push_back(pairFinding(*gpus));
  findings.push_back(fabricFinding(*gpus, tryFabricHandles));
  findings.push_back(queueFinding(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS")));
  findings.push_back(loadingFinding(std::getenv("CUDA_MODULE_LOADING")));
  return findings;
}

}  // namespace peerlane
