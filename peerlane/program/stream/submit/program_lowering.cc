// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/submit/program_lowering.h"

#include "peerlane/os/cuda_driver.h"
#include "peerlane/program/stream/ordered/ordered_program.h"
#include "peerlane/program/stream/submit/relaxed_capture.h"

namespace peerlane::stream {
namespace {

using cuda::check;

// The descriptors of a plan with more pieces lie in the GPU's memory, because a launch copies its
// parameters every time.
constexpr size_t kUploadedPieces = 8;

}  // namespace

Status ProgramLowering::open(DescriptorArena& descriptors, void* setUpStream) {
  descriptors_ = &descriptors;
  setUpStream_ = setUpStream;
  PEERLANE_ASSIGN(abilities_, WordAbilities::of(gpu_->gpu()));
  return Status::ok();
}

Result<std::unique_ptr<DeviceProgram>> ProgramLowering::lower(
    const Program& program, const Binding& binding,
    const DeviceExecutor::Preferences& preferences) {
  auto copies = StreamProgram::lower(program, binding, preferences, choice_, &pool_);
  if (copies.isOk()) {
    if (preferences.repeated) PEERLANE_RETURN_IF_ERROR(uploadIfLong(**copies));
    return std::unique_ptr<DeviceProgram>(std::move(*copies));
  }
  if (copies.status().code() != Code::kNotSupported) return copies.status();
  const cuda::CurrentContext current(*gpu_);
  const RelaxedCapture relaxed;
  PEERLANE_ASSIGN(auto ordered,
                  OrderedProgram::lower(program, binding, preferences, choice_, abilities_,
                                        [this](StreamProgram& run) { return uploadIfLong(run); }));
  return std::unique_ptr<DeviceProgram>(std::move(ordered));
}

// Every post reads them from the device's own memory.
Status ProgramLowering::uploadIfLong(StreamProgram& program) {
  if (program.engine() == Engine::kCe || program.pieces().size() <= kUploadedPieces)
    return Status::ok();
  const cuda::CurrentContext current(*gpu_);
  const RelaxedCapture relaxed;
  const size_t bytes = program.descriptorBytes();
  PEERLANE_ASSIGN(const PinnedBlock staging, pool_.take(bytes));
  auto memory = descriptors_->take(bytes);
  Status status = memory.status();
  if (status.isOk()) {
    auto* const stream = static_cast<cudaStream_t>(setUpStream_);
    std::byte* const at = (*memory)->data();
    program.setUploaded(std::move(*memory), program.writeDescriptors(staging.data, at));
    // Waited for: posts on other streams read the descriptors, and nothing orders those streams
    // after this one.
    status = check(cudaMemcpyAsync(at, staging.data, bytes, cudaMemcpyHostToDevice, stream),
                   "cudaMemcpyAsync");
    if (status.isOk()) status = check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  pool_.giveBack(staging);
  return status;
}

}  // namespace peerlane::stream
