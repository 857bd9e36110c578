// SPDX-License-Identifier: Apache-2.0
//
// Root blob: the contents of an HcclRootInfo: a ticket in a frame, by which it is told from other
// bytes, such as a root of HCCL itself or an incomplete copy. Plain functions; any thread.
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
// The ticket. kCorrupt says what is wrong and never repeats the bytes, which hold a secret.
Result<std::string> decodeRoot(std::span<const char> blob);

}  // namespace peerlane::p2p
