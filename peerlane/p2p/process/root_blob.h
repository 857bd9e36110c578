// SPDX-License-Identifier: Apache-2.0
//
// RootBlob: what an HcclRootInfo holds here: a ticket, framed so that other bytes, such as those of
// HCCL itself or of an incomplete copy, are told from it. Plain functions.
//        0  u8[8]  "PLP2PRT" 1
//        8  u32    bytes of the ticket
//       12  u32    checksum of them
//       16         the ticket (session/wire/ticket.h); zeros up to HCCL_ROOT_INFO_BYTES
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "peerlane/core/status.h"

namespace peerlane::p2p {

// kInvalidArgument: the ticket has no room in `blob`.
Status encodeRoot(std::string_view ticket, std::span<char> blob);
// The ticket. kCorrupt, saying what is wrong; never repeats the bytes.
Result<std::string> decodeRoot(std::span<const char> blob);

}  // namespace peerlane::p2p
