// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/registration_path.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
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

const char* nameOf(ExportForm form) {
  if (form == ExportForm::kAddress) return "pages";
  return form == ExportForm::kDmaBuf ? "dma-buf" : "peer memory";
}

// The files of kernel modules that give device memory to NICs by its address.
Status probePeerMemory() {
  constexpr std::array<const char*, 3> kFiles{"/sys/kernel/mm/memory_peers/nv_mem/version",
                                              "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
                                              "/sys/module/nvidia_peermem/version"};
  for (const char* file : kFiles)
    if (::access(file, F_OK) == 0) return Status::ok();
  return Status(Code::kNotSupported, "no peer-memory module is loaded (nvidia-peermem)");
}

}  // namespace

RegistrationPaths::RegistrationPaths(std::shared_ptr<const ProtectionDomain> domain)
    : domain_(std::move(domain)) {
  forDevicesWays_ = {{ExportForm::kDmaBuf, probeDmaBuf()},
                     {ExportForm::kPeerAddress, probePeerMemory()}};
  if (std::any_of(forDevicesWays_.begin(), forDevicesWays_.end(),
                  [](const Way& way) { return way.probed.isOk(); }))
    return;
  std::string why = domain_->device().name() + " does not reach device memory";
  for (const Way& way : forDevicesWays_)
    why += std::string("; ") + nameOf(way.form) + ": " + std::string(way.probed.message());
  forDevices_ = Status(Code::kNotSupported, std::move(why));
}

// Kernels look whether the driver can before they look at the descriptor.
Status RegistrationPaths::probeDmaBuf() const {
  const verbs::VerbsDevice& device = domain_->device();
  if (device.library().ibv_reg_dmabuf_mr == nullptr)
    return Status(Code::kNotSupported, device.library().file + " has no ibv_reg_dmabuf_mr");
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  errno = 0;
  ibv_mr* const made = device.library().ibv_reg_dmabuf_mr(domain_->handle(), 0, page, 0, -1, 0);
  if (made != nullptr) {
    (void)device.library().ibv_dereg_mr(made);
    return Status(Code::kNotSupported, device.name() + " registers a descriptor that there is not");
  }
  if (errno == EBADF) return Status::ok();
  if (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT || errno == ENOSYS)
    return Status(Code::kNotSupported, "the driver of " + device.name() + " takes no dma-buf");
  return Status::system(errno, "ibv_reg_dmabuf_mr of no descriptor");
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
