// SPDX-License-Identifier: Apache-2.0
//
// Small whole files: read in one go, written so that a reader sees the old or the new content,
// never a part. Not for bulk data. Thread: any.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "peerlane/core/status.h"

namespace peerlane {

// Everything in the file (also of /proc and /sys, which report no size). Errors: kInvalidArgument
// when it has more than `maxBytes`; kUnavailable when it does not exist; kPermissionDenied;
// kSystem.
Result<std::string> readWhole(const std::string& path, size_t maxBytes = 64 << 20);

// Replaces `path` by `content` through a temporary file in the same folder, flushed before the
// rename. `mode` are the permission bits of the new file. On error the old file is untouched and no
// temporary is left.
Status writeAtomic(const std::string& path, std::string_view content, unsigned mode = 0644);

}  // namespace peerlane
