// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/registration_path.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace peerlane {
namespace {

int rightsOf(const RegionRecord& region) {
  int rights = 0;
  if (region.memory.writable) rights |= IBV_ACCESS_LOCAL_WRITE;
  if (allows(region.access, Access::kRemoteRead)) rights |= IBV_ACCESS_REMOTE_READ;
  if (allows(region.access, Access::kRemoteWrite))
    rights |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  return rights;
}

Status refusedBy(const char* setting) {
  return Status(Code::kNotSupported, std::string("PEERLANE_IB_REGISTER is ") + setting);
}

// What the setting has against ways other than the two that it names; null: nothing.
const char* otherThan(IbRegister wanted, IbRegister named, const char* name) {
  if (wanted == IbRegister::kStaged) return "staged";
  return wanted == named ? name : nullptr;
}

}  // namespace

const char* RegistrationPaths::nameOf(Path path) {
  switch (path) {
    case Path::kPages: return "pages";
    case Path::kOnDemand: return "on demand";
    case Path::kDmaBuf: return "dma-buf";
    case Path::kPeerMemory: break;
  }
  return "peer memory";
}

RegistrationPaths::RegistrationPaths(std::shared_ptr<const ProtectionDomain> domain,
                                     const Config& config, const DeviceWrites& writes)
    : domain_(std::move(domain)), writes_(writes) {
  probeHost(config.ibRegister);
  probeFleeting(config);
  probeDevices(config.ibRegister);
}

void RegistrationPaths::probeHost(IbRegister wanted) {
  Status pages, onDemand;
  if (wanted == IbRegister::kOnDemand) pages = refusedBy("odp");
  const auto probed = verbs::probeOnDemand(domain_->device());
  if (probed)
    onDemand_ = *probed;
  else
    onDemand = probed.status();
  if (const char* const setting = otherThan(wanted, IbRegister::kPages, "pages"))
    onDemand = refusedBy(setting);
  if (wanted == IbRegister::kStaged) forUngranted_ = refusedBy("staged");
  forHostWays_ = {{Path::kPages, std::move(pages)}, {Path::kOnDemand, std::move(onDemand)}};
}

// As other memory of the host, and what is as pages has to be watched.
void RegistrationPaths::probeFleeting(const Config& config) {
  forFleetingWays_ = forHostWays_;
  Status& pages = forFleetingWays_.front().probed;
  if (pages.isOk()) pages = FreeWatch::probe();
  forFleeting_ = Status(Code::kNotSupported, "there is no way");
  for (const Way& way : forFleetingWays_)
    if (way.probed.isOk()) forFleeting_ = Status::ok();
  if (config.ibCacheBytes == 0)
    forFleeting_ = Status(Code::kNotSupported, "PEERLANE_IB_CACHE is 0");
}

void RegistrationPaths::probeDevices(IbRegister wanted) {
  Status dmaBuf, peerMemory;
  if (const char* const setting = otherThan(wanted, IbRegister::kPeerMemory, "peer-memory"))
    dmaBuf = refusedBy(setting);
  else
    dmaBuf = verbs::probeDmaBuf(domain_->device(), domain_->handle());
  if (const char* const setting = otherThan(wanted, IbRegister::kDmaBuf, "dma-buf"))
    peerMemory = refusedBy(setting);
  else
    peerMemory = verbs::findPeerMemoryModule().status();
  forDevicesWays_ = {{Path::kDmaBuf, std::move(dmaBuf)},
                     {Path::kPeerMemory, std::move(peerMemory)}};
  if (std::any_of(forDevicesWays_.begin(), forDevicesWays_.end(),
                  [](const Way& way) { return way.probed.isOk(); })) {
    forDevices_ = writes_.allowedForAny();
    return;
  }
  std::string why = domain_->device().name() + " does not reach device memory";
  for (const Way& way : forDevicesWays_)
    why += std::string("; ") + nameOf(way.path) + ": " + std::string(way.probed.message());
  forDevices_ = Status(Code::kNotSupported, std::move(why));
}

std::vector<std::string> RegistrationPaths::texts() const {
  std::vector<std::string> all;
  const auto add = [&all](const char* memory, const Way& way, const char* good) {
    all.push_back(std::string("memory of ") + memory + ": " + nameOf(way.path) +
                  (way.probed.isOk() ? good : ", refused: " + std::string(way.probed.message())));
  };
  const bool isOnlyWay = !forHostWays_.front().probed.isOk();
  std::string ofOnDemand = isOnlyWay ? "" : ", where pages cannot be locked";
  if (onDemand_.isByPages && isOnlyWay) ofOnDemand += ", but as pages where peers are granted it";
  if (onDemand_.isByPages)
    ofOnDemand += "; whole pages of this side only, because rxe loses the place in a page";
  for (const Way& way : forHostWays_)
    add("the host", way, way.path == Path::kOnDemand ? ofOnDemand.c_str() : "");
  for (const Way& way : forFleetingWays_)
    add("the host that the program may free without a word", way,
        way.path == Path::kPages ? ", and its frees are watched" : "");
  if (!forFleeting_.isOk())
    all.push_back("such memory that peers are not granted: copied through slots: " +
                  std::string(forFleeting_.message()));
  if (!forUngranted_.isOk())
    all.push_back("memory that peers are not granted: copied through slots: " +
                  std::string(forUngranted_.message()));
  for (const Way& way : forDevicesWays_) add("GPUs", way, "");
  for (std::string& text : writes_.texts()) all.push_back(std::move(text));
  return all;
}

