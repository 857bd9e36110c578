// SPDX-License-Identifier: Apache-2.0
//
// StagedMove: one copy between staging memory and regions of GPUs, which a peer asked for because
// it cannot reach them. The GPUs' own streams do it; a task looks for their end. It goes on when
// the peer is gone: until then its regions are in use.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "peerlane/memory/staging_memory.h"
#include "peerlane/os/process.h"
#include "peerlane/program/device/deferred_submission.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/device/device_health.h"
#include "peerlane/progress/progress.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {

class StagedMove final : public Task {
 public:
  struct Environment {
    Progress& progress;
    const RegionTable& regions;
    const DeviceExecutors& devices;
  };
  // `ended` is called once, by the thread that has a turn, if OK was returned. Errors: those of the
  // peer's words (docs/wire.md, "Staging"), and the device's.
  static Status begin(const Environment& env, std::shared_ptr<StagingMemory> staging,
                      const control::StagedMove& asked, std::function<void(Status)> ended);
  explicit StagedMove(Progress& progress) : progress_(progress) {}
  ~StagedMove() override;

  Turn turn() override;
  std::string describe() const override;

 private:
  struct Part {  // what lies on one device
    DeviceExecutor* executor = nullptr;
    std::vector<Segment> segments;
    std::shared_ptr<DeviceProgram> program;
    std::unique_ptr<DeferredSubmission> deferred;
    DeviceHealth health;
  };

  Status take(const Environment& env, const control::StagedMove& asked);
  Status prepare();
  Part& partOf(DeviceExecutor* executor);
  bool isPassed() const;
  Status outcome() const;
  Status deviceFailure();
  void leave();

  Progress& progress_;
  std::shared_ptr<StagingMemory> staging_;
  std::vector<std::shared_ptr<RegionRecord>> records_;  // each gate entered
  std::vector<Part> parts_;
  std::function<void(Status)> ended_;
  uint64_t bytes_ = 0;
  bool watched_ = false;
  const uint64_t forks_ = forkGeneration();
};

}  // namespace peerlane
