// SPDX-License-Identifier: Apache-2.0
//
// StreamProgram: a program of copies, or a run of copies of a longer one, lowered for one GPU: the
// pieces or blocks to copy, in no order among themselves, the counter to add to, and the engine
// that copies. Immutable once made, but for descriptors in device memory that the executor adds.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "peerlane/core/spare_vector.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/kernel/copy/copy_kernel.h"
#include "peerlane/program/stream/copy/engine_choice.h"
#include "peerlane/program/stream/copy/lowered_program.h"
#include "peerlane/program/stream/pools/descriptor_arena.h"
#include "peerlane/program/stream/pools/far_pieces.h"

namespace peerlane::stream {

class StreamProgram final : public LoweredProgram {
 public:
  StreamProgram() : LoweredProgram(/*isOrdered=*/false) {}
  ~StreamProgram() override { SpareVector<kernel::CopyPiece>::giveBack(std::move(pieces_)); }
  StreamProgram(const StreamProgram&) = delete;
  StreamProgram& operator=(const StreamProgram&) = delete;

  // Any number of copies and lists, then at most one addition. kNotSupported naming any other op,
  // a fence or flush that copies follow, and a copy that meets what one before it touched.
  // `pool`: where a long list may go if the preferences say that it is posted now.
  static Result<std::unique_ptr<StreamProgram>> lower(
      const Program& program, const Binding& binding,
      const DeviceExecutor::Preferences& preferences, const EngineChoice& choice,
      PinnedPool* pool = nullptr) {
    return lower(program, program.ops, binding, preferences, choice, pool);
  }
  // The same of some ops of the program, which stand in a row in it.
  static Result<std::unique_ptr<StreamProgram>> lower(
      const Program& program, std::span<const Op> ops, const Binding& binding,
      const DeviceExecutor::Preferences& preferences, const EngineChoice& choice,
      PinnedPool* pool = nullptr);
  // Requires: prepare() made it of a program of copies.
  static StreamProgram& of(DeviceProgram& program) {
    PEERLANE_CHECK(!static_cast<LoweredProgram&>(program).isOrdered());
    return static_cast<StreamProgram&>(program);
  }
  Engine engine() const override { return engine_; }
  uint64_t bytes() const override { return bytes_; }

  bool isIndexed() const { return indexed_; }
  // One of these and the blocks is empty.
  std::span<const kernel::CopyPiece> pieces() const {
    return far_.empty() ? std::span<const kernel::CopyPiece>(pieces_) : far_.pieces();
  }
  // Descriptors that lie where the kernel reads them. Whoever has launched it takes their memory
  // over, because the program may end before the kernel.
  bool isFar() const { return !far_.empty(); }
  kernel::PieceList farList() const { return far_.list(); }
  PinnedBlock takeFar() { return far_.takeOver(); }
  const kernel::BlockList& blocks() const { return blocks_; }
  // The numbers of the blocks, where the program has them: they stand in for those of a post.
  DeviceIndices numbers() const {
    return {.to = toNumbers_.data(), .from = fromNumbers_.data(), .count = toNumbers_.size()};
  }
  // The pieces of the blocks of one post, neighbours merged.
  void expand(const DeviceIndices& indices, std::vector<kernel::CopyPiece>& pieces) const;

  // Strided and numbered blocks as pieces. kNotSupported for indexed ones.
  Status expandBlocks();

  std::byte* counter() const { return counter_; }
  uint64_t counterAdd() const { return counterAdd_; }
  uint32_t ctas() const { return ctas_; }
  kernel::CopyMethod method() const { return method_; }
  // True when a kernel is better than the copy engine on a stream that has posts under way;
  // `isOwn`: the stream is one of the library's.
  bool prefersKernelBehindWork(bool isOwn) const {
    return isOwn ? kernelOnOwnStreams_ : kernelBehindWork_;
  }

  // Pieces and tile ends in memory of the device; the count is 0 while they are not there.
  const kernel::PieceList& uploaded() const { return uploaded_; }
  void setUploaded(std::unique_ptr<DescriptorMemory> memory, const kernel::PieceList& list) {
    memory_ = std::move(memory);
    uploaded_ = list;
  }
  // The size of the two arrays in bytes. writeDescriptors() writes them to `at` and returns their
  // list with addresses as if they lay at `seenAt`: `at` itself where the kernel reads host memory,
  // or the place in device memory to which the caller will copy them.
  size_t descriptorBytes() const;
  kernel::PieceList writeDescriptors(std::byte* at, std::byte* seenAt) const;

 private:
  Status addOp(const Program& program, const Op& op, const Binding& binding, PinnedPool* pool);
  void choose(const DeviceExecutor::Preferences& preferences, const EngineChoice& choice);
  Status addCopy(const Binding& binding, const Segment& segment);
  Status addSegments(const Binding& binding, const std::vector<Segment>& segments,
                     PinnedPool* pool);
  template <typename Add>
  Status eachPiece(const Binding& binding, const std::vector<Segment>& segments, const Add& add);
  void keepNear();
  Status addList(const Binding& binding, const CopyLayout& list, PinnedPool* pool);

  std::vector<kernel::CopyPiece> pieces_;
  FarPieces far_;  // in place of those
  Segment last_;   // what the last piece ends with, but for lists of equal blocks
  kernel::BlockList blocks_;
  bool indexed_ = false;
  std::vector<uint32_t> toNumbers_;
  std::vector<uint32_t> fromNumbers_;
  bool isPut_ = false;
  uint64_t bytes_ = 0;
  std::byte* counter_ = nullptr;
  uint64_t counterAdd_ = 0;
  bool isFenced_ = false;  // no copy may follow
  Engine engine_ = Engine::kAuto;
  bool kernelBehindWork_ = false;
  bool kernelOnOwnStreams_ = false;
  uint32_t ctas_ = 0;
  kernel::CopyMethod method_ = kernel::CopyMethod::kThreads;
  std::unique_ptr<DescriptorMemory> memory_;
  kernel::PieceList uploaded_;
};

}  // namespace peerlane::stream
