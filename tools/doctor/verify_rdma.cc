// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/verify_rdma.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "peerlane/os/verbs/nic_writes.h"
#include "peerlane/os/verbs/rdma_trial.h"
#include "tools/memory/device_bytes.h"
#include "tools/memory/device_option.h"
#include "tools/report/failure_report.h"
#include "tools/trial/trial.h"

namespace peerlane {
namespace {

using State = Finding::State;
using Bytes = std::span<std::byte>;
using Content = std::span<const std::byte>;

constexpr uint64_t kBytes = 4 << 20;

struct Unmap {
  void operator()(std::byte* memory) const { (void)::munmap(memory, kBytes); }
};
using HostMemory = std::unique_ptr<std::byte, Unmap>;

Result<HostMemory> takeHostMemory() {
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status::system(errno, "mmap of 4 MiB");
  return HostMemory(static_cast<std::byte*>(memory));
}

// The memory that is asked about, on the host or on a GPU.
class Subject {
 public:
  static Result<Subject> create(const std::string& place) {
    Subject made;
    if (place == "host") {
      PEERLANE_ASSIGN(made.host_, takeHostMemory());
      return made;
    }
    PEERLANE_ASSIGN(made.gpu_, readGpu(place));
    PEERLANE_ASSIGN(made.onGpu_, allocateByRuntime(made.gpu_, kBytes));
    PEERLANE_ASSIGN(made.writes_, cuda::nicWritesOf(made.gpu_.index));
    return made;
  }

  bool isGpu() const { return onGpu_ != nullptr; }
  const Device& gpu() const { return gpu_; }
  cuda::NicWrites writes() const { return writes_; }
  std::byte* at() const { return isGpu() ? onGpu_.get() : host_.get(); }

  Status fill(Content content) const {
    if (isGpu()) return copyToDevice(gpu_, at(), content);
    std::memcpy(at(), content.data(), content.size());
    return Status::ok();
  }
  Status look(Bytes content) const {
    if (writes_ == cuda::NicWrites::kByFlush)
      PEERLANE_RETURN_IF_ERROR(cuda::flushNicWrites(gpu_.index));
    if (isGpu()) return copyFromDevice(gpu_, content, at());
    std::memcpy(content.data(), at(), content.size());
    return Status::ok();
  }
  RdmaTrialMemory asItIs() const {
    return {.at = at(),
            .bytes = kBytes,
            .fill = [this](Content content) { return fill(content); },
            .look = [this](Bytes content) { return look(content); },
            .isReadBack = writes_ == cuda::NicWrites::kByReading};
  }

