// SPDX-License-Identifier: Apache-2.0
//
// Grants as control messages: what an owner tells of a region in an ImportReply, and what the
// importer makes of it. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "peerlane/core/status.h"
#include "peerlane/memory/remote_memory.h"
#include "peerlane/session/wire/control_connection.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {

// `link`: its name. The descriptor travels in addition to the message.
control::ImportReply replyWith(uint64_t request, const std::string& link, const Grant& grant);
// Takes the descriptor from the connection. Errors: kCorrupt (no grant looks like that, or the
// descriptor is missing), kUnavailable (this process had no room for the descriptor), kNotSupported
// (memory of a kind that this version does not know, by name and numbers). After the last two the
// connection can go on.
Result<Grant> grantIn(const control::ImportReply& message, ControlConnection& connection);

}  // namespace peerlane
