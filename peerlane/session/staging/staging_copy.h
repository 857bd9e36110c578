// SPDX-License-Identifier: Apache-2.0
//
// The step of a staged transfer that a GPU does: between staging memory and regions of this side.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "peerlane/memory/region_table.h"
#include "peerlane/program/device/device_executor.h"

namespace peerlane {

// Targets of its segments.
inline constexpr TargetId kStagingTarget = 0;
inline constexpr TargetId kFirstRegionTarget = 1;  // and the others after it, in their order

// Pins the staging memory, where that was not done before. Errors: as DeviceExecutor::pin and
// prepare.
Result<std::unique_ptr<DeviceProgram>> prepareStagingCopy(
    DeviceExecutor& executor, RegionRecord& staging,
    std::span<const std::shared_ptr<RegionRecord>> regions, std::vector<Segment> segments,
    const DeviceExecutor::Preferences& preferences = {});

}  // namespace peerlane
