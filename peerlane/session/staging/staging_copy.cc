// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/staging/staging_copy.h"

#include <utility>

namespace peerlane {

Result<std::unique_ptr<DeviceProgram>> prepareStagingCopy(
    DeviceExecutor& executor, RegionRecord& staging,
    std::span<const std::shared_ptr<RegionRecord>> regions, std::vector<Segment> segments,
    const DeviceExecutor::Preferences& preferences) {
  PEERLANE_RETURN_IF_ERROR(
      staging.pin.ensure([&] { return executor.pin(staging.base, staging.bytes); }));
  ProgramBuilder program("staging");
  Binding binding;
  program.local("staging");
  binding.targets.push_back({.address = staging.base, .bytes = staging.bytes});
  for (const auto& region : regions) {
    program.local("region");
    binding.targets.push_back({.address = region->base, .bytes = region->bytes});
  }
  CopyLayout layout;
  layout.segments = std::move(segments);
  program.copyList(std::move(layout));
  return executor.prepare(program.build(), binding, preferences);
}

}  // namespace peerlane
