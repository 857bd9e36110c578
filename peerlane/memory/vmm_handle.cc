// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/vmm_handle.h"

#include <cstring>
#include <string>

#include "peerlane/os/cuda_driver.h"

namespace peerlane {
namespace {

using cuda::api;
using cuda::check;

static_assert(sizeof(CUmemFabricHandle) == kFabricHandleBytes);

// Holds a reference of its own on the VMM allocation at an address, if there is one.
class Retained {
 public:
  explicit Retained(const void* address)
      : isVmm_(api().cuMemRetainAllocationHandle(&handle_, const_cast<void*>(address)) ==
               CUDA_SUCCESS) {
    CUmemAllocationProp properties{};
    if (isVmm_ &&
        api().cuMemGetAllocationPropertiesFromHandle(&properties, handle_) == CUDA_SUCCESS)
      types_ = properties.requestedHandleTypes;
  }
  ~Retained() {
    if (isVmm_) (void)api().cuMemRelease(handle_);
  }
  Retained(const Retained&) = delete;
  Retained& operator=(const Retained&) = delete;

  bool isVmm() const { return isVmm_; }
  bool goesAs(CUmemAllocationHandleType type) const { return (types_ & type) != 0; }
  Status exportAs(CUmemAllocationHandleType type, void* out, const char* what) const {
    return check(api().cuMemExportToShareableHandle(out, handle_, type, 0), what);
  }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
  const bool isVmm_;
  unsigned types_ = 0;  // CUmemAllocationHandleType, the types that it was made for
};

}  // namespace

VmmKind vmmKindOf(const void* address) {
  const Retained allocation(address);
  return {allocation.isVmm(), allocation.goesAs(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          allocation.goesAs(CU_MEM_HANDLE_TYPE_FABRIC)};
}

Result<Fd> exportDescriptor(const void* address) {
  const Retained allocation(address);
  if (!allocation.goesAs(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) return Fd();
  int fd = -1;
  PEERLANE_RETURN_IF_ERROR(allocation.exportAs(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, &fd,
                                               "cuMemExportToShareableHandle"));
  return Fd(fd);
}

Result<std::vector<std::byte>> exportFabric(const void* address) {
  const Retained allocation(address);
  if (!allocation.goesAs(CU_MEM_HANDLE_TYPE_FABRIC)) return std::vector<std::byte>();
  std::vector<std::byte> handle(kFabricHandleBytes);
  PEERLANE_RETURN_IF_ERROR(allocation.exportAs(CU_MEM_HANDLE_TYPE_FABRIC, handle.data(),
                                               "cuMemExportToShareableHandle (fabric)"));
  return handle;
}

Result<uint64_t> importVmm(const VmmHandle& handle) {
  CUmemGenericAllocationHandle imported = 0;
  if (handle.fabric.empty()) {
    // The driver takes the descriptor's number in place of a pointer, and makes a reference of its
    // own.
    PEERLANE_RETURN_IF_ERROR(check(
        api().cuMemImportFromShareableHandle(&imported,
                                             reinterpret_cast<void*>(uintptr_t(handle.fd.get())),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle"));
    return imported;
  }
  CUmemFabricHandle fabric;
  if (handle.fabric.size() != sizeof(fabric))
    return Status(Code::kCorrupt, "a fabric handle of " + std::to_string(handle.fabric.size()) +
                                      " bytes; expected " + std::to_string(sizeof(fabric)));
  std::memcpy(&fabric, handle.fabric.data(), sizeof(fabric));
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemImportFromShareableHandle(&imported, &fabric, CU_MEM_HANDLE_TYPE_FABRIC),
            "cuMemImportFromShareableHandle")
          .withContext("the fabric handle leads to no memory that this process may have"));
  return imported;
}

Status checkImportedBytes(const void* address, size_t said) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemGetAddressRange(&base, &bytes, reinterpret_cast<CUdeviceptr>(address)),
            "cuMemGetAddressRange"));
  const size_t before = reinterpret_cast<CUdeviceptr>(address) - base;
  if (bytes - before >= said) return Status::ok();
  return Status(Code::kCorrupt, "an allocation of the peer has " + std::to_string(bytes - before) +
                                    " bytes, and is said to have " + std::to_string(said));
}

}  // namespace peerlane