Result<RegistrationPaths::Made> RegistrationPaths::add(const RegionRecord& region) const {
  const bool isHost = region.memory.kind.place == MemoryPlace::kHost;
  if (!isHost) PEERLANE_RETURN_IF_ERROR(writes_.allowed(region.memory.device));
  return addByFirst(isHost ? forHostWays_ : forDevicesWays_, region, /*isFleeting=*/false);
}

Result<RegistrationPaths::Made> RegistrationPaths::addByFirst(const std::vector<Way>& ways,
                                                              const RegionRecord& region,
                                                              bool isFleeting) const {
  const bool isHost = region.memory.kind.place == MemoryPlace::kHost;
  std::string refused;
  bool isShort = false;
  const auto note = [&refused](Path path, const Status& why) {
    refused += (refused.empty() ? "" : "; ") + std::string(nameOf(path)) + ": " +
               std::string(why.message());
  };
  for (const Way& way : ways) {
    Status usable = way.probed;
    if (usable.isOk() && isFleeting && way.path == Path::kPages)
      usable = region.frees.watch(region);
    if (!usable.isOk()) {
      note(way.path, usable);
      continue;
    }
    Result<DeviceMemory> memory = addBy(way.path, region);
    if (memory) return made(way.path, region, std::move(*memory), std::move(refused));
    const Code code = memory.status().code();
    // What else is wrong with memory of the host would be found out by the first request, on
    // demand.
    if (code == Code::kRevoked || (isHost && code != Code::kOutOfMemory)) return memory.status();
    isShort |= isHost;
    note(way.path, memory.status());
  }
  return Status(isShort ? Code::kOutOfMemory : Code::kNotSupported,
                region.memory.kind.name() + " is not registered with " + domain_->device().name() +
                    ": " + refused);
}

Result<RegistrationPaths::Made> RegistrationPaths::addFleeting(const RegionRecord& region) const {
  return addByFirst(forFleetingWays_, region, /*isFleeting=*/true);
}

Result<RegistrationPaths::Made> RegistrationPaths::addPages(const RegionRecord& region) const {
  PEERLANE_ASSIGN(DeviceMemory memory, addBy(Path::kPages, region));
  return made(Path::kPages, region, std::move(memory), {});
}

RegistrationPaths::Made RegistrationPaths::made(Path path, const RegionRecord& region,
                                                DeviceMemory memory, std::string refused) const {
  Made made{.memory = std::move(memory),
            .address = addressOf(path, region),
            .path = nameOf(path),
            .refused = std::move(refused)};
  if (path != Path::kOnDemand) return made;
  const std::string what = "region " + std::to_string(region.allocation) +
                           " is registered on demand (" + made.refused +
                           "), which is nothing for peers";
  const bool isWritten = allows(region.access, Access::kRemoteWrite);
  if (onDemand_.isByPages) {
    made.unit = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    made.forPeers = Status(Code::kNotSupported, what + ": rxe loses the place in a page");
  } else if (isWritten && !onDemand_.adds &&
             domain_->device().limits().atomic_cap != IBV_ATOMIC_NONE) {
    made.forPeers = Status(Code::kNotSupported, what + ": " + domain_->device().name() +
                                                    " does not add to words of such memory");
  }
  return made;
}

// The same place in a large page as in this process, so that the device may use such pages, and
// nothing else of the address, which peers need not know. But rxe takes addresses of memory on
// demand for those of the process, whatever it was told.
uint64_t RegistrationPaths::addressOf(Path path, const RegionRecord& region) const {
  constexpr uint64_t kLargestPage = uint64_t{1} << 30;
  const auto address = reinterpret_cast<uintptr_t>(region.base);
  return path == Path::kOnDemand && onDemand_.isByPages ? address : address % kLargestPage;
}

// The provider may take it back at any time: then the registration ends (MemoryKeys).
Result<DeviceMemory> RegistrationPaths::addBy(Path path, const RegionRecord& region) const {
  const uint64_t address = addressOf(path, region);
  const std::string name = domain_->device().name();
  const ExportForm form = path == Path::kDmaBuf       ? ExportForm::kDmaBuf
                          : path == Path::kPeerMemory ? ExportForm::kPeerAddress
                                                      : ExportForm::kAddress;
  const bool isOnDemand = path == Path::kOnDemand;
  const Importer importer{.forms = {form},
                          .kind = isOnDemand ? ImporterKind::kDynamic : ImporterKind::kRevocable,
                          .name = name};
  PEERLANE_ASSIGN(const ExportedRange range, region.exportFor(importer, 0, region.bytes));
  const int rights = rightsOf(region) | (isOnDemand ? IBV_ACCESS_ON_DEMAND : 0);
  if (form != ExportForm::kDmaBuf)
    return domain_->add(range.address, region.bytes, rights, address);
  if (!range.allowsIova(address))
    return Status(Code::kNotSupported, "it begins at byte " + std::to_string(range.offset) +
                                           " of a page of " + std::to_string(range.pageBytes) +
                                           ", which no address for the device has");
  return domain_->addDmaBuf(range.fd.get(), range.offset, region.bytes, rights, address);
}

}  // namespace peerlane