 private:
  HostMemory host_;
  RuntimeMemory onGpu_;
  Device gpu_{};
  cuda::NicWrites writes_ = cuda::NicWrites::kOrdered;
};

Result<RdmaTrialOutcome> throughDmaBuf(RdmaTrial& trial, const Subject& subject) {
  if (!subject.isGpu()) return Status(Code::kNotSupported, "memory of a process has no descriptor");
  PEERLANE_ASSIGN(const int descriptor, exportDmaBuf(subject.gpu(), subject.at(), kBytes));
  RdmaTrialMemory memory = subject.asItIs();
  memory.dmaBuf = descriptor;
  auto outcome = trial.run(RdmaRegistration::kDmaBuf, memory);
  (void)::close(descriptor);
  return outcome;
}

// The NIC reaches memory of the host; the rest of the way is a copy.
Result<RdmaTrialOutcome> throughStaging(RdmaTrial& trial, const Subject& subject) {
  PEERLANE_ASSIGN(const HostMemory slot, takeHostMemory());
  const Bytes inSlot(slot.get(), kBytes);
  return trial.run(RdmaRegistration::kAddress,
                   {.at = slot.get(),
                    .bytes = kBytes,
                    .fill =
                        [&](Content content) {
                          PEERLANE_RETURN_IF_ERROR(subject.fill(content));
                          return subject.look(inSlot);
                        },
                    .look =
                        [&](Bytes content) {
                          PEERLANE_RETURN_IF_ERROR(subject.fill(inSlot));
                          return subject.look(content);
                        }});
}

Finding findingOf(const std::string& path, const Result<RdmaTrialOutcome>& outcome) {
  if (!outcome.isOk())
    return {path, State::kAbsent, "refused: " + failureText(outcome.status()), ""};
  if (outcome->wrong != 0)
    return {path, State::kBroken,
            fmt::format("{} of {} bytes are wrong", outcome->wrong, outcome->bytes),
            "do not use this path on this machine; report this"};
  return {path, State::kWorks,
          fmt::format("written, read, written to and read from, {} bytes compared, {:.2f} GB/s",
                      outcome->bytes, outcome->gbps),
          ""};
}

// What PEERLANE_IB_REGISTER has against a way, as for links; empty: nothing.
std::string whyNotAllowed(IbRegister wanted, const std::string& way) {
  const auto isOnly = [wanted](IbRegister one, IbRegister other) {
    return wanted == one || wanted == other;
  };
  const bool isRefused =
      (way == "pages" && wanted == IbRegister::kOnDemand) ||
      (way == "on demand" && isOnly(IbRegister::kPages, IbRegister::kStaged)) ||
      (way == "dma-buf" && isOnly(IbRegister::kPeerMemory, IbRegister::kStaged)) ||
      (way == "peer memory" && isOnly(IbRegister::kDmaBuf, IbRegister::kStaged));
  return isRefused ? "not tried: PEERLANE_IB_REGISTER does not allow it" : "";
}

// A put and a get of the library between two processes, over that device alone.
Finding tryLink(const Config& config, const Subject& subject, const std::string& device) {
  const std::string name = "link verbs, two processes";
  const auto outcome = [&]() -> Result<TrialOutcome> {
    const std::map<std::string, std::string> only{
        {"PEERLANE_LINKS", "verbs"}, {"PEERLANE_IB_HCA", "=" + device}, {"PEERLANE_IB_NICS", "1"}};
    PEERLANE_ASSIGN(const Config changes, Config::fromVariables(only));
    TrialOptions options{.config = config, .device = subject.gpu(), .secondDevice = subject.gpu()};
    options.config.links = changes.links;
    options.config.ibDevices = changes.ibDevices;
    options.config.ibNics = changes.ibNics;
    for (const auto& [key, value] : only) options.environment.push_back(key + "=" + value);
    PEERLANE_ASSIGN(const auto trial, Trial::create(std::move(options)));
    const TrialMemory memory = subject.isGpu() ? TrialMemory::kGpuMalloc : TrialMemory::kPrivate;
    const TrialShape shape{.local = memory, .remote = memory, .blockBytes = kBytes};
    PEERLANE_ASSIGN(TrialOutcome there, trial->put(shape, 3));
    PEERLANE_ASSIGN(const TrialOutcome back, trial->get(shape, 3));
    there.wrong += back.wrong;
    PEERLANE_RETURN_IF_ERROR(trial->end());
    return there;
  }();
  if (!outcome.isOk()) return {name, State::kBroken, failureText(outcome.status()), ""};
  if (outcome->wrong != 0)
    return {name, State::kBroken, fmt::format("{} bytes are wrong", outcome->wrong), ""};
  return {name, State::kWorks,
          fmt::format("{}, put and get of 4 MiB verified", outcome->engine == "staged"
                                                               ? "staged through host memory"
                                                               : "engine " + outcome->engine),
          ""};
}

}  // namespace

Result<RdmaVerdict> verifyRdma(const Config& config, const std::string& place,
                               const std::string& device) {
  PEERLANE_ASSIGN(const auto trial, RdmaTrial::create(config, device));
  PEERLANE_ASSIGN(const Subject subject, Subject::create(place));
  RdmaVerdict verdict;
  verdict.findings.push_back({"device", State::kWorks, trial->name(), ""});
  const RdmaTrialMemory memory = subject.asItIs();
  // Best first; the best one is the first that the settings allow.
  std::vector<Finding> paths;
  std::optional<size_t> first;
  const auto tryPath = [&](const std::string& way, const auto& run) {
    const std::string refused = whyNotAllowed(config.ibRegister, way);
    if (refused.empty() && !first) first = paths.size();
    paths.push_back(refused.empty() ? findingOf(way, run())
                                    : Finding{way, State::kAbsent, refused, ""});
  };
  const auto asRegistered = [&](RdmaRegistration registration) {
    return [&, registration] { return trial->run(registration, memory); };
  };
  const auto dmaBuf = [&] { return throughDmaBuf(*trial, subject); };
  if (subject.isGpu()) {
    verdict.findings.push_back({place, State::kWorks, cuda::textOf(subject.writes()), ""});
    tryPath("dma-buf", dmaBuf);
    tryPath("peer memory", asRegistered(RdmaRegistration::kAddress));
  } else {
    tryPath("pages", asRegistered(RdmaRegistration::kAddress));
    tryPath("on demand", asRegistered(RdmaRegistration::kOnDemand));
    paths.push_back(findingOf("dma-buf", dmaBuf()));
  }
  tryPath("staging", [&] { return throughStaging(*trial, subject); });
  const Finding best = paths[first.value_or(0)];
  const Finding link = tryLink(config, subject, trial->device());
  for (Finding& one : paths) verdict.findings.push_back(std::move(one));
  verdict.findings.push_back(link);
  bool wrong = false;
  for (const Finding& one : verdict.findings) wrong |= one.state == State::kBroken;
  if (best.state != State::kWorks)
    verdict.best = Status(Code::kUnavailable, best.subject + ", the best path to memory of " +
                                                  place + ", does not work: " + best.text);
  else if (wrong)
    verdict.best = Status(Code::kUnavailable, "something is wrong with " + device + ": see above");
  return verdict;
}

}  // namespace peerlane
