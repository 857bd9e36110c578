// SPDX-License-Identifier: Apache-2.0
//
// Where a root listens: what p2p-transfer's variables of the network come to. Plain functions.
#pragma once

#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/status.h"

namespace peerlane::p2p {

// As ContextOptions::listen; none where this process sees no network. kInvalidArgument, by the name
// of the variable: an address, an interface or a family that is not there.
Result<std::vector<std::string>> rootAddresses(const Config& config);

// Says once in a process which variables of the original are set and have no meaning here.
void warnOfIgnoredVariables();

}  // namespace peerlane::p2p
