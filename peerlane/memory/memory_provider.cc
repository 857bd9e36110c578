// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/memory_provider.h"

#include <string>

namespace peerlane {

const char* exportFormName(ExportForm form) {
  switch (form) {
    case ExportForm::kDmaBuf: return "dma-buf";
    case ExportForm::kAddress: return "address";
    case ExportForm::kPeerAddress: return "address of device memory";
    case ExportForm::kIpcHandle: return "IPC handle";
    case ExportForm::kFile: return "file";
  }
  return "?";
}

Result<ExportedRange> HeldMemory::exportAs(ExportForm form, const Importer& /*importer*/,
                                           uint64_t /*offset*/, uint64_t /*bytes*/) {
  return Status(Code::kNotSupported, std::string("its provider gives no ") + exportFormName(form));
}

Result<std::unique_ptr<Allocation>> MemoryProvider::allocate(size_t /*bytes*/,
                                                             const AllocateOptions& options) {
  return Status(Code::kNotSupported, "provider " + std::string(name()) + " does not allocate on " +
                                         options.device.toString());
}

}  // namespace peerlane
