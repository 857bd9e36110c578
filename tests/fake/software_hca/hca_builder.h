// SPDX-License-Identifier: Apache-2.0
//
// The functions of ibv_qp_ex, with which programs build requests in the queue itself. wr_start
// takes the queue's lock, wr_complete or wr_abort lets it go.
#pragma once

#include <infiniband/verbs.h>

namespace peerlane::softhca {

class QueuePair;

void fillBuilder(QueuePair& pair);

}  // namespace peerlane::softhca
