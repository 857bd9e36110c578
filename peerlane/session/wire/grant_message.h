// SPDX-License-Identifier: Apache-2.0
//
// Grants as control messages: what an owner tells of a region in an ImportReply, and what the
// importer makes of it. Pure functions.
#pragma once

#include <cstdint>

#include "peerlane/core/status.h"
#include "peerlane/session/wire/control_connection.h"
#include "peerlane/session/wire/control_message.h"
#include "peerlane/transport/link.h"

namespace peerlane {

// The descriptor travels beside the message.
control::ImportReply replyWith(uint64_t request, const Grant& grant);
// Takes the descriptor from the connection. Errors: kCorrupt (no grant looks like that, or the
// descriptor is missing), kUnavailable (this process had no room for the descriptor).
Result<Grant> grantIn(const control::ImportReply& message, ControlConnection& connection);

}  // namespace peerlane
