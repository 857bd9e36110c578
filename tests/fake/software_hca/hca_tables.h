// SPDX-License-Identifier: Apache-2.0
//
// The operations that verbs.h does not call by name but through tables of a context: posting,
// polling, arming, and what was added to verbs later.
#pragma once

#include <infiniband/verbs.h>

namespace peerlane::softhca {

void fillTables(verbs_context& tables);

}  // namespace peerlane::softhca
