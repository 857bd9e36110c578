// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/sealed_pipe.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>

#include "peerlane/core/wire.h"
#include "peerlane/os/mappings/nofault_copy.h"

namespace peerlane {
namespace {

using Record = RecordCipher::Record;
using Batch = std::array<Record, RecordCipher::kMostAtOnce>;

// Without a team: with fewer each batch costs more calls and wake-ups, with more it leaves the
// cache before the system copies it (seen on 2 cores: 2, 4, 8, 16 records 1.1, 1.4, 1.7, 1.5 GB/s).
constexpr size_t kAloneAtOnce = 8;

}  // namespace

SealedPipe::SealedPipe(std::unique_ptr<FramePipe> wire, const StreamKeys& keys, cpu::CopyTeam* team,
                       uint64_t bytesPerKey)
    : wire_(std::move(wire)),
      atOnce_(team != nullptr ? RecordCipher::kMostAtOnce : kAloneAtOnce),
      room_(atOnce_ * (kRecordMostBytes + kRecordExtraBytes)),
      rawRoom_(2 * room_),
      sealer_(Aead::Use::kSeal, {keys.cipher, keys.send, bytesPerKey, team}),
      opener_(Aead::Use::kOpen, {keys.cipher, keys.receive, bytesPerKey, team}) {}

// Afterwards nothing waits to be sent, or the wire is full: so writable() becomes true again when
// what waits can go on.
Result<bool> SealedPipe::drain() {
  while (outBegin_ != outEnd_) {
    PEERLANE_ASSIGN(const size_t sent, send());
    if (sent == 0) return false;
  }
  outBegin_ = outEnd_ = 0;
  return true;
}

Result<size_t> SealedPipe::send() {
  const IoSlice rest{out_.get() + outBegin_, outEnd_ - outBegin_};
  PEERLANE_ASSIGN(const size_t sent,
                  wire_->write({std::span(&rest, 1), std::span(out_.get(), room_)}));
  outBegin_ += sent;
  return sent;
}

// The next records' plaintexts, from `at` on, which moves past them. Returns how many records.
size_t SealedPipe::cut(Place& at, const PipeSlices& all, std::span<Record> batch) const {
  size_t count = 0;
  for (; count < atOnce_; ++count) {
    Record& record = batch[count];
    record.plain = at.slices;
    record.skip = at.skip;
    while (!at.slices.empty() && record.bytes < kRecordMostBytes) {
      const IoSlice& slice = at.slices.front();
      record.isOfProgram |= !all.isOurs(slice);
      const size_t left = slice.bytes - at.skip;
      const size_t bytes = std::min<size_t>(left, kRecordMostBytes - record.bytes);
      record.bytes += static_cast<uint32_t>(bytes);
      at = bytes == left ? Place{at.slices.subspan(1), 0} : Place{at.slices, at.skip + bytes};
    }
    if (record.bytes == 0) break;
  }
  return count;
}

// Requires: out_ is empty. Returns the bytes taken, 0 at the end of the slices. Errors: kRevoked: a
// slice of the first record cannot be read; nothing was taken.
Result<size_t> SealedPipe::sealNext(Place& from, const PipeSlices& all) {
  Batch batch;
  Place at = from;
  const size_t count = cut(at, all, batch);
  if (count == 0) return size_t{0};
  const size_t planned = sealer_.plan(std::span(batch).first(count));
  const std::span<Record> records = std::span(batch).first(planned);
  if (!out_) out_ = std::make_unique_for_overwrite<std::byte[]>(room_);
  size_t end = 0;
  for (Record& record : records) {
    record.sealed = out_.get() + end;
    ByteWriter(std::span(record.sealed, kRecordHeaderBytes)).u32(record.bytes);
    end += record.bytes + kRecordExtraBytes;
  }
  Status sent;
  const auto addFirst = [&](size_t done) {
    for (const Record& record : records.first(done)) {
      if (!record.isGood) return;
      const auto begin = static_cast<size_t>(record.sealed - out_.get());
      outEnd_ = std::max(outEnd_, begin + record.bytes + kRecordExtraBytes);
    }
  };
  const auto sendFirst = [&](size_t done) {
    const size_t before = outEnd_;
    addFirst(done);
    if (outEnd_ != before && sent.isOk()) sent = send().status();
  };
  PEERLANE_RETURN_IF_ERROR(sealer_.seal(records, std::ref(sendFirst)));
  PEERLANE_RETURN_IF_ERROR(std::move(sent));
  addFirst(planned);
  size_t taken = 0;
  size_t good = 0;
  for (; good < planned && records[good].isGood; ++good) taken += records[good].bytes;
  if (good < planned && !records[good].isUnreadable)
    return Status(Code::kInternal,
                  "record " + std::to_string(records[good].number) + " could not be sealed");
  // None of those that come after an unreadable one was sent: sendFirst() stops there.
  sealer_.takeBack(records.subspan(good));
  if (good == 0) return Status(Code::kRevoked, "memory to be sent cannot be read");
  from = good == count ? at : Place{batch[good].plain, batch[good].skip};
  return taken;
}

Result<size_t> SealedPipe::write(const PipeSlices& slices) {
  Place from{slices.slices, 0};
  size_t taken = 0;
  for (;;) {
    PEERLANE_ASSIGN(const bool isDrained, drain());
    if (!isDrained) return taken;
    Result<size_t> bytes = sealNext(from, slices);
    if (bytes.status().code() == Code::kRevoked) {
      // A record may have several slices: the first one alone tells whether it is that.
      Place first{from.slices.first(1), from.skip};
      bytes = sealNext(first, slices);
      if (bytes.status().code() == Code::kRevoked && taken != 0) return taken;
      if (bytes)
        from = first.slices.empty() ? Place{from.slices.subspan(1), 0}
                                    : Place{from.slices, first.skip};
    }
    if (!bytes || *bytes == 0) return bytes ? taken : bytes;
    taken += *bytes;
  }
}

uint32_t SealedPipe::lengthAt(size_t offset) const {
  return ByteReader(std::span(raw_.get() + offset, kRecordHeaderBytes)).u32();
}

// One that is too long counts, for it is an error already.
bool SealedPipe::hasRecord() const {
  if (unopened() < kRecordHeaderBytes) return false;
  const uint32_t bytes = lengthAt(rawBegin_);
  return bytes > kRecordMostBytes || unopened() >= bytes + kRecordExtraBytes;
}

bool SealedPipe::hasUnread() const {
  return plainBegin_ != plainEnd_ || !failure_.isOk() || !wireFailure_.isOk() || hasRecord();
}

// Opens what has come whole. False: no record has.
Result<bool> SealedPipe::openNext() {
  Batch batch;
  size_t count = 0;
  for (size_t at = rawBegin_; count < atOnce_ && rawEnd_ - at >= kRecordHeaderBytes;) {
    const uint32_t bytes = lengthAt(at);
    if (bytes == 0 || bytes > kRecordMostBytes) {
      if (count != 0) break;
      return Status(Code::kCorrupt, "a sealed record of " + std::to_string(bytes) +
                                        " bytes; accepted: 1 to " +
                                        std::to_string(kRecordMostBytes));
    }
    if (rawEnd_ - at < bytes + kRecordExtraBytes) break;
    batch[count].sealed = raw_.get() + at;
    batch[count++].bytes = bytes;
    at += bytes + kRecordExtraBytes;
  }
  if (count == 0) return false;
  const std::span<Record> records =
      std::span(batch).first(opener_.plan(std::span(batch).first(count)));
  if (!plain_) plain_ = std::make_unique_for_overwrite<std::byte[]>(atOnce_ * kRecordMostBytes);
  const IoSlice slot{plain_.get(), atOnce_ * kRecordMostBytes};
  size_t opened = 0;
  for (Record& record : records) {
    record.plain = std::span(&slot, 1);
    record.skip = opened;
    opened += record.bytes;
  }
  const auto readOn = [this](size_t) {
    if (wireFailure_.isOk() && rawEnd_ != rawRoom_ && wire_->readable()) (void)receive();
  };
  PEERLANE_RETURN_IF_ERROR(opener_.open(records, std::ref(readOn)));
  plainBegin_ = plainEnd_ = 0;
  for (const Record& record : records) {
    if (!record.isGood) {
      failure_ = Status(Code::kCorrupt,
                        "sealed record " + std::to_string(record.number) +
                            " does not open: it was altered, replayed, left out or moved on the "
                            "way, or made with another key");
      break;
    }
    plainEnd_ += record.bytes;
    rawBegin_ += record.bytes + kRecordExtraBytes;
  }
  return true;
}

// Until there is plaintext, or a failure. False: no byte has come.
Result<bool> SealedPipe::fill() {
  for (;;) {
    PEERLANE_ASSIGN(const bool isOpened, openNext());
    if (isOpened) return true;
    if (!raw_) raw_ = std::make_unique_for_overwrite<std::byte[]>(rawRoom_);
    if (rawBegin_ == rawEnd_ || rawRoom_ - rawEnd_ < rawRoom_ / 2) {
      std::memmove(raw_.get(), raw_.get() + rawBegin_, unopened());
      rawEnd_ -= rawBegin_;
      rawBegin_ = 0;
    }
    const size_t bytes = wireFailure_.isOk() ? receive() : 0;
    if (!wireFailure_.isOk() && unopened() != 0)
      return Status(wireFailure_.code(),
                    std::string(wireFailure_.message()) + ", in the middle of a sealed record");
    if (!wireFailure_.isOk()) return wireFailure_;
    if (bytes == 0) return false;
  }
}

// Requires: room.
size_t SealedPipe::receive() {
  const IoSlice rest{raw_.get() + rawEnd_, std::min(room_, rawRoom_ - rawEnd_)};
  const Result<size_t> bytes = wire_->read({std::span(&rest, 1), std::span(raw_.get(), rawRoom_)});
  if (!bytes) {
    wireFailure_ = bytes.status();
    return 0;
  }
  rawEnd_ += *bytes;
  return *bytes;
}

Result<size_t> SealedPipe::read(const PipeSlices& to) {
  if (plainBegin_ == plainEnd_) {
    if (failure_.isOk())
      if (const Result<bool> filled = fill(); !filled) failure_ = filled.status();
    if (plainBegin_ == plainEnd_ && !failure_.isOk()) return failure_;
  }
  const IoSlice rest{plain_.get() + plainBegin_, plainEnd_ - plainBegin_};
  if (rest.bytes == 0) return size_t{0};
  size_t given = 0;
  if (to.areOurs()) {
    for (const IoSlice& slice : to.slices) {
      const size_t bytes = std::min(slice.bytes, rest.bytes - given);
      if (bytes != 0)
        std::memcpy(slice.base, static_cast<const std::byte*>(rest.base) + given, bytes);
      given += bytes;
    }
  } else {
    given = nofaultWrite(to.slices, {&rest, 1});
    if (given == 0) return Status(Code::kRevoked, "memory to be filled cannot be written");
  }
  plainBegin_ += given;
  return given;
}

}  // namespace peerlane
