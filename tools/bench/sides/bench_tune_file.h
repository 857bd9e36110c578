// SPDX-License-Identifier: Apache-2.0
//
// The part of `bench --tune FILE` that every machine has: from which size on which instruction
// copies host memory the fastest; and the file for PEERLANE_TUNE. Confined to one thread.
#pragma once

#include <functional>
#include <string>

#include "peerlane/core/status.h"

namespace peerlane::bench {

// The lines copy_... of the file. `say` gets a line for each size. Copies go through 256 MiB, so
// that their bytes are in no cache.
Result<std::string> copyThresholds(const std::function<void(const std::string&)>& say);

// Errors: kSystem.
Status writeTuneFile(const std::string& file, const std::string& text);

}  // namespace peerlane::bench
