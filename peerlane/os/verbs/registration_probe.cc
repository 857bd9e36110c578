// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/verbs/registration_probe.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace peerlane::verbs {
namespace {

// Of the kernel's software device, in all versions that page on demand.
constexpr uint32_t kVendorOfRxe = 0xffffff;

}  // namespace

// Kernels look whether the driver can before they look at the descriptor, and -1 is none.
Status probeDmaBuf(const VerbsDevice& device, ibv_pd* domain) {
  const Library& library = device.library();
  if (library.ibv_reg_mr_ex == nullptr && library.ibv_reg_dmabuf_mr == nullptr)
    return Status(Code::kNotSupported,
                  library.file + " has no ibv_reg_dmabuf_mr: need rdma-core 34");
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  errno = 0;
  ibv_mr* const made = library.registerDmaBuf(domain, -1, 0, page, 0, IBV_ACCESS_LOCAL_WRITE);
  if (made != nullptr) {
    (void)library.ibv_dereg_mr(made);
    return Status(Code::kNotSupported, device.name() + " registers a descriptor that there is not");
  }
  if (errno == EBADF) return Status::ok();
  if (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT || errno == ENOSYS)
    return Status(Code::kNotSupported, std::string(std::strerror(errno)) + ": the driver of " +
                                           device.name() + " takes no dma-buf");
  return Status::system(errno, "a dma-buf of no descriptor");
}

Result<OnDemandPaging> probeOnDemand(const VerbsDevice& device) {
  verbs_context* const table = verbs_get_ctx_op(device.handle(), query_device_ex);
  if (table == nullptr) return Status(Code::kNotSupported, "the driver does not tell");
  ibv_device_attr_ex limits{};
  if (const int error = table->query_device_ex(device.handle(), nullptr, &limits, sizeof limits);
      error != 0)
    return Status(Code::kNotSupported, std::string("ibv_query_device_ex: ") + std::strerror(error));
  if ((limits.odp_caps.general_caps & IBV_ODP_SUPPORT) == 0)
    return Status(Code::kNotSupported, "the device has none: regions are pinned");
  constexpr uint32_t kNeeded = IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
  const uint32_t abilities = limits.odp_caps.per_transport_caps.rc_odp_caps;
  if ((abilities & kNeeded) != kNeeded)
    return Status(Code::kNotSupported, "not for writes and reads of reliable connections");
  return OnDemandPaging{.isForAll = (limits.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT) != 0,
                        .adds = (abilities & IBV_ODP_SUPPORT_ATOMIC) != 0,
                        .isByPages = device.limits().vendor_id == kVendorOfRxe};
}

Result<std::string> findPeerMemoryModule() {
  // Of NVIDIA's module as part of the driver, and of the one before.
  for (const char* const path :
       {"/sys/kernel/mm/memory_peers/nv_mem/version",
        "/sys/kernel/mm/memory_peers/nv_mem_nc/version", "/sys/module/nvidia_peermem/version"}) {
    std::string version;
    if (std::ifstream file(path); file >> version) return version + " (" + path + ")";
  }
  return Status(Code::kNotSupported, "no peer-memory module is loaded (modprobe nvidia-peermem)");
}

}  // namespace peerlane::verbs
