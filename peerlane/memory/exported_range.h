// SPDX-License-Identifier: Apache-2.0
//
// How a device that is no processor of this process (a NIC) comes to a range of memory: Importer
// says what the device can take, ExportedRange is what the provider of the memory gave it. Values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"

namespace peerlane {

enum class ExportForm : uint8_t {
  kDmaBuf = 0,       // a dma-buf, and where in it the range begins
  kAddress = 1,      // an address of this process that the CPU reaches: pages of host memory
  kPeerAddress = 2,  // the address of device memory, for a kernel that has a module for it
                     // (nvidia-peermem)
  kIpcHandle = 3,    // a CUDA IPC handle of the allocation, and where in it the range begins
  kFile = 4,         // a file that can be mapped, and where in it the range begins
};
inline constexpr size_t kExportForms = 5;
const char* exportFormName(ExportForm form);  // "dma-buf", "address", ...

// What an importer does when the memory is taken back while it holds it.
enum class ImporterKind : uint8_t {
  kPinned = 0,     // nothing: it reaches the pages until it lets go by itself
  kRevocable = 1,  // it lets go when it is told, and never gets the memory again
  kDynamic = 2,    // it stops, and asks again where the memory is now (on-demand paging)
};

struct Importer {
  std::vector<ExportForm> forms{};  // that it can take, the one it likes best first
  ImporterKind kind = ImporterKind::kPinned;
  // Of a kPinned one: memory that its provider may take back is wanted none the less. The provider
  // then waits until the region is unregistered.
  bool acceptsPinnedForLife = false;
  std::string_view name = "the importer";  // for people, in refusals; borrowed for the call
};

struct ExportedRange {
  ExportForm form = ExportForm::kAddress;
  uint64_t bytes = 0;  // as asked for
  // kDmaBuf, kFile: the caller's. The kernel object lives as long as who imported it needs it, so
  // it may be closed after that.
  Fd fd{};
  // kDmaBuf, kFile, kIpcHandle: of the first byte asked for, in the dma-buf, the file, or the
  // allocation.
  uint64_t offset = 0;
  std::byte* address =
      nullptr;  // the range's own, in every form: kAddress and kPeerAddress name it
  std::vector<std::byte> handle{};  // kIpcHandle
  uint64_t pageBytes = 4096;        // of the exporter: what it gives is made of these
  // False: the pages stay where they are until the range is let go of.
  bool mayBeInvalidated = false;
  // Why forms that the importer likes better are not given, for people; empty: none.
  std::string refused{};

  // Whether a registration of a dma-buf may use `iova` for the first byte: kernels want the same
  // offset in the page for both.
  bool allowsIova(uint64_t iova) const {
    return form != ExportForm::kDmaBuf || iova % pageBytes == offset % pageBytes;
  }
};

}  // namespace peerlane
