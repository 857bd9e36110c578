// SPDX-License-Identifier: Apache-2.0
//
// Orders: pages are in the pipe before the record that tells of them is in the ring (its head is
// released). The record's mark leaves the ring after the pages left the pipe: a writer that sees
// the tail past it knows that nobody reads the memory any more, and that the pipe has room.
#include "peerlane/transport/shm/lending_pipe.h"

#include <algorithm>
#include <string>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/core/wire.h"
#include "peerlane/os/mappings/nofault_copy.h"

namespace peerlane {
namespace {

Status corrupt(const std::string& what) {
  return Status(Code::kCorrupt, "the peer's ring has a record of " + what);
}

}  // namespace

bool LendingPipe::writable() {
  if (fullAt_) {
    const Result<uint64_t> tail = ring_->taken(/*rings=*/false);
    if (tail && *tail == *fullAt_) return false;
  }
  return ring_->hasRoom(kLeastRoom);
}

Status LendingPipe::givePages() {
  PEERLANE_ASSIGN(PagePipe made, PagePipe::create());
  // This side takes back by an end that the peer does not share: it could else have it block.
  PEERLANE_ASSIGN(PageSource own, PageSource::adopt(made.source().fd()));
  PEERLANE_RETURN_IF_ERROR(line_.give(made.source().fd()));
  made.source() = std::move(own);
  pages_ = std::move(made);
  return {};
}

// True when there is a pipe, and the peer has the other end.
bool LendingPipe::makePages() {
  if (pages_ || isAlone_) return static_cast<bool>(pages_);
  const Status given = givePages();
  if (given.isOk()) return true;
  if (given.code() == Code::kTryAgain) return false;
  isAlone_ = true;
  PEERLANE_LOG_WARN("shm: private memory is copied twice, through the ring: {}", given.message());
  return false;
}

void LendingPipe::noteReturned(uint64_t tail) {
  for (; !outstanding_.empty() && outstanding_.front().end <= tail; outstanding_.pop_front())
    returned_ = outstanding_.front().total;
  if (outstanding_.empty()) awaitsReturn_ = false;
}

// The peer rings this side once more has come back.
uint64_t LendingPipe::returned() {
  if (outstanding_.empty()) return returned_;
  awaitsReturn_ = true;
  if (const Result<uint64_t> tail = ring_->taken(/*rings=*/true)) noteReturned(*tail);
  return returned_;
}

Result<size_t> LendingPipe::putPages(std::span<const IoSlice> slices) {
  fullAt_.reset();
  PEERLANE_ASSIGN(const size_t put, pages_.put(slices));
  if (put != 0) return put;
  // The reader takes first and looks whether it must ring afterwards; this side says so first and
  // tries again afterwards.
  PEERLANE_ASSIGN(const uint64_t tail, ring_->taken(/*rings=*/true));
  noteReturned(tail);
  // Before Linux 6.14 a call that fails leaves a place taken, until it is read.
  if (outstanding_.empty()) pages_.source().drop(1);
  PEERLANE_ASSIGN(const size_t again, pages_.put(slices));
  if (again == 0) fullAt_ = tail;
  return again;
}

// For the ring.
Result<size_t> LendingPipe::copyPages(std::span<const IoSlice> slices) {
  if (!copy_) copy_ = std::make_unique_for_overwrite<std::byte[]>(kMostPaged);
  const IoSlice to{copy_.get(), kMostPaged};
  const size_t bytes = nofaultRead({&to, 1}, slices);
  if (bytes == 0) return Status(Code::kRevoked, "memory to be sent cannot be read");
  return bytes;
}

// As much memory of the program as goes with the next record: into the pipe (`paged`), or where
// there is none into copy_ (`direct`, at most `most`). Errors: kRevoked: the first cannot be read.
Result<LendingPipe::Counts> LendingPipe::takeOfProgram(SliceCursor& at, const PipeSlices& all,
                                                       size_t most) {
  const bool lends = makePages();
  std::array<IoSlice, kMostSlices> room;
  size_t wanted = 0;
  SliceCursor ahead = at;
  const auto slices =
      ahead.takeWhile([&](const IoSlice& slice) { return !all.isOurs(slice); },
                      lends ? kMostPaged : std::min(kMostPaged, most), room, wanted);
  PEERLANE_ASSIGN(const size_t taken, lends ? putPages(slices) : copyPages(slices));
  at.advance(taken);
  return lends ? Counts{.paged = taken} : Counts{.direct = taken};
}

// Memory of the library up to the next one of the program's, and as much of that as the pipe takes.
// Returns the bytes, which are behind `at` then; 0: nothing fits now. Errors: kRevoked: memory of
// the program is the first, and cannot be read.
Result<size_t> LendingPipe::writeRecord(SliceCursor& at, const PipeSlices& all, uint64_t room) {
  std::array<IoSlice, kMostSlices> record;
  const size_t most = room - kHeadBytes - kMarkBytes;
  size_t direct = 0;
  // Room for the head before, and a copy and the mark behind.
  const auto ours = at.takeWhile([&](const IoSlice& slice) { return all.isOurs(slice); }, most,
                                 std::span(record).subspan(1, kMostSlices - 3), direct);
  size_t count = 1 + ours.size();
  Counts ofProgram;
  if (!at.isEnd() && !all.isOurs(at.front()) && direct < most) {
    const Result<Counts> taken = takeOfProgram(at, all, most - direct);
    if (!taken && (direct == 0 || taken.status().code() != Code::kRevoked)) return taken.status();
    if (taken) ofProgram = *taken;
  }
  if (ofProgram.direct != 0) record[count++] = {copy_.get(), ofProgram.direct};
  direct += ofProgram.direct;
  const size_t paged = ofProgram.paged;
  if (direct == 0 && paged == 0) return size_t{0};
  std::array<std::byte, kHeadBytes> head;
  ByteWriter writer{std::span<std::byte>(head)};
  writer.u32(static_cast<uint32_t>(direct));
  writer.u32(static_cast<uint32_t>(paged));
  record[0] = {head.data(), head.size()};
  std::byte mark{};
  if (paged != 0) record[count++] = {&mark, kMarkBytes};
  // All of it is the library's, or was copied: so no plain copy can fault.
  ring_->writeOurs(std::span(record).first(count));
  if (paged != 0) noteLent(paged);
  return direct + paged;
}

void LendingPipe::noteLent(size_t bytes) {
  lent_ += bytes;
  untold_ += bytes;
  if (outstanding_.size() >= kManyLent)
    if (const Result<uint64_t> tail = ring_->taken(/*rings=*/false)) noteReturned(*tail);
  outstanding_.push_back({ring_->written(), lent_});
  if (untold_ >= kMostUntold) tell();
}

void LendingPipe::tell() {
  untold_ = 0;
  ring_->tellWritten();
}

Result<size_t> LendingPipe::write(const PipeSlices& from) {
  SliceCursor at(from.slices);
  size_t taken = 0;
  bool isFull = false;
  if (fullAt_ && writable()) fullAt_.reset();
  const auto end = [&](Result<size_t> result) {
    if (taken != 0) tell();
    if (!isFull && !fullAt_ && !awaitsReturn_) ring_->letRest();
    return result;
  };
  while (!at.isEnd()) {
    const Result<uint64_t> room = ring_->room(kLeastRoom);
    if (!room) return end(room.status());
    isFull = *room < kLeastRoom;
    if (isFull) break;
    const Result<size_t> bytes = writeRecord(at, from, *room);
    if (!bytes && (taken == 0 || bytes.status().code() != Code::kRevoked)) return end(bytes);
    if (!bytes || *bytes == 0) break;
    taken += *bytes;
  }
  return end(taken);
}

// Requires: the last record was read whole. False: no other has come.
Result<bool> LendingPipe::beginRecord() {
  PEERLANE_ASSIGN(uint64_t unread, ring_->unread());
  if (unread == 0) return false;
  if (unread < kHeadBytes) return corrupt(std::to_string(unread) + " bytes, less than its head");
  std::array<std::byte, kHeadBytes> head;
  ring_->readOurs(head);
  ByteReader reader(head);
  const uint32_t direct = reader.u32();
  const uint32_t paged = reader.u32();
  unread -= kHeadBytes;
  const auto said = [&] {
    return std::to_string(direct) + " bytes and " + std::to_string(paged) + " in the pipe";
  };
  if (direct == 0 && paged == 0) return corrupt(said());
  // It is told of when all of it is there.
  if (unread < direct || (paged != 0 && unread - direct < kMarkBytes))
    return corrupt(said() + ", and " + std::to_string(unread) + " have come");
  if (paged != 0 && !source_) {
    PEERLANE_ASSIGN(const Fd given, line_.take());
    if (!given) return corrupt(said() + ", which has not come");
    PEERLANE_ASSIGN(source_, PageSource::adopt(given));
  }
  direct_ = direct;
  paged_ = paged;
  return true;
}

Result<size_t> LendingPipe::readDirect(const SliceCursor& at, const PipeSlices& all) {
  std::array<IoSlice, kMostSlices + 2> room;
  size_t wanted = 0;
  const auto slices = at.next(direct_, room, wanted);
  PEERLANE_ASSIGN(const size_t read, ring_->readQuietly({slices, all.ours, all.areAllOurs}));
  direct_ -= read;
  return read;
}

Result<size_t> LendingPipe::readPaged(const SliceCursor& at) {
  std::array<IoSlice, kMostSlices + 2> room;
  size_t wanted = 0;
  const auto slices = at.next(paged_, room, wanted);
  PEERLANE_ASSIGN(const size_t read, source_.take(slices, wanted));
  // One that ends says so, and then takes back what it has lent: these may not be the next bytes.
  if (ring_->hasEnded()) return failure_ = Status(Code::kPeerLost, "the peer ended the ring");
  if (read == 0)
    return failure_ = corrupt(std::to_string(paged_) + " bytes more in the pipe, which is empty");
  paged_ -= read;
  std::array<std::byte, kMarkBytes> mark;
  if (paged_ != 0) return read;
  ring_->readOurs(mark);
  if (read >= kMostUntold) ring_->tellRead();
  return read;
}

Result<size_t> LendingPipe::readNext(const SliceCursor& at, const PipeSlices& all, bool isFirst) {
  PEERLANE_RETURN_IF_ERROR(Status(failure_));
  if (direct_ == 0 && paged_ == 0) {
    const Result<bool> begun = beginRecord();
    if (!begun) return failure_ = begun.status();
    if (!*begun) return size_t{0};
  }
  if (direct_ != 0) return readDirect(at, all);
  // Who reads into memory of the library may find there where the bytes in the pipe go.
  if (!isFirst && all.isOurs(at.front())) return size_t{0};
  return readPaged(at);
}

Result<size_t> LendingPipe::read(const PipeSlices& to) {
  SliceCursor at(to.slices);
  size_t given = 0;
  while (!at.isEnd()) {
    Result<size_t> read = readNext(at, to, given == 0);
    if (!read && given == 0) return read;
    // A failure comes again, with the next call.
    if (!read || *read == 0) break;
    given += *read;
    at.advance(*read);
  }
  if (given != 0) ring_->tellRead();
  return given;
}

void LendingPipe::close() {
  ring_->close();
  // The peer may not have read it: what the program then does with its memory is not its business.
  // What it has now: a hostile one could put in more without end.
  if (pages_) pages_.source().drop(pages_.source().bytes());
}

}  // namespace peerlane
