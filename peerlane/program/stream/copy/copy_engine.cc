// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/copy_engine.h"

#include "peerlane/core/log.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane::stream {

using cuda::check;

Status CopyEngine::oneByOne(std::span<const kernel::CopyPiece> pieces, void* stream) {
  const auto address = [](const std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); };
  for (const kernel::CopyPiece& piece : pieces)
    PEERLANE_RETURN_IF_ERROR(
        check(cuda::api().cuMemcpyAsync(address(piece.to), address(piece.from), piece.bytes,
                                        static_cast<CUstream>(stream)),
              "cuMemcpyAsync"));
  return Status::ok();
}

Status CopyEngine::batch([[maybe_unused]] std::span<const kernel::CopyPiece> pieces,
                         [[maybe_unused]] void* stream) {
#if CUDART_VERSION >= 12080
  to_.clear();
  from_.clear();
  bytes_.clear();
  for (const kernel::CopyPiece& piece : pieces) {
    to_.push_back(piece.to);
    from_.push_back(piece.from);
    bytes_.push_back(piece.bytes);
  }
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first = 0;
#if CUDART_VERSION >= 13000
  return check(cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), pieces.size(),
                                    &attributes, &first, 1, static_cast<cudaStream_t>(stream)),
               "cudaMemcpyBatchAsync");
#else
  size_t failed = 0;
  return check(cudaMemcpyBatchAsync(to_.data(), const_cast<void**>(from_.data()), bytes_.data(),
                                    pieces.size(), &attributes, &first, 1, &failed,
                                    static_cast<cudaStream_t>(stream)),
               "cudaMemcpyBatchAsync");
#endif
#else
  return Status(Code::kNotSupported, "the toolkit of this build has no cudaMemcpyBatchAsync");
#endif
}

Status CopyEngine::copy(std::span<const kernel::CopyPiece> pieces, void* stream) {
  // CUDA's default stream does not accept batches.
  if (pieces.size() < 2 || stream == nullptr ||
      batches_.load(std::memory_order_relaxed) == Batches::kRefused)
    return oneByOne(pieces, stream);
  Status batched = batch(pieces, stream);
  if (batched.isOk()) {
    batches_.store(Batches::kWork, std::memory_order_release);
    return batched;
  }
  if (batches_.load(std::memory_order_relaxed) == Batches::kWork) return batched;
  (void)cudaGetLastError();
  whyNot_ = std::string(batched.message());
  batches_.store(Batches::kRefused, std::memory_order_release);
  PEERLANE_LOG_WARN("the copy engine takes pieces one by one: {}", whyNot_);
  return oneByOne(pieces, stream);
}

std::string CopyEngine::explain() const {
  switch (batches_.load(std::memory_order_acquire)) {
    case Batches::kUntried: return "copy engine: batches not tried yet";
    case Batches::kWork: return "copy engine: in batches";
    case Batches::kRefused: return "copy engine: one by one (" + whyNot_ + ")";
  }
  return {};
}

}  // namespace peerlane::stream
