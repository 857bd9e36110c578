// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/verbs/registration_probe.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace peerlane::verbs {

// Kernels look whether the driver can before they look at the descriptor, and -1 is none.
Status probeDmaBuf(const VerbsDevice& device, ibv_pd* domain) {
  const Library& library = device.library();
  if (library.ibv_reg_dmabuf_mr == nullptr)
    return Status(Code::kNotSupported,
                  library.file + " has no ibv_reg_dmabuf_mr: need rdma-core 34");
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  errno = 0;
  ibv_mr* const made = library.ibv_reg_dmabuf_mr(domain, 0, page, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  if (made != nullptr) {
    (void)library.ibv_dereg_mr(made);
    return Status(Code::kNotSupported, device.name() + " registers a descriptor that there is not");
  }
  if (errno == EBADF) return Status::ok();
  if (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT || errno == ENOSYS)
    return Status(Code::kNotSupported, std::string(std::strerror(errno)) + ": the driver of " +
                                           device.name() + " takes no dma-buf");
  return Status::system(errno, "ibv_reg_dmabuf_mr of no descriptor");
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
