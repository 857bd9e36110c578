// SPDX-License-Identifier: Apache-2.0
//
// Root addresses: where a root listens, as p2p-transfer's variables of the network say. Plain
// functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/status.h"

namespace peerlane::p2p {

// For ContextOptions::listen; none where this process sees no network. kInvalidArgument, with the
// name of the variable: an address, an interface or a family that is not there.
Result<std::vector<std::string>> rootAddresses(const Config& config);

// Logs, once in a process, which variables of the original are set and have no meaning here.
void warnOfIgnoredVariables();

}  // namespace peerlane::p2p
