// SPDX-License-Identifier: Apache-2.0
//
// SealedPipe: a byte pipe that is encrypted and authenticated over another one that is neither. The
// stream is cut into records, each sealed under the next number: one that was altered, replayed,
// left out or moved does not open, and ends the pipe. docs/wire.md, "Sealed records", is the
// specification.
//
// write() makes records in memory of the pipe: those that the wire does not take at once leave
// first at the next write(), which may be one of nothing. A record is opened into memory of the
// pipe and copied from there, because opening it in place would destroy the destination also where
// the tag is wrong. Threads as for FramePipe.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "peerlane/transport/frame_pipe.h"
#include "peerlane/transport/tcp/record_cipher.h"
#include "peerlane/transport/tcp/stream_keys.h"

namespace peerlane {

class SealedPipe final : public FramePipe {
 public:
  // `team`: threads that help where many records go at once; null: none. It outlives the pipe.
  // `bytesPerKey` is another one than both ends have only in tests.
  SealedPipe(std::unique_ptr<FramePipe> wire, const StreamKeys& keys, cpu::CopyTeam* team = nullptr,
             uint64_t bytesPerKey = kRecordBytesPerKey);

  bool writable() override { return wire_->writable(); }
  Result<size_t> write(const PipeSlices& from) override;
  bool hasUnsent() const override { return outBegin_ != outEnd_; }
  bool readable() override { return hasUnread() || wire_->readable(); }
  Result<size_t> read(const PipeSlices& to) override;
  bool hasUnread() const override;
  void refresh() override { wire_->refresh(); }
  bool mayOwe() const override { return wire_->mayOwe(); }
  void setOwing(bool owes) override { wire_->setOwing(owes); }
  void close() override { wire_->close(); }

 private:
  struct Place {
    std::span<const IoSlice> slices;
    size_t skip = 0;  // of the first one
  };
  Result<bool> drain();
  Result<size_t> send();
  size_t cut(Place& at, const PipeSlices& all, std::span<RecordCipher::Record> batch) const;
  Result<size_t> sealNext(Place& from, const PipeSlices& all);
  Result<bool> fill();
  size_t receive();
  Result<bool> openNext();
  size_t unopened() const { return rawEnd_ - rawBegin_; }
  uint32_t lengthAt(size_t offset) const;
  bool hasRecord() const;

  const std::unique_ptr<FramePipe> wire_;
  const size_t atOnce_;  // records
  const size_t room_;    // bytes of so many records, sealed
  const size_t rawRoom_;

  // The thread that writes.
  RecordCipher sealer_;
  std::unique_ptr<std::byte[]> out_;  // made when it is first needed, as the others
  size_t outBegin_ = 0;               // sealed and not taken by the wire: up to outEnd_
  size_t outEnd_ = 0;

  // The thread that reads.
  RecordCipher opener_;
  std::unique_ptr<std::byte[]> raw_;  // as it came
  size_t rawBegin_ = 0;
  size_t rawEnd_ = 0;
  std::unique_ptr<std::byte[]> plain_;  // opened, and not handed out yet: from plainBegin_ on
  size_t plainBegin_ = 0;
  size_t plainEnd_ = 0;
  Status wireFailure_;  // to be reported after raw_
  Status failure_;      // to be reported after plain_
};

}  // namespace peerlane
