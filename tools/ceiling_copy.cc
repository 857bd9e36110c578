// SPDX-License-Identifier: Apache-2.0
#include "tools/ceiling_copy.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

namespace peerlane::bench {

void copyPieces(std::span<const RawPiece> pieces, bool isPut) {
  for (const RawPiece& piece : pieces) {
    if (isPut)
      std::memcpy(piece.other, piece.local, piece.bytes);
    else
      std::memcpy(piece.local, piece.other, piece.bytes);
  }
}

Status kernelCopyPieces(pid_t other, std::span<const RawPiece> pieces, bool isPut) {
  std::array<iovec, IOV_MAX> local;
  std::array<iovec, IOV_MAX> remote;
  while (!pieces.empty()) {
    const size_t count = std::min<size_t>(pieces.size(), IOV_MAX);
    size_t wanted = 0;
    for (size_t i = 0; i < count; ++i) {
      local[i] = {pieces[i].local, pieces[i].bytes};
      remote[i] = {pieces[i].other, pieces[i].bytes};
      wanted += pieces[i].bytes;
    }
    const ssize_t moved =
        isPut ? ::process_vm_writev(other, local.data(), count, remote.data(), count, 0)
              : ::process_vm_readv(other, local.data(), count, remote.data(), count, 0);
    if (moved < 0) {
      if (errno == EPERM)
        return Status(Code::kPermissionDenied,
                      "process_vm_* on the other process is not permitted here: no ceiling for "
                      "private memory");
      return Status::system(errno, "process_vm_*");
    }
    if (static_cast<size_t>(moved) != wanted)
      return Status(Code::kSystem, "process_vm_* moved " + std::to_string(moved) + " of " +
                                       std::to_string(wanted) + " bytes");
    pieces = pieces.subspan(count);
  }
  return Status::ok();
}

Status spinOver() {
  return Status(Code::kTimeout, "the other process of the benchmark did not answer for 20 s");
}

}  // namespace peerlane::bench
