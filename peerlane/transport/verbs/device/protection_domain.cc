// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/protection_domain.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

// What a user can do something about.
Status refusal(const std::string& device, uint64_t bytes, uint64_t locked, int error) {
  const std::string what = device + " does not register " + std::to_string(bytes) + " bytes";
  if (error != ENOMEM && error != EAGAIN) return Status::system(error, what);
  rlimit limit{};
  (void)::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string most =
      limit.rlim_cur == RLIM_INFINITY ? "any number of bytes" : std::to_string(limit.rlim_cur);
  return Status(Code::kOutOfMemory,
                what + ": " + std::to_string(locked) +
                    " are registered there already, and this process may lock " + most +
                    " (ulimit -l)");
}

}  // namespace

DeviceMemory::~DeviceMemory() {
  if (memory_ == nullptr) return;
  const verbs::VerbsDevice& device = domain_->device();
  if (const int error = device.library().ibv_dereg_mr(memory_); error != 0)
    PEERLANE_LOG_ERROR("{}", Status::system(error, device.name() + ": ibv_dereg_mr").message());
  domain_->locked_.fetch_sub(locked_, std::memory_order_relaxed);
}

Result<std::shared_ptr<const ProtectionDomain>> ProtectionDomain::create(
    std::shared_ptr<const verbs::VerbsDevice> device) {
  ibv_pd* const domain = device->library().ibv_alloc_pd(device->handle());
  if (domain == nullptr) return Status::system(errno, device->name() + ": ibv_alloc_pd");
  return std::shared_ptr<const ProtectionDomain>(new ProtectionDomain(std::move(device), domain));
}

ProtectionDomain::~ProtectionDomain() {
  if (const int error = device_->library().ibv_dealloc_pd(domain_); error != 0)
    PEERLANE_LOG_ERROR("{}", Status::system(error, device_->name() + ": ibv_dealloc_pd").message());
}

Result<DeviceMemory> ProtectionDomain::add(std::byte* base, uint64_t bytes, int rights,
                                           uint64_t address) const {
  return take(device_->library().ibv_reg_mr_iova2(domain_, base, bytes, address,
                                                  static_cast<unsigned>(rights)),
              bytes, rights);
}

Result<DeviceMemory> ProtectionDomain::addDmaBuf(int descriptor, uint64_t offset, uint64_t bytes,
                                                 int rights, uint64_t address) const {
  return take(
      device_->library().registerDmaBuf(domain_, descriptor, offset, bytes, address, rights), bytes,
      rights);
}

// Null: errno says why.
Result<DeviceMemory> ProtectionDomain::take(ibv_mr* memory, uint64_t bytes, int rights) const {
  if (memory == nullptr) return refusal(device_->name(), bytes, locked_.load(), errno);
  const uint64_t locked = (rights & IBV_ACCESS_ON_DEMAND) != 0 ? 0 : bytes;
  locked_.fetch_add(locked, std::memory_order_relaxed);
  return DeviceMemory(shared_from_this(), memory, locked);
}

}  // namespace peerlane
