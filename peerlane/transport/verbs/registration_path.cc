// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/registration_path.h"

#include <algorithm>
#include <utility>

#include "peerlane/os/verbs/registration_probe.h"

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

const char* nameOf(ExportForm form) {
  if (form == ExportForm::kAddress) return "pages";
  return form == ExportForm::kDmaBuf ? "dma-buf" : "peer memory";
}

}  // namespace

RegistrationPaths::RegistrationPaths(std::shared_ptr<const ProtectionDomain> domain)
    : domain_(std::move(domain)) {
  forDevicesWays_ = {
      {ExportForm::kDmaBuf, verbs::probeDmaBuf(domain_->device(), domain_->handle())},
      {ExportForm::kPeerAddress, verbs::findPeerMemoryModule().status()}};
  if (std::any_of(forDevicesWays_.begin(), forDevicesWays_.end(),
                  [](const Way& way) { return way.probed.isOk(); }))
    return;
  std::string why = domain_->device().name() + " does not reach device memory";
  for (const Way& way : forDevicesWays_)
    why += std::string("; ") + nameOf(way.form) + ": " + std::string(way.probed.message());
  forDevices_ = Status(Code::kNotSupported, std::move(why));
}

std::vector<std::string> RegistrationPaths::texts() const {
  std::vector<std::string> all{std::string("memory of the host: ") + nameOf(ExportForm::kAddress)};
  for (const Way& way : forDevicesWays_)
    all.push_back(std::string("memory of GPUs: ") + nameOf(way.form) +
                  (way.probed.isOk() ? "" : ", refused: " + std::string(way.probed.message())));
  return all;
}

Result<RegistrationPaths::Made> RegistrationPaths::add(const RegionRecord& region,
                                                       uint64_t address) const {
  if (region.memory.kind.place == MemoryPlace::kHost) {
    PEERLANE_ASSIGN(DeviceMemory memory, addBy(ExportForm::kAddress, region, address));
    return Made{std::move(memory), nameOf(ExportForm::kAddress), {}};
  }
  std::string refused;
  const auto note = [&refused](ExportForm form, const Status& why) {
    refused += (refused.empty() ? "" : "; ") + std::string(nameOf(form)) + ": " +
               std::string(why.message());
  };
  for (const Way& way : forDevicesWays_) {
    if (!way.probed.isOk()) {
      note(way.form, way.probed);
      continue;
    }
    Result<DeviceMemory> memory = addBy(way.form, region, address);
    if (memory) return Made{std::move(*memory), nameOf(way.form), std::move(refused)};
    if (memory.status().code() == Code::kRevoked) return memory.status();
    note(way.form, memory.status());
  }
  return Status(Code::kNotSupported, region.memory.kind.name() + " is not registered with " +
                                         domain_->device().name() + ": " + refused);
}

// The provider may take it back at any time: then the registration ends (MemoryKeys).
Result<DeviceMemory> RegistrationPaths::addBy(ExportForm form, const RegionRecord& region,
                                              uint64_t address) const {
  const std::string name = domain_->device().name();
  const Importer importer{.forms = {form}, .kind = ImporterKind::kRevocable, .name = name};
  PEERLANE_ASSIGN(const ExportedRange range, region.exportFor(importer, 0, region.bytes));
  if (form != ExportForm::kDmaBuf)
    return domain_->add(range.address, region.bytes, rightsOf(region), address);
  if (!range.allowsIova(address))
    return Status(Code::kNotSupported, "it begins at byte " + std::to_string(range.offset) +
                                           " of a page of " + std::to_string(range.pageBytes) +
                                           ", which no address for the device has");
  return domain_->addDmaBuf(range.fd.get(), range.offset, region.bytes, rightsOf(region), address);
}

}  // namespace peerlane
