// SPDX-License-Identifier: Apache-2.0
//
// The failure of a request to a NIC, in words that say what to look at.
#pragma once

#include <infiniband/verbs.h>

#include <string>

#include "peerlane/core/status.h"

namespace peerlane {

// `link` and `pair`: names. kPermissionDenied: the peer's device refused the key, the range or the
// right. kPeerLost: everything else, because the pair cannot be used any more.
Status requestFailure(const std::string& link, const std::string& pair, const ibv_wc& completion);

// The request itself is wrong, or its memory: it is not to be made again.
inline bool isToBlame(ibv_wc_status status) {
  return status != IBV_WC_WR_FLUSH_ERR && status != IBV_WC_RETRY_EXC_ERR &&
         status != IBV_WC_RNR_RETRY_EXC_ERR;
}

}  // namespace peerlane
