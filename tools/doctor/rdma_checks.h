// SPDX-License-Identifier: Apache-2.0
//
// The section on RDMA of `peerlane doctor`: devices with their ports, refusals with their reasons,
// and the memory that can be registered. Values. Thread: any.
#pragma once

#include <vector>

#include "peerlane/os/verbs/rdma_report.h"
#include "tools/doctor/doctor_checks.h"

namespace peerlane {

std::vector<Finding> rdmaFindings(const RdmaReport& report);

}  // namespace peerlane
