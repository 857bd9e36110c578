// SPDX-License-Identifier: Apache-2.0
//
// LendingPipe: the byte pipe of two processes of one host. Memory of the library goes through a
// ring; that of the program goes through a pipe of the system, which holds the pages themselves
// (page_pipe.h), so that its bytes are copied once, from one program's memory to the other's.
//
// The ring carries records, which say how many bytes come through which of the two; docs/wire.md,
// "The ring of shm", is the specification. Each direction's pipe is made when its first record
// needs one, and its reading end is given to the peer. Where none can be made, all bytes go through
// the ring. At the end the bytes in the pipe that the peer has not read are taken back, and those
// behind them are lost. Threads as for FramePipe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "peerlane/os/mappings/page_pipe.h"
#include "peerlane/transport/frame_pipe.h"
#include "peerlane/transport/shm/knock_line.h"
#include "peerlane/transport/shm/ring_pipe.h"

namespace peerlane {

class LendingPipe final : public FramePipe {
 public:
  // `line` outlives the pipe.
  LendingPipe(std::unique_ptr<RingPipe> ring, KnockLine& line)
      : ring_(std::move(ring)), line_(line) {}

  bool writable() override;
  Result<size_t> write(const PipeSlices& from) override;
  uint64_t lent() const override { return lent_; }
  uint64_t returned() override;
  bool readable() override {
    return direct_ != 0 || paged_ != 0 || !failure_.isOk() || ring_->readable();
  }
  Result<size_t> read(const PipeSlices& to) override;
  void refresh() override { ring_->refresh(); }
  void close() override;

 private:
  static constexpr size_t kHeadBytes = 8;
  static constexpr size_t kMarkBytes = 1;
  static constexpr size_t kLeastRoom = kHeadBytes + kMarkBytes + 1;  // for a record
  // Of a record: the reader of one is done with the pages when it has all. About half of what a
  // pipe holds, so that the writer puts in the next ones meanwhile.
  static constexpr size_t kMostPaged = 128 * 1024;
  // The other side is told of so many at once, at most: it takes them while this one puts in more.
  static constexpr size_t kMostUntold = 32 * 1024;
  // More records are under way than a pipe has places.
  static constexpr size_t kManyLent = 64;
  static constexpr size_t kMostSlices = 64;

  struct Counts {  // bytes
    size_t direct = 0;
    size_t paged = 0;
  };
  struct Lent {
    uint64_t end = 0;    // the ring's byte at which its record ends
    uint64_t total = 0;  // of lent_, with it
  };

  Status givePages();
  bool makePages();
  void noteReturned(uint64_t tail);
  Result<size_t> putPages(std::span<const IoSlice> slices);
  Result<size_t> copyPages(std::span<const IoSlice> slices);
  void tell();
  Result<Counts> takeOfProgram(SliceCursor& at, const PipeSlices& all, size_t most);
  Result<size_t> writeRecord(SliceCursor& at, const PipeSlices& all, uint64_t room);
  void noteLent(size_t bytes);
  Result<bool> beginRecord();
  Result<size_t> readDirect(const SliceCursor& at, const PipeSlices& all);
  Result<size_t> readPaged(const SliceCursor& at);
  Result<size_t> readNext(const SliceCursor& at, const PipeSlices& all, bool isFirst);

  const std::unique_ptr<RingPipe> ring_;
  KnockLine& line_;

  // Writers, under the agent's lock.
  PagePipe pages_;
  bool isAlone_ = false;  // no pipe can be made
  size_t untold_ = 0;     // bytes in the pipe
  std::deque<Lent> outstanding_;
  uint64_t lent_ = 0;
  uint64_t returned_ = 0;
  bool awaitsReturn_ = false;          // returned() found too few
  std::optional<uint64_t> fullAt_;     // the ring's tail when the pipe was full
  std::unique_ptr<std::byte[]> copy_;  // of memory that goes through the ring

  // The polling thread: what is left of the record that is being read.
  PageSource source_;
  size_t direct_ = 0;
  size_t paged_ = 0;
  Status failure_;  // of a record, for it is read no second time
};

}  // namespace peerlane
